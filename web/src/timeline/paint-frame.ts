/** Draws what is around the tracks and over them: the time axis, the overview, outlines, the range and the arrows. */

import { type Boxes, within } from "./boxes";
import { type Lane, rowTop } from "./layout";
import type { Palette } from "./palette";
import { clear, fill, fontOf, pixelOf, type Sheet, upright } from "./sheet";
import { ticks } from "./ticks";
import type { View } from "./view";

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

/** The axis; returns where its labels count from, or null for the start of the trace. */
export function paintAxis(sheet: Sheet, view: View): number | null {
  const { context, height, ratio } = sheet;
  const { minor, major, base } = ticks(view, sheet.width / ratio);
  clear(sheet);
  context.font = fontOf(sheet, 11);
  context.textBaseline = "alphabetic";
  const mark = (time: number, color: string, length: number) => {
    const x = Math.round(pixelOf(view, sheet, time));
    fill(sheet, color, x, height - length * ratio, ratio, length * ratio);
    return x;
  };
  for (const time of minor) mark(time, "line", 4);
  for (const { time, label } of major) {
    const x = mark(time, "faint", 9);
    context.fillStyle = sheet.colors("muted");
    const from = x + 4 * ratio;
    // A label that would be cut off at the end says something else.
    if (from + context.measureText(label).width <= sheet.width)
      context.fillText(label, from, height - 8 * ratio);
  }
  return base;
}

/** Faint lines at the labelled times, below the boxes. */
export function paintGrid(sheet: Sheet, view: View): void {
  for (const { time } of ticks(view, sheet.width / sheet.ratio).major)
    upright(sheet, "line", pixelOf(view, sheet, time), 0.6);
}

/** The whole trace in a few lines: one for each track, colored by what ran. */
export function paintWhole(sheet: Sheet, tracks: readonly Boxes[], whole: View, palette: Palette): void {
  const { context, height, ratio } = sheet;
  const line = Math.max(Math.floor((height - 2 * ratio) / Math.max(tracks.length, 1)), ratio);
  const scale = sheet.width / (whole.end - whole.start);
  tracks.forEach((boxes, index) => {
    const [first, last] = within(boxes, 0, whole);
    for (let place = first; place < last; place++) {
      const duration = boxes.duration[place] as number;
      const busy = (boxes.busy[place] as number) / Math.max(duration, boxes.pixel, 1);
      context.fillStyle = palette.fill[boxes.label[place] as number] as string;
      context.globalAlpha = 0.3 + 0.6 * Math.min(busy, 1);
      const x = pixelOf(whole, sheet, boxes.start[place] as number);
      context.fillRect(x, ratio + index * line, Math.max(duration * scale, ratio), line - (line > 3 ? 1 : 0));
    }
  });
  context.globalAlpha = 1;
}

/** What of the whole is in view: the rest is dimmed. */
export function paintBrush(sheet: Sheet, view: View, whole: View): void {
  const { context, width, height, ratio } = sheet;
  const left = Math.round(pixelOf(whole, sheet, view.start));
  const right = Math.max(Math.round(pixelOf(whole, sheet, view.end)), left + 2 * ratio);
  fill(sheet, "page", 0, 0, left, height, 0.62);
  fill(sheet, "page", right, 0, width - right, height, 0.62);
  context.strokeStyle = sheet.colors("accent");
  context.lineWidth = ratio;
  context.strokeRect(left + ratio / 2, ratio / 2, Math.max(right - left - ratio, ratio), height - ratio);
}

/** Marks at times along the lower edge of the overview: where something was found or is chosen. */
export function paintMarks(
  sheet: Sheet,
  whole: View,
  times: ArrayLike<number>,
  color: string,
  tall: boolean,
): void {
  const { height, ratio } = sheet;
  const size = (tall ? 8 : 5) * ratio;
  let last = Number.NEGATIVE_INFINITY;
  for (let index = 0; index < times.length; index++) {
    const x = Math.round(pixelOf(whole, sheet, times[index] as number));
    if (x - last < ratio) continue;
    last = x;
    fill(sheet, color, x - ratio / 2, height - size, (tall ? 2 : 1) * ratio, size);
  }
}

/** The chosen stretch of time over the tracks. */
export function paintRange(sheet: Sheet, view: View, range: View): void {
  const left = Math.round(pixelOf(view, sheet, range.start));
  const right = Math.round(pixelOf(view, sheet, range.end));
  fill(sheet, "accent", left, 0, right - left, sheet.height, 0.12);
  upright(sheet, "accent", left);
  upright(sheet, "accent", right);
}

/** A small sign with a text on the axis, kept within it. */
export function paintSign(sheet: Sheet, text: string, x: number): void {
  const { context, width, ratio } = sheet;
  context.font = `600 ${fontOf(sheet, 11)}`;
  context.textBaseline = "middle";
  const room = context.measureText(text).width + 10 * ratio;
  const left = Math.min(Math.max(x - room / 2, 0), Math.max(width - room, 0));
  context.fillStyle = sheet.colors("accent");
  context.beginPath();
  context.roundRect(left, ratio, room, 16 * ratio, 3 * ratio);
  context.fill();
  context.fillStyle = sheet.colors("on-accent");
  context.fillText(text, left + 5 * ratio, 9.5 * ratio);
}

/** The moment that another page points to. */
export function paintPin(sheet: Sheet, x: number): void {
  const { height, ratio } = sheet;
  for (let y = 0; y < height; y += 7 * ratio)
    fill(sheet, "accent", Math.round(x) - ratio / 2, y, 1.5 * ratio, 4 * ratio);
}

/** An outline around a span; `strong` for the chosen one. */
export function paintOutline(
  sheet: Sheet,
  view: View,
  lane: Lane,
  scroll: number,
  place: Place,
  strong: boolean,
): void {
  const { context, width, ratio } = sheet;
  const x = pixelOf(view, sheet, place.start);
  const end = pixelOf(view, sheet, place.start + place.duration);
  if (end < -4 * ratio || x > width + 4 * ratio) return;
  const left = Math.max(Math.round(x), -6 * ratio);
  const right = Math.min(Math.max(Math.round(end), left + 2 * ratio), width + 6 * ratio);
  const [top, bottom] = [0, 1].map((more) =>
    Math.round((rowTop(lane, place.row + more) - scroll) * ratio),
  ) as [number, number];
  const outline = (color: string, line: number) => {
    context.strokeStyle = sheet.colors(color);
    context.lineWidth = line * ratio;
    context.strokeRect(left - ratio, top - ratio, right - left + ratio, bottom - top + ratio);
  };
  // A rim of the background keeps the outline apart from boxes of any color.
  if (strong) outline("surface", 4);
  outline("text", strong ? 2 : 1);
}

/** The time from the start of one span to that of another: a line between them, and one across the tracks at each. */
export function paintMeasure(
  sheet: Sheet,
  view: View,
  from: Place,
  to: Place,
  where: (place: Place) => number | null,
): void {
  const { ratio } = sheet;
  const [x1, x2] = [pixelOf(view, sheet, from.start), pixelOf(view, sheet, to.start)];
  for (const x of [x1, x2]) upright(sheet, "accent", x, 0.8);
  const y = Math.round((where(from) ?? where(to) ?? 0) * ratio);
  const [left, right] = [Math.max(Math.min(x1, x2), 0), Math.min(Math.max(x1, x2), sheet.width)];
  for (let x = left; x < right; x += 8 * ratio)
    fill(sheet, "accent", x, y, Math.min(5 * ratio, right - x), 1.5 * ratio);
}

/** Lines from causes to effects. `where` gives the middle of a row in CSS pixels, or null where it is not shown. */
export function paintArrows(
  sheet: Sheet,
  view: View,
  arrows: readonly Arrow[],
  where: (place: Place) => number | null,
  strong: boolean,
): void {
  const { context, width, ratio } = sheet;
  context.strokeStyle = context.fillStyle = sheet.colors("text");
  context.lineWidth = (strong ? 1.5 : 1) * ratio;
  // The more there are, the fainter each: a bundle must not hide what it ties.
  context.globalAlpha = strong ? 0.85 : Math.min(Math.max(14 / arrows.length, 0.09), 0.4);
  for (const { from, to } of arrows) {
    const fromY = where(from);
    const toY = where(to);
    if (fromY === null || toY === null) continue;
    const x1 = pixelOf(view, sheet, from.start);
    const x2 = pixelOf(view, sheet, to.start);
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
