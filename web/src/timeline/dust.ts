/** Boxes too thin to be drawn one by one: each pixel column gets the mixture of what lies in it. */

import { type Boxes, endOf } from "./boxes";
import type { Palette } from "./palette";

/** However little of a pixel is busy, what is there can be seen. */
const FAINTEST = 0.42;

/** One row of pixels, into which boxes are mixed by the share of each pixel they fill. */
export class Dust {
  private red = new Float32Array(0);
  private green = new Float32Array(0);
  private blue = new Float32Array(0);
  private filled = new Float32Array(0);
  /** The same without the strength. */
  private there = new Float32Array(0);
  private first = 0;
  private last = -1;

  /** Make room for this many pixels; all are empty then. */
  reset(width: number): void {
    if (this.filled.length !== width) {
      this.red = new Float32Array(width);
      this.green = new Float32Array(width);
      this.blue = new Float32Array(width);
      this.filled = new Float32Array(width);
      this.there = new Float32Array(width);
    } else if (this.last >= this.first) {
      for (const part of [this.red, this.green, this.blue, this.filled, this.there])
        part.fill(0, this.first, this.last + 1);
    }
    this.first = width;
    this.last = -1;
  }

  get empty(): boolean {
    return this.last < this.first;
  }

  /** Mix in a box that begins at pixel `x`; it counts with `strength` times its busy time. */
  add(boxes: Boxes, index: number, x: number, scale: number, palette: Palette, strength: number): void {
    const column = Math.floor(x);
    if (column < 0 || column >= this.filled.length) return;
    const rgb = palette.rgb[boxes.label[index] ?? 0] ?? [128, 128, 128];
    const width = (endOf(boxes, index) - (boxes.start[index] ?? 0)) * scale;
    const busy = Math.max((boxes.busy[index] ?? 0) * scale, 0.02);
    // What reaches into the next pixel counts there.
    const over = Math.min(Math.max(x + width - column - 1, 0), 1) / Math.max(width, 1);
    this.mix(column, rgb, Math.min(busy, 1) * (1 - over), strength);
    if (over > 0.05 && column + 1 < this.filled.length)
      this.mix(column + 1, rgb, Math.min(busy, 1) * over, strength);
  }

  /** Write the row as pixels, from `at` on. */
  write(pixels: Uint8ClampedArray, at: number): void {
    for (let column = this.first; column <= this.last; column++) {
      const filled = this.filled[column] ?? 0;
      if (filled <= 0) continue;
      const place = at + column * 4;
      pixels[place] = (this.red[column] ?? 0) / filled;
      pixels[place + 1] = (this.green[column] ?? 0) / filled;
      pixels[place + 2] = (this.blue[column] ?? 0) / filled;
      const there = this.there[column] ?? 1;
      pixels[place + 3] = 255 * Math.min(FAINTEST + (1 - FAINTEST) * there, 1) * (filled / there);
    }
  }

  private mix(column: number, rgb: readonly [number, number, number], share: number, strength: number): void {
    const strong = share * strength;
    this.red[column] = (this.red[column] ?? 0) + rgb[0] * strong;
    this.green[column] = (this.green[column] ?? 0) + rgb[1] * strong;
    this.blue[column] = (this.blue[column] ?? 0) + rgb[2] * strong;
    this.filled[column] = (this.filled[column] ?? 0) + strong;
    this.there[column] = (this.there[column] ?? 0) + share;
    if (column < this.first) this.first = column;
    if (column > this.last) this.last = column;
  }
}
