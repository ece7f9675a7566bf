/** Draws the boxes and curves of tracks on a canvas. Lengths on the canvas are its own pixels. */

import { type Boxes, within } from "./boxes";
import { Dust } from "./dust";
import { LANE_PADDING_PX, type Lane, rowTop } from "./layout";
import type { Curve } from "./loader";
import { Fitting } from "./names";
import type { Palette } from "./palette";
import { fill, fontOf, pixelOf, resize, type Sheet } from "./sheet";
import type { View } from "./view";

/** Boxes thinner than this many pixels are mixed, not drawn one by one. */
const THIN = 2;

export interface Scene {
  view: View;
  /** The height of the tracks that is scrolled out of sight, in CSS pixels. */
  scroll: number;
  /** Lower-case text; what does not hold it is faded. */
  find: string;
}

export class LanePainter {
  readonly #dust = new Dust();
  readonly #strip = document.createElement("canvas");
  #fitting = new Fitting(() => 0);
  #font = "";
  readonly #sheet: Sheet;
  readonly #palette: Palette;

  constructor(sheet: Sheet, palette: Palette) {
    this.#sheet = sheet;
    this.#palette = palette;
  }

  /** The sheet has another size, or the page another font. */
  renew(): void {
    this.#font = fontOf(this.#sheet, 11.5);
    this.#fitting = new Fitting((text) => this.#sheet.context.measureText(text).width);
  }

  /** Draw the boxes of a lane; where there is an answer for a part of the view only, the coarse one fills the rest. */
  boxes(lane: Lane, answers: readonly Boxes[], scene: Scene): void {
    const { context } = this.#sheet;
    const near = answers.at(-1);
    if (!near) return;
    context.font = this.#font;
    context.textBaseline = "middle";
    const [coarse] = answers;
    if (coarse && coarse !== near) {
      this.#part(lane, coarse, scene, { start: scene.view.start, end: near.view.start });
      this.#part(lane, coarse, scene, { start: near.view.end, end: scene.view.end });
    }
    this.#part(lane, near, scene, near.view);
  }

  /** What of a lane lies in a part of the view. */
  #part(lane: Lane, boxes: Boxes, { view, scroll, find }: Scene, part: View): void {
    const within = { start: Math.max(part.start, view.start), end: Math.min(part.end, view.end) };
    if (within.end <= within.start) return;
    const { context, height } = this.#sheet;
    const [left, right] = [within.start, within.end].map((time) =>
      Math.round(pixelOf(view, this.#sheet, time)),
    ) as [number, number];
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, height);
    context.clip();
    const rows = Math.min(lane.rows, boxes.rows.length - 1);
    if (rows > 0) this.#thin(lane, boxes, view, scroll, find, within, rows);
    for (let row = 0; row < rows; row++) this.#row(lane, row, boxes, view, scroll, find, within);
    context.restore();
  }

  /** The thin boxes of all rows, as one picture that is stretched to the rows' heights. */
  #thin(lane: Lane, boxes: Boxes, view: View, scroll: number, find: string, part: View, rows: number): void {
    const { width, context } = this.#sheet;
    const dust = this.#dust;
    const strip = this.#strip;
    const scale = width / (view.end - view.start);
    resize(strip, { width, height: Math.max(strip.height, rows) });
    const strips = strip.getContext("2d");
    if (!strips) return;
    const image = strips.createImageData(width, rows);
    const drawn: number[] = [];
    for (let row = 0; row < rows; row++) {
      const [first, last] = within(boxes, row, part);
      dust.reset(width);
      for (let index = first; index < last; index++) {
        if ((boxes.duration[index] as number) * scale >= THIN) continue;
        const x = ((boxes.start[index] as number) - view.start) * scale;
        dust.add(boxes, index, x, scale, this.#palette, this.#strength(boxes, index, find));
      }
      if (dust.empty) continue;
      dust.write(image.data, row * width * 4);
      drawn.push(row);
    }
    strips.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    for (const row of drawn) {
      const [top, height] = this.#span(lane, row, scroll);
      context.drawImage(strip, 0, row, width, 1, 0, top, width, height);
    }
  }

  #row(lane: Lane, row: number, boxes: Boxes, view: View, scroll: number, find: string, part: View): void {
    const { context, width, ratio, colors } = this.#sheet;
    const palette = this.#palette;
    const scale = width / (view.end - view.start);
    const [first, last] = within(boxes, row, part);
    const [top, height] = this.#span(lane, row, scroll);
    const texts = height >= 12 * ratio;
    for (let index = first; index < last; index++) {
      const length = (boxes.duration[index] as number) * scale;
      if (length < THIN) continue;
      const x = ((boxes.start[index] as number) - view.start) * scale;
      const left = Math.max(Math.round(x), -ratio);
      const right = Math.min(Math.round(x + length), width + ratio);
      const label = boxes.label[index] as number;
      const alone = boxes.count[index] === 1;
      const share = alone
        ? 1
        : 0.35 + (0.5 * (boxes.busy[index] as number)) / (boxes.duration[index] as number);
      const strength = this.#strength(boxes, index, find);
      context.fillStyle = palette.fill[label] as string;
      context.globalAlpha = share * strength;
      context.fillRect(left, top, Math.max(right - left - (length > 4 * ratio ? ratio : 0), 1), height);
      if (!texts || !alone) continue;
      // Text stays in sight as long as its box does.
      const begin = Math.max(left, 0) + 4 * ratio;
      const text = this.#fitting.fit(palette.text(label), Math.min(right, width) - begin - 3 * ratio);
      if (!text) continue;
      context.fillStyle = strength < 1 ? colors("faint") : (palette.ink[label] as string);
      context.globalAlpha = 1;
      context.fillText(text, begin, top + (height + ratio) / 2);
    }
    context.globalAlpha = 1;
  }

  /** Draw a counter: the area under it, and the band between its lowest and highest values around each pixel. */
  curve(lane: Lane, answers: readonly Curve[], { view, scroll }: Scene): void {
    const curve = answers.at(-1);
    if (!curve?.time.length) return;
    // One scale for the whole trace, so that heights can be compared wherever one looks.
    const least = Math.min(lane.track.low ?? 0, 0);
    const most = Math.max(lane.track.high ?? 0, least) || 1;
    const { context, width, ratio, colors } = this.#sheet;
    const top = Math.round((lane.top + LANE_PADDING_PX - scroll) * ratio);
    const bottom = Math.round((lane.top + lane.height - LANE_PADDING_PX - scroll) * ratio);
    const height = (values: ArrayLike<number>, index: number) =>
      bottom - (((values[index] as number) - least) / (most - least)) * (bottom - top - 2 * ratio);
    const last = curve.time.length - 1;
    /** Along the highest values, and through the lowest ones too where the band is drawn. */
    const draw = (band: boolean) => {
      context.beginPath();
      for (let index = 0; index <= last; index++) {
        const x = pixelOf(view, this.#sheet, curve.time[index] as number);
        if (index) context.lineTo(x, height(curve.last, index - 1));
        else context.moveTo(x, band ? height(curve.last, 0) : bottom);
        context.lineTo(x, height(curve.high, index));
        if (band) context.lineTo(x, height(curve.low, index));
        context.lineTo(x, height(curve.last, index));
      }
      // The last value holds until the next one is known.
      context.lineTo(width, height(curve.last, last));
    };
    context.save();
    context.beginPath();
    context.rect(0, top, width, bottom - top);
    context.clip();
    context.fillStyle = context.strokeStyle = colors("accent");
    context.lineWidth = ratio;
    draw(false);
    context.lineTo(width, bottom);
    context.globalAlpha = 0.22;
    context.fill();
    context.globalAlpha = 1;
    draw(true);
    context.stroke();
    context.restore();
  }

  /** The line below a lane. */
  line(lane: Lane, { scroll }: Scene): void {
    const { ratio, width } = this.#sheet;
    const y = Math.round((lane.top + lane.height - scroll) * ratio) - ratio;
    fill(this.#sheet, "line", 0, y, width, ratio);
  }

  #span(lane: Lane, row: number, scroll: number): readonly [number, number] {
    const { ratio } = this.#sheet;
    const top = Math.round((rowTop(lane, row) - scroll) * ratio);
    const bottom = Math.round((rowTop(lane, row + 1) - scroll) * ratio);
    return [top, Math.max(bottom - top - (lane.rowHeight > 5 ? Math.round(ratio) : 0), 1)];
  }

  #strength(boxes: Boxes, index: number, find: string): number {
    return this.#palette.matches(boxes.label[index] as number, find) ? 1 : 0.16;
  }
}
