/** Colors of boxes: the kind says the hue, the name a shade of it, so that equal things look equal everywhere. */

import { boxName } from "./names";

/** Kinds of spans that have a color of the theme; what is unknown looks like calls of the runtime. */
const ROLES = /^(?:operator|backward|annotation|step|python|module|kernel|memcpy|sync|overhead|collective)$/;
const LIKE: Readonly<Record<string, string>> = {
  user_annotation: "annotation",
  memset: "memcpy",
  fused_kernel: "kernel",
};

/** Kernels that talk to other devices look like the collectives that started them. */
const TALKING = /^(?:[nrhox]ccl|msccl|mscclpp|nvshmem)/i;

export function roleOf(kind: string, name: string): string {
  if (kind === "kernel" && TALKING.test(name)) return "collective";
  const role = LIKE[kind] ?? kind;
  return ROLES.test(role) ? role : "runtime";
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
  /** By label: the color as CSS and as numbers, and that of the text on it. */
  fill: string[] = [];
  rgb: Rgb[] = [];
  ink: string[] = [];
  /** The colors of the theme that are in use. */
  readonly roles = new Set<string>();
  readonly #shades: Shade[] = [];
  readonly #known = new Map<string, number>();
  readonly #roles = new Map<string, Rgb>();
  #inks: readonly [dark: string, light: string] = ["#000", "#fff"];
  #find = "";
  #found: Uint8Array = new Uint8Array(0);

  #color: (name: string) => string;
  /** `color` gives a color of the theme by its name, as `#rrggbb`. */
  constructor(color: (name: string) => string) {
    this.#color = color;

    this.renew(color);
  }

  /** Take all colors from the theme anew. */
  renew(color: (name: string) => string): void {
    this.#color = color;
    this.#roles.clear();
    this.#inks = [color("on-span"), "#ffffff"];
    this.#shades.forEach((_, label) => {
      this.#tint(label);
    });
  }

  /** The number of a kind and a name; a new one the first time. */
  readonly label = (kind: string, name: string): number => {
    const key = `${kind}\n${name}`;
    let label = this.#known.get(key);
    if (label === undefined) {
      label = this.#shades.length;
      this.#known.set(key, label);
      this.#shades.push({ kind, name, text: boxName(kind, name), lower: name.toLowerCase() });
      this.#tint(label);
    }
    return label;
  };

  kind(label: number): string {
    return this.#shades[label]?.kind ?? "";
  }

  name(label: number): string {
    return this.#shades[label]?.name ?? "";
  }

  text(label: number): string {
    return this.#shades[label]?.text ?? "";
  }

  /** Whether a label holds the text that is searched for; all do where none is. */
  matches(label: number, find: string): boolean {
    if (find === "") return true;
    if (find !== this.#find || this.#found.length < this.#shades.length) {
      this.#find = find;
      this.#found = Uint8Array.from(this.#shades, (shade) => Number(shade.lower.includes(find)));
    }
    return this.#found[label] === 1;
  }

  #tint(label: number): void {
    const { kind, name } = this.#shades[label] ?? { kind: "", name: "" };
    const role = roleOf(kind, name);
    this.roles.add(role);
    const rgb = shaded(this.#role(role), kind === "step" ? parity(name) : hashed(name));
    this.rgb[label] = rgb;
    this.fill[label] = `rgb(${rgb.join()})`;
    const [dark, light] = this.#inks;
    this.ink[label] = luminance(rgb) > 0.2 ? dark : light;
  }

  #role(name: string): Rgb {
    const rgb = this.#roles.get(name) ?? parsedColor(this.#color(name));
    this.#roles.set(name, rgb);
    return rgb;
  }
}

export function parsedColor(text: string): Rgb {
  const found = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(text.trim());
  if (!found) return [128, 128, 128];
  return [1, 2, 3].map((part) => Number.parseInt(found[part] ?? "80", 16)) as unknown as Rgb;
}

/** A color near another one: `at` from 0 to 1 chooses which of them. */
export function shaded(rgb: Rgb, at: number): Rgb {
  const [light, a, b] = toLab(rgb);
  // Two walks of different lengths through lightness and hue, so that neighboring numbers look apart.
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

/** Steps take turns, so that each differs from the next. */
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
function toLab(rgb: Rgb): Three {
  return times(LAB, times(CONES, rgb.map(toLinear)).map(Math.cbrt));
}

function fromLab(lab: Three): Rgb {
  return times(
    FROM_CONES,
    times(FROM_LAB, lab).map((value) => value ** 3),
  ).map(fromLinear) as unknown as Rgb;
}

type Three = [number, number, number];

const CONES = [
  [0.41222, 0.53633, 0.05145],
  [0.2119, 0.6807, 0.1074],
  [0.0883, 0.28172, 0.62998],
];
const LAB = [
  [0.21045, 0.79362, -0.00407],
  [1.978, -2.42859, 0.45059],
  [0.0259, 0.78277, -0.80868],
];
const FROM_LAB = [
  [1, 0.39634, 0.2158],
  [1, -0.10556, -0.06385],
  [1, -0.08948, -1.29149],
];
const FROM_CONES = [
  [4.07674, -3.30771, 0.23097],
  [-1.26844, 2.60976, -0.34132],
  [-0.0042, -0.70342, 1.70761],
];

/** A matrix times a vector. */
function times(matrix: readonly (readonly number[])[], vector: readonly number[]): Three {
  return matrix.map((row) =>
    row.reduce((sum, value, at) => sum + value * (vector[at] as number), 0),
  ) as Three;
}
