/** A canvas that is drawn on, in its own pixels. */

import type { View } from "./view";

export const FONT =
  'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", sans-serif';

/** Gives a color of the theme by its name. */
export type Colors = (name: string) => string;

export interface Sheet {
  readonly context: CanvasRenderingContext2D;
  width: number;
  height: number;
  /** So many of its pixels make a CSS pixel. */
  ratio: number;
  colors: Colors;
}

export function sheetOf(canvas: HTMLCanvasElement, colors: Colors): Sheet {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser cannot draw on a canvas");
  return { context, width: 1, height: 1, ratio: 1, colors };
}

/** Take the size from the page. */
export function fit(sheet: Sheet): void {
  const { canvas } = sheet.context;
  const box = canvas.getBoundingClientRect();
  sheet.ratio = devicePixelRatio || 1;
  sheet.width = Math.max(Math.round(box.width * sheet.ratio), 1);
  sheet.height = Math.max(Math.round(box.height * sheet.ratio), 1);
  resize(canvas, sheet);
}

/** A canvas that gets a size, even the one it has, is empty after. */
export function resize(
  canvas: HTMLCanvasElement,
  { width, height }: { width: number; height: number },
): void {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}

export function clear({ context, width, height }: Sheet): void {
  context.clearRect(0, 0, width, height);
}

/** Fill a rectangle with a color of the theme. */
export function fill(
  { context, colors }: Sheet,
  color: string,
  x: number,
  y: number,
  width: number,
  height: number,
  alpha = 1,
): void {
  context.fillStyle = colors(color);
  context.globalAlpha = alpha;
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
}

/** A line from the top to the bottom. */
export function upright(sheet: Sheet, color: string, x: number, alpha = 1): void {
  fill(sheet, color, Math.round(x), 0, sheet.ratio, sheet.height, alpha);
}

/** The font for a size in CSS pixels. Text on a canvas grows with that of the page. */
export function fontOf({ ratio }: Sheet, size: number): string {
  const scale = Math.min(Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 14, 1.2);
  return `${size * scale * ratio}px ${FONT}`;
}

/** The pixel of a time. */
export function pixelOf(view: View, sheet: Sheet, time: number): number {
  return ((time - view.start) / (view.end - view.start)) * sheet.width;
}
