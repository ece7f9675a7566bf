/** Draws what is around the tracks and over them: the time axis, the overview, outlines, the range and the arrows. */

import { type Boxes, within } from "./boxes";
import { type Lane, rowTop } from "./layout";
import { FONT } from "./paint-lanes";
import type { Palette } from "./palette";
import { ticks } from "./ticks";
import type { View } from "./view";

/** A canvas with its size: `ratio` of its pixels make a CSS pixel. */
export interface Sheet {
  readonly context: CanvasRenderingContext2D;
  readonly width: number;
  readonly height: number;
  readonly ratio: number;
  /** How much larger text is than usual. */
  readonly scale: number;
}

/** A span in its place. */
export interface Place {
  track: number;
  row: number;
  start: number;
  duration: number;
}

/** A line from one span to another that it caused. */
export interface Arrow {
  from: Place;
  to: Place;
}

export type Colours = (name: string) => string;

export function clear(sheet: Sheet): void {
  sheet.context.clearRect(0, 0, sheet.width, sheet.height);
}

/** The pixel of a time. */
export function pixelOf(view: View, sheet: Sheet, time: number): number {
  return ((time - view.start) / (view.end - view.start)) * sheet.width;
}

/** The axis; returns where its labels count from, or null for the start of the trace. */
export function paintAxis(sheet: Sheet, view: View, colours: Colours): number | null {
  const { context, height, ratio, scale } = sheet;
  const marks = ticks(view, sheet.width / ratio);
  clear(sheet);
  context.font = `${11 * scale * ratio}px ${FONT}`;
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  context.fillStyle = colours("line");
  for (const time of marks.minor)
    context.fillRect(Math.round(pixelOf(view, sheet, time)), height - 4 * ratio, ratio, 4 * ratio);
  for (const mark of marks.major) {
    const x = Math.round(pixelOf(view, sheet, mark.time));
    context.fillStyle = colours("faint");
    context.fillRect(x, height - 9 * ratio, ratio, 9 * ratio);
    context.fillStyle = colours("muted");
    context.fillText(mark.label, x + 4 * ratio, height - 8 * ratio);
  }
  return marks.base;
}

/** Faint lines at the labelled times, below the boxes. */
export function paintGrid(sheet: Sheet, view: View, colours: Colours): void {
  const { context, ratio } = sheet;
  context.fillStyle = colours("line");
  context.globalAlpha = 0.6;
  for (const mark of ticks(view, sheet.width / ratio).major)
    context.fillRect(Math.round(pixelOf(view, sheet, mark.time)), 0, ratio, sheet.height);
  context.globalAlpha = 1;
}

/** The whole trace in a few lines: one for each track, coloured by what ran. */
export function paintWhole(sheet: Sheet, tracks: readonly Boxes[], whole: View, palette: Palette): void {
  const { context, width, height, ratio } = sheet;
  clear(sheet);
  const line = Math.max(Math.floor((height - 2 * ratio) / Math.max(tracks.length, 1)), ratio);
  tracks.forEach((boxes, index) => {
    const top = ratio + index * line;
    const scale = width / (whole.end - whole.start);
    const [first, last] = within(boxes, 0, whole);
    for (let place = first; place < last; place++) {
      const length = (boxes.duration[place] ?? 0) * scale;
      context.fillStyle = palette.fill[boxes.label[place] ?? 0] ?? "";
      context.globalAlpha =
        0.3 +
        0.6 * Math.min((boxes.busy[place] ?? 0) / Math.max(boxes.duration[place] ?? 0, boxes.pixel, 1), 1);
      context.fillRect(
        ((boxes.start[place] ?? 0) - whole.start) * scale,
        top,
        Math.max(length, ratio),
        line - (line > 3 ? 1 : 0),
      );
    }
  });
  context.globalAlpha = 1;
}

/** What of the whole is in view: the rest is dimmed. */
export function paintBrush(sheet: Sheet, view: View, whole: View, colours: Colours): void {
  const { context, width, height, ratio } = sheet;
  const left = Math.round(pixelOf(whole, sheet, view.start));
  const right = Math.max(Math.round(pixelOf(whole, sheet, view.end)), left + 2 * ratio);
  context.fillStyle = colours("page");
  context.globalAlpha = 0.62;
  context.fillRect(0, 0, left, height);
  context.fillRect(right, 0, width - right, height);
  context.globalAlpha = 1;
  context.strokeStyle = colours("accent");
  context.lineWidth = ratio;
  context.strokeRect(left + ratio / 2, ratio / 2, Math.max(right - left - ratio, ratio), height - ratio);
}

/** Marks at times along the lower edge of the overview: where something was found or is chosen. */
export function paintMarks(
  sheet: Sheet,
  whole: View,
  times: ArrayLike<number>,
  colour: string,
  tall: boolean,
): void {
  const { context, height, ratio } = sheet;
  context.fillStyle = colour;
  const size = (tall ? 8 : 5) * ratio;
  let last = Number.NEGATIVE_INFINITY;
  for (let index = 0; index < times.length; index++) {
    const x = Math.round(pixelOf(whole, sheet, times[index] ?? 0));
    if (x - last < ratio) continue;
    last = x;
    context.fillRect(x - ratio / 2, height - size, (tall ? 2 : 1) * ratio, size);
  }
}

/** The chosen stretch of time over the tracks. */
export function paintRange(sheet: Sheet, view: View, range: View, colours: Colours): void {
  const { context, height, ratio } = sheet;
  const left = Math.round(pixelOf(view, sheet, range.start));
  const right = Math.round(pixelOf(view, sheet, range.end));
  context.fillStyle = colours("accent");
  context.globalAlpha = 0.12;
  context.fillRect(left, 0, right - left, height);
  context.globalAlpha = 1;
  context.fillRect(left - ratio / 2, 0, ratio, height);
  context.fillRect(right - ratio / 2, 0, ratio, height);
}

/** A small sign with a text, kept within the sheet. */
export function paintSign(sheet: Sheet, text: string, x: number, top: number, colours: Colours): void {
  const { context, width, ratio, scale } = sheet;
  context.font = `600 ${11 * scale * ratio}px ${FONT}`;
  context.textBaseline = "middle";
  const room = context.measureText(text).width + 10 * ratio;
  const left = Math.min(Math.max(x - room / 2, 0), Math.max(width - room, 0));
  context.fillStyle = colours("accent");
  context.beginPath();
  context.roundRect(left, top, room, 16 * ratio, 3 * ratio);
  context.fill();
  context.fillStyle = colours("on-accent");
  context.fillText(text, left + 5 * ratio, top + 8.5 * ratio);
}

export function paintCursor(sheet: Sheet, x: number, colours: Colours): void {
  sheet.context.fillStyle = colours("faint");
  sheet.context.globalAlpha = 0.7;
  sheet.context.fillRect(Math.round(x), 0, sheet.ratio, sheet.height);
  sheet.context.globalAlpha = 1;
}

/** The moment that another page points to. */
export function paintPin(sheet: Sheet, x: number, colours: Colours): void {
  const { context, height, ratio } = sheet;
  context.fillStyle = colours("accent");
  for (let y = 0; y < height; y += 7 * ratio)
    context.fillRect(Math.round(x) - ratio / 2, y, 1.5 * ratio, 4 * ratio);
}

/** An outline around a span; `strong` for the chosen one. */
export function paintOutline(
  sheet: Sheet,
  view: View,
  lane: Lane,
  scroll: number,
  place: Place,
  strong: boolean,
  colours: Colours,
): void {
  const { context, width, ratio } = sheet;
  const x = pixelOf(view, sheet, place.start);
  const end = pixelOf(view, sheet, place.start + place.duration);
  if (end < -4 * ratio || x > width + 4 * ratio) return;
  const left = Math.max(Math.round(x), -6 * ratio);
  const right = Math.min(Math.max(Math.round(end), left + 2 * ratio), width + 6 * ratio);
  const top = Math.round((rowTop(lane, place.row) - scroll) * ratio);
  const bottom = Math.round((rowTop(lane, place.row) + lane.rowHeight - scroll) * ratio);
  const line = (strong ? 2 : 1) * ratio;
  context.lineWidth = line;
  if (strong) {
    // A rim of the background keeps the outline apart from boxes of any colour.
    context.strokeStyle = colours("surface");
    context.lineWidth = line + 2 * ratio;
    context.strokeRect(left - ratio, top - ratio, right - left + ratio, bottom - top + ratio);
    context.lineWidth = line;
  }
  context.strokeStyle = colours("text");
  context.strokeRect(left - ratio, top - ratio, right - left + ratio, bottom - top + ratio);
}

/** Lines from causes to effects. `where` gives the middle of a row in CSS pixels, or null where it is not shown. */
export function paintArrows(
  sheet: Sheet,
  view: View,
  arrows: readonly Arrow[],
  where: (place: Place) => number | null,
  strong: boolean,
  colours: Colours,
): void {
  const { context, width, ratio } = sheet;
  context.strokeStyle = colours("text");
  context.fillStyle = colours("text");
  context.lineWidth = (strong ? 1.5 : 1) * ratio;
  // The more there are, the fainter each: a bundle must not hide what it ties.
  context.globalAlpha = strong ? 0.85 : Math.min(Math.max(14 / arrows.length, 0.09), 0.4);
  for (const arrow of arrows) {
    const fromY = where(arrow.from);
    const toY = where(arrow.to);
    if (fromY === null || toY === null) continue;
    const x1 = pixelOf(view, sheet, arrow.from.start);
    const x2 = pixelOf(view, sheet, arrow.to.start);
    if (Math.max(x1, x2) < 0 || Math.min(x1, x2) > width) continue;
    const y1 = fromY * ratio;
    const y2 = toY * ratio;
    const bend = Math.min(Math.max(Math.abs(x2 - x1) / 2, 18 * ratio), 140 * ratio);
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2 - 3 * ratio, y2);
    context.stroke();
    if (!strong && arrows.length > 120) continue;
    const size = (strong ? 5 : 3.5) * ratio;
    context.beginPath();
    context.moveTo(x2, y2);
    context.lineTo(x2 - size * 1.4, y2 - size * 0.8);
    context.lineTo(x2 - size * 1.4, y2 + size * 0.8);
    context.fill();
  }
  context.globalAlpha = 1;
}
