/** Draws the boxes and curves of tracks on a canvas. Lengths on the canvas are its own pixels. */

import { type Boxes, endOf, within } from "./boxes";
import { Dust } from "./dust";
import { LANE_PADDING_PX, type Lane, rowTop } from "./layout";
import type { Curve } from "./loader";
import { Fitting } from "./names";
import type { Palette } from "./palette";
import type { View } from "./view";

/** Boxes thinner than this many pixels are mixed, not drawn one by one. */
const THIN = 2;
const TEXT_PX = 11.5;
export const FONT =
  'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", sans-serif';

export interface Scene {
  view: View;
  /** The height of the tracks that is scrolled out of sight, in CSS pixels. */
  scroll: number;
  /** Lower-case text; what does not hold it is faded. */
  find: string;
  /** The colour of the text on faded boxes. */
  faded: string;
}

export class LanePainter {
  private readonly dust = new Dust();
  private readonly strip = document.createElement("canvas");
  private fitting: Fitting;
  private font = "";
  private width = 0;
  private ratio = 1;

  constructor(
    private readonly context: CanvasRenderingContext2D,
    private readonly palette: Palette,
  ) {
    this.fitting = new Fitting(() => 0);
  }

  resize(width: number, ratio: number): void {
    this.width = width;
    this.ratio = ratio;
    this.font = `${TEXT_PX * textScale() * ratio}px ${FONT}`;
    this.fitting = new Fitting((text) => this.context.measureText(text).width);
  }

  /** Draw the boxes of a lane; where there is an answer for a part of the view only, the coarse one fills the rest. */
  boxes(lane: Lane, answers: readonly Boxes[], scene: Scene): void {
    const { context } = this;
    const near = answers[answers.length - 1];
    const coarse = answers.length > 1 ? answers[0] : undefined;
    if (!near) return;
    if (coarse && (near.view.start > scene.view.start || near.view.end < scene.view.end)) {
      this.part(lane, coarse, scene, { start: scene.view.start, end: near.view.start });
      this.part(lane, coarse, scene, { start: near.view.end, end: scene.view.end });
    }
    context.font = this.font;
    context.textBaseline = "middle";
    this.part(lane, near, scene, near.view);
  }

  /** What of a lane lies in a part of the view. */
  private part(lane: Lane, boxes: Boxes, scene: Scene, part: View): void {
    const from = Math.max(part.start, scene.view.start);
    const to = Math.min(part.end, scene.view.end);
    if (to <= from) return;
    const { context } = this;
    const scale = this.width / (scene.view.end - scene.view.start);
    const cut = from > scene.view.start || to < scene.view.end;
    if (cut) {
      context.save();
      context.beginPath();
      const left = Math.round((from - scene.view.start) * scale);
      context.rect(left, 0, Math.round((to - scene.view.start) * scale) - left, context.canvas.height);
      context.clip();
    }
    const rows = Math.min(lane.track.rows, boxes.rows.length - 1);
    this.dustOf(lane, boxes, scene, { start: from, end: to }, rows, scale);
    for (let row = 0; row < rows; row++) this.row(lane, row, boxes, scene, { start: from, end: to }, scale);
    if (cut) context.restore();
  }

  /** The thin boxes of all rows, as one picture that is stretched to the rows' heights. */
  private dustOf(lane: Lane, boxes: Boxes, scene: Scene, part: View, rows: number, scale: number): void {
    if (rows < 1) return;
    const { strip, dust, width } = this;
    if (strip.width !== width) strip.width = width;
    if (strip.height < rows) strip.height = rows;
    const context = strip.getContext("2d");
    if (!context) return;
    const image = context.createImageData(width, rows);
    const drawn: number[] = [];
    for (let row = 0; row < rows; row++) {
      const [first, last] = within(boxes, row, part);
      dust.reset(width);
      for (let index = first; index < last; index++) {
        if ((boxes.duration[index] ?? 0) * scale >= THIN) continue;
        const strength = this.strength(boxes.label[index] ?? 0, scene.find);
        dust.add(
          boxes,
          index,
          ((boxes.start[index] ?? 0) - scene.view.start) * scale,
          scale,
          this.palette,
          strength,
        );
      }
      if (dust.empty) continue;
      dust.write(image.data, row * width * 4);
      drawn.push(row);
    }
    if (!drawn.length) return;
    context.putImageData(image, 0, 0);
    this.context.imageSmoothingEnabled = false;
    for (const row of drawn) {
      const [top, height] = this.span(lane, row, scene);
      this.context.drawImage(strip, 0, row, width, 1, 0, top, width, height);
    }
  }

  private row(lane: Lane, row: number, boxes: Boxes, scene: Scene, part: View, scale: number): void {
    const { context, palette, width } = this;
    const [first, last] = within(boxes, row, part);
    const [top, height] = this.span(lane, row, scene);
    const gap = this.ratio;
    const middle = top + height / 2 + 0.5 * this.ratio;
    const texts = height >= 12 * this.ratio;
    for (let index = first; index < last; index++) {
      const length = (boxes.duration[index] ?? 0) * scale;
      if (length < THIN) continue;
      const x = ((boxes.start[index] ?? 0) - scene.view.start) * scale;
      const left = Math.max(Math.round(x), -gap);
      const right = Math.min(Math.round(x + length), width + gap);
      const shown = Math.max(right - left - (length > 4 * gap ? gap : 0), 1);
      const label = boxes.label[index] ?? 0;
      context.fillStyle = palette.fill[label] ?? "";
      const alone = boxes.count[index] === 1;
      const share = alone
        ? 1
        : 0.35 + 0.5 * ((boxes.busy[index] ?? 0) / (endOf(boxes, index) - (boxes.start[index] ?? 0)));
      const strength = this.strength(label, scene.find);
      context.globalAlpha = share * strength;
      context.fillRect(left, top, shown, height);
      if (!texts || !alone) continue;
      // Text stays in sight as long as its box does.
      const begin = Math.max(left, 0) + 4 * this.ratio;
      const text = this.fitting.fit(palette.text(label), Math.min(right, width) - begin - 3 * this.ratio);
      if (!text) continue;
      context.fillStyle = strength < 1 ? scene.faded : (palette.ink[label] ?? "");
      context.globalAlpha = 1;
      context.fillText(text, begin, middle);
    }
    context.globalAlpha = 1;
  }

  /** Draw a counter: the area under it, and the band between its lowest and highest values around each pixel. */
  curve(lane: Lane, answers: readonly Curve[], scene: Scene, colour: string): void {
    const curve = answers[answers.length - 1];
    if (!curve?.time.length) return;
    // One scale for the whole trace, so that heights can be compared wherever one looks.
    const least = Math.min(lane.track.low ?? 0, 0);
    const most = Math.max(lane.track.high ?? 0, least) || 1;
    const { context, width } = this;
    const top = Math.round((lane.top + LANE_PADDING_PX - scene.scroll) * this.ratio);
    const bottom = Math.round((lane.top + lane.height - LANE_PADDING_PX - scene.scroll) * this.ratio);
    const height = (value: number) =>
      bottom - ((value - least) / (most - least)) * (bottom - top - 2 * this.ratio);
    const scale = width / (scene.view.end - scene.view.start);
    const at = (index: number) => ((curve.time[index] ?? 0) - scene.view.start) * scale;
    const size = curve.time.length;
    context.save();
    context.beginPath();
    context.rect(0, top, width, bottom - top);
    context.clip();
    context.beginPath();
    context.moveTo(at(0), bottom);
    let before = bottom;
    for (let index = 0; index < size; index++) {
      const x = at(index);
      context.lineTo(x, before);
      context.lineTo(x, height(curve.high[index] ?? 0));
      before = height(curve.last[index] ?? 0);
      context.lineTo(x, before);
    }
    // The last value holds until the next one is known.
    context.lineTo(width, before);
    context.lineTo(width, bottom);
    context.closePath();
    context.globalAlpha = 0.22;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = colour;
    context.lineWidth = this.ratio;
    context.beginPath();
    for (let index = 0; index < size; index++) {
      const x = at(index);
      if (index === 0) context.moveTo(x, height(curve.last[0] ?? 0));
      else context.lineTo(x, height(curve.last[index - 1] ?? 0));
      context.lineTo(x, height(curve.high[index] ?? 0));
      context.lineTo(x, height(curve.low[index] ?? 0));
      context.lineTo(x, height(curve.last[index] ?? 0));
    }
    context.lineTo(width, before);
    context.stroke();
    context.restore();
  }

  private span(lane: Lane, row: number, scene: Scene): readonly [number, number] {
    const top = Math.round((rowTop(lane, row) - scene.scroll) * this.ratio);
    const bottom = Math.round((rowTop(lane, row + 1) - scene.scroll) * this.ratio);
    return [top, Math.max(bottom - top - (lane.rowHeight > 5 ? Math.round(this.ratio) : 0), 1)];
  }

  private strength(label: number, find: string): number {
    return find === "" || this.palette.matches(label, find) ? 1 : 0.16;
  }
}

/** Text on a canvas grows with that of the page. */
export function textScale(): number {
  return Math.min(Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 14, 1.2);
}
