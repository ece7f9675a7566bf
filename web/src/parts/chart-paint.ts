/** Draws a chart on its canvas. */

import { moment, ticks } from "../timeline/ticks";
import { bytes } from "../units";
import type { ChartProps } from "./chart";
import { type Extent, marks, type Room, xOf, yOf } from "./chart-scale";
import { colour } from "./theme";

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
/** CSS pixels between two marks of an axis, at least. */
const APART = { x: 110, y: 40 };

export function paint(
  canvas: HTMLCanvasElement,
  props: ChartProps,
  stack: readonly ArrayLike<number | null>[],
  room: Room,
  extent: Extent,
): void {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(room.width * ratio);
  canvas.height = Math.round(room.height * ratio);
  const ctx = canvas.getContext("2d");
  if (!ctx) return;
  ctx.scale(ratio, ratio);
  ctx.font = FONT;
  axes(ctx, room, extent);
  ctx.save();
  ctx.beginPath();
  ctx.rect(room.left, room.top - 1, room.right - room.left, room.bottom - room.top + 1);
  ctx.clip();
  const { time, layers, lines } = props;
  // Each is filled down to zero, so the topmost comes first and those below cover it.
  for (let layer = layers.length - 1; layer >= 0; layer--) {
    const painted = colour(layers[layer]?.colour ?? "");
    ctx.fillStyle = painted;
    ctx.strokeStyle = painted;
    // The outline keeps in sight what is thinner than a pixel.
    ctx.lineWidth = 1;
    const values = stack[layer] ?? [];
    trace(ctx, time, values, room, extent);
    ctx.stroke();
    const zero = yOf(0, room, extent);
    ctx.lineTo(xOf(time[time.length - 1] ?? 0, room, extent), zero);
    ctx.lineTo(xOf(time[0] ?? 0, room, extent), zero);
    ctx.fill();
  }
  ctx.setLineDash([5, 3]);
  for (const line of lines) {
    ctx.strokeStyle = colour(line.colour);
    trace(ctx, time, line.values, room, extent);
    ctx.stroke();
  }
  ctx.restore();
  chosen(ctx, props, room, extent);
}

/** The way along values, each of which holds until the next; nothing where there is none. */
function trace(
  ctx: CanvasRenderingContext2D,
  time: ArrayLike<number>,
  values: ArrayLike<number | null>,
  room: Room,
  extent: Extent,
): void {
  ctx.beginPath();
  let before: number | undefined;
  for (let row = 0; row < time.length; row++) {
    const value = values[row];
    const x = xOf(time[row] ?? 0, room, extent);
    if (before !== undefined) ctx.lineTo(x, before);
    if (value === null || value === undefined || Number.isNaN(value)) {
      before = undefined;
      continue;
    }
    const y = yOf(value, room, extent);
    if (before === undefined) ctx.moveTo(x, y);
    else ctx.lineTo(x, y);
    before = y;
  }
}

function axes(ctx: CanvasRenderingContext2D, room: Room, extent: Extent): void {
  ctx.strokeStyle = colour("line");
  ctx.fillStyle = colour("muted");
  ctx.lineWidth = 1;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  const down = Math.max(2, Math.floor((room.bottom - room.top) / APART.y));
  for (const value of marks(extent.high, down)) {
    const y = Math.round(yOf(value, room, extent)) + 0.5;
    segment(ctx, room.left, y, room.right, y);
    ctx.fillText(bytes(value), room.left - 8, y);
  }
  ctx.textBaseline = "top";
  ctx.textAlign = "center";
  const along = ticks(extent, room.right - room.left, APART.x);
  for (const { time, label } of along.major) {
    const x = Math.round(xOf(time, room, extent)) + 0.5;
    segment(ctx, x, room.top, x, room.bottom);
    ctx.fillText(label, Math.min(x, room.width - ctx.measureText(label).width / 2), room.bottom + 8);
  }
  if (along.base !== null) {
    ctx.textAlign = "left";
    ctx.fillText(moment(along.base, along.step), 0, room.bottom + 8);
  }
}

/** The marks and the chosen time, over everything else. */
function chosen(ctx: CanvasRenderingContext2D, props: ChartProps, room: Room, extent: Extent): void {
  ctx.textBaseline = "top";
  ctx.fillStyle = colour("text");
  for (const mark of props.marks) {
    if (mark.time < extent.start || mark.time > extent.end) continue;
    const x = Math.round(xOf(mark.time, room, extent)) + 0.5;
    ctx.strokeStyle = colour("muted");
    ctx.lineWidth = 1;
    ctx.setLineDash([3, 3]);
    segment(ctx, x, room.top, x, room.bottom);
    ctx.setLineDash([]);
    const leftwards = x + ctx.measureText(mark.label).width + 8 > room.right;
    ctx.textAlign = leftwards ? "right" : "left";
    const at = leftwards ? x - 5 : x + 5;
    // A rim in the colour of the ground keeps the word readable over the layers.
    ctx.strokeStyle = colour("surface");
    ctx.lineWidth = 3;
    ctx.strokeText(mark.label, at, room.top + 1);
    ctx.fillText(mark.label, at, room.top + 1);
  }
  if (props.cursor < extent.start || props.cursor > extent.end) return;
  ctx.strokeStyle = colour("text");
  ctx.lineWidth = 2;
  const x = Math.round(xOf(props.cursor, room, extent));
  segment(ctx, x, room.top, x, room.bottom);
}

function segment(ctx: CanvasRenderingContext2D, x: number, y: number, toX: number, toY: number): void {
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}
