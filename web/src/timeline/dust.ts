/** Boxes too thin to be drawn one by one: each pixel column gets the mixture of what lies in it. */

import type { Boxes } from "./boxes";
import type { Palette, Rgb } from "./palette";

/** However little of a pixel is busy, what is there can be seen. */
const FAINTEST = 0.42;

/** Of each pixel red, green and blue, how much fills it, and the same without the strength. */
const PARTS = 5;

/** One row of pixels, into which boxes are mixed by the share of each pixel they fill. */
export class Dust {
  #sums = new Float32Array(0);
  #first = 0;
  #last = -1;

  /** Make room for this many pixels; all are empty then. */
  reset(width: number): void {
    if (this.#sums.length !== width * PARTS) this.#sums = new Float32Array(width * PARTS);
    else if (!this.empty) this.#sums.fill(0, this.#first * PARTS, (this.#last + 1) * PARTS);
    this.#first = width;
    this.#last = -1;
  }

  get empty(): boolean {
    return this.#last < this.#first;
  }

  /** Mix in a box that begins at pixel `x`; it counts with `strength` times its busy time. */
  add(boxes: Boxes, index: number, x: number, scale: number, palette: Palette, strength: number): void {
    const column = Math.floor(x);
    const rgb = palette.rgb[boxes.label[index] as number] as Rgb;
    const width = (boxes.duration[index] as number) * scale;
    const busy = Math.min(Math.max((boxes.busy[index] as number) * scale, 0.02), 1);
    // What reaches into the next pixel counts there.
    const over = Math.min(Math.max(x + width - column - 1, 0), 1) / Math.max(width, 1);
    if (column < 0 || !this.#mix(column, rgb, busy * (1 - over), strength)) return;
    if (over > 0.05) this.#mix(column + 1, rgb, busy * over, strength);
  }

  /** Write the row as pixels, from `at` on. */
  write(pixels: Uint8ClampedArray, at: number): void {
    for (let column = this.#first; column <= this.#last; column++) {
      const [red, green, blue, filled, there] = this.#sums.subarray(
        column * PARTS,
        (column + 1) * PARTS,
      ) as unknown as [number, number, number, number, number];
      if (filled <= 0) continue;
      const alpha = 255 * Math.min(FAINTEST + (1 - FAINTEST) * there, 1) * (filled / there);
      pixels.set([red / filled, green / filled, blue / filled, alpha], at + column * 4);
    }
  }

  /** False where there is no such pixel. */
  #mix(column: number, rgb: Rgb, share: number, strength: number): boolean {
    const sums = this.#sums;
    const at = column * PARTS;
    if (at >= sums.length) return false;
    const strong = share * strength;
    for (let part = 0; part < 3; part++) (sums[at + part] as number) += (rgb[part] as number) * strong;
    (sums[at + 3] as number) += strong;
    (sums[at + 4] as number) += share;
    this.#first = Math.min(this.#first, column);
    this.#last = Math.max(this.#last, column);
    return true;
  }
}
