/** Colours of boxes: the kind says the hue, the name a shade of it, so that equal things look equal everywhere. */

import { boxName } from "./names";

/** The colour of the theme for each kind of span; what is unknown looks like calls of the runtime. */
const ROLES: Readonly<Record<string, string>> = {
  operator: "operator",
  backward: "backward",
  user_annotation: "annotation",
  step: "step",
  python: "python",
  module: "module",
  kernel: "kernel",
  memcpy: "memcpy",
  memset: "memcpy",
  runtime: "runtime",
  driver: "runtime",
  sync: "sync",
  overhead: "overhead",
  collective: "collective",
};

/** Kernels that talk to other devices look like the collectives that started them. */
const TALKING = /^(?:[nrhox]ccl|msccl|mscclpp|nvshmem)/i;

export function roleOf(kind: string, name: string): string {
  if (kind === "kernel" && TALKING.test(name)) return "collective";
  return ROLES[kind] ?? "runtime";
}

/** Red, green and blue from 0 to 255. */
export type Rgb = readonly [number, number, number];

interface Shade {
  kind: string;
  name: string;
  text: string;
  lower: string;
}

export class Palette {
  /** By label: the colour as CSS and as numbers, and that of the text on it. */
  fill: string[] = [];
  rgb: Rgb[] = [];
  ink: string[] = [];
  private readonly shades: Shade[] = [];
  private readonly known = new Map<string, Map<string, number>>();
  private readonly roles = new Map<string, Rgb>();
  private inks: readonly [dark: string, light: string] = ["#000", "#fff"];
  private find = "";
  private found: Uint8Array = new Uint8Array(0);

  /** `colour` gives a colour of the theme by its name, as `#rrggbb`. */
  constructor(private colour: (name: string) => string) {
    this.renew(colour);
  }

  /** Take all colours from the theme anew. */
  renew(colour: (name: string) => string): void {
    this.colour = colour;
    this.roles.clear();
    this.inks = [colour("on-span"), "#ffffff"];
    this.shades.forEach((_, label) => {
      this.tint(label);
    });
  }

  /** The number of a kind and a name; a new one the first time. */
  readonly label = (kind: string, name: string): number => {
    let ofKind = this.known.get(kind);
    if (!ofKind) {
      ofKind = new Map();
      this.known.set(kind, ofKind);
    }
    let label = ofKind.get(name);
    if (label === undefined) {
      label = this.shades.length;
      this.shades.push({ kind, name, text: boxName(kind, name), lower: name.toLowerCase() });
      ofKind.set(name, label);
      this.tint(label);
    }
    return label;
  };

  kind(label: number): string {
    return this.shades[label]?.kind ?? "";
  }

  name(label: number): string {
    return this.shades[label]?.name ?? "";
  }

  text(label: number): string {
    return this.shades[label]?.text ?? "";
  }

  /** Whether a label holds the text that is searched for; all do where none is. */
  matches(label: number, find: string): boolean {
    if (find === "") return true;
    if (find !== this.find || this.found.length < this.shades.length) {
      this.find = find;
      this.found = Uint8Array.from(this.shades, (shade) => Number(shade.lower.includes(find)));
    }
    return this.found[label] === 1;
  }

  private tint(label: number): void {
    const { kind, name } = this.shades[label] ?? { kind: "", name: "" };
    const rgb = shaded(this.role(roleOf(kind, name)), kind === "step" ? parity(name) : hashed(name));
    this.rgb[label] = rgb;
    this.fill[label] = `rgb(${rgb.join()})`;
    const [dark, light] = this.inks;
    this.ink[label] = luminance(rgb) > 0.2 ? dark : light;
  }

  private role(name: string): Rgb {
    let rgb = this.roles.get(name);
    if (!rgb) {
      rgb = parsedColour(this.colour(name));
      this.roles.set(name, rgb);
    }
    return rgb;
  }
}

export function parsedColour(text: string): Rgb {
  const found = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(text.trim());
  if (!found) return [128, 128, 128];
  return [1, 2, 3].map((part) => Number.parseInt(found[part] ?? "80", 16)) as unknown as Rgb;
}

/** A colour near another one: `at` from 0 to 1 chooses which of them. */
export function shaded(rgb: Rgb, at: number): Rgb {
  const [light, a, b] = toLab(rgb);
  // Two walks of different lengths through lightness and hue, so that neighbouring numbers look apart.
  const turn = (((at * 7) % 1) - 0.5) * 0.5;
  const lighter = (at - 0.5) * 0.14;
  const cos = Math.cos(turn);
  const sin = Math.sin(turn);
  return fromLab([Math.min(Math.max(light + lighter, 0.3), 0.9), a * cos - b * sin, a * sin + b * cos]);
}

/** A number from 0 up to 1 that depends on nothing but the text. */
export function hashed(text: string): number {
  let hash = 0x811c9dc5;
  const last = Math.min(text.length, 200);
  for (let index = 0; index < last; index++) hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193);
  hash ^= hash >>> 15;
  hash = Math.imul(hash, 0x2c1b3c6d);
  hash ^= hash >>> 12;
  return (hash >>> 0) / 2 ** 32;
}

/** Steps take turns, so that each can be told from the next. */
function parity(name: string): number {
  const number = Number(/(\d+)\D*$/.exec(name)?.[1] ?? 0);
  return number % 2 ? 0.28 : 0.71;
}

/** The relative luminance of WCAG. */
export function luminance(rgb: Rgb): number {
  const [red, green, blue] = rgb.map(toLinear) as unknown as Rgb;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function toLinear(value: number): number {
  const share = value / 255;
  return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
}

function fromLinear(value: number): number {
  const share = value <= 0.0031308 ? value * 12.92 : 1.055 * value ** (1 / 2.4) - 0.055;
  return Math.round(Math.min(Math.max(share, 0), 1) * 255);
}

/** Oklab: steps in it look even, whatever the hue. */
function toLab(rgb: Rgb): [number, number, number] {
  const [red, green, blue] = rgb.map(toLinear) as unknown as Rgb;
  const l = Math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue);
  const m = Math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue);
  const s = Math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function fromLab([light, a, b]: readonly [number, number, number]): Rgb {
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    fromLinear(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    fromLinear(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    fromLinear(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}
