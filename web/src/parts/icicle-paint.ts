/** Draws boxes in rows. It knows where boxes are, what stands in them and which color they have, not what they mean. */

import { Fitting } from "../timeline/names";
import { hashed, luminance, parsedColor, shaded } from "../timeline/palette";
import type { Boxes } from "./icicle-rows";
import { color } from "./theme";

export const FONT =
  'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", sans-serif';

/** What stands in a box, and its color: a color of the theme by name, and a text that chooses a shade of it. */
export interface Look {
  text: string;
  role: string;
  shade: string;
}

/** What is in sight, in the units of the boxes. */
export interface Sight {
  start: number;
  end: number;
}

export interface Picture {
  boxes: Boxes;
  looks: readonly Look[];
  sight: Sight;
  /** How many CSS pixels are scrolled out of sight above. */
  scroll: number;
  rowHeight: number;
  /** The size of the canvas in CSS pixels. */
  width: number;
  height: number;
  ratio: number;
  zoom: number;
  chosen: number;
  hovered: number;
  /** Which boxes are searched for; null where nothing is. */
  found: Uint8Array | null;
}

interface Colors {
  fill: string;
  ink: string;
}

export class IciclePainter {
  private readonly known = new Map<string, Colors>();
  private fitting = new Fitting(() => 0);
  private font = "";

  constructor(private readonly context: CanvasRenderingContext2D) {}

  /** Take all colors from the theme anew. */
  renew(): void {
    this.known.clear();
  }

  paint(picture: Picture): void {
    const { context } = this;
    const { boxes, ratio, width, height, rowHeight, scroll, chosen, hovered } = picture;
    sized(context.canvas, width, height, ratio);
    this.setFont(Math.min(rowHeight * 0.6, 15) * ratio);
    const first = Math.max(Math.floor(scroll / rowHeight), 0);
    const last = Math.min(Math.ceil((scroll + height) / rowHeight), boxes.rows);
    // Where the last box of each row ends: boxes thinner than a pixel share one.
    const drawn = new Int32Array(boxes.rows).fill(-1);
    for (let index = 0; index < boxes.row.length; index++) {
      const row = boxes.row[index] ?? 0;
      if (row >= first && row < last) this.box(picture, index, row, drawn);
    }
    if (chosen >= 0) this.outline(picture, chosen, 2);
    if (hovered >= 0 && hovered !== chosen) this.outline(picture, hovered, 1);
  }

  private box(picture: Picture, index: number, row: number, drawn: Int32Array): void {
    const { context } = this;
    const { ratio, found, looks } = picture;
    const [left, right] = edges(picture, index);
    const before = drawn[row] ?? -1;
    if (right <= Math.max(before, 0) || left >= picture.width * ratio) return;
    const from = Math.max(left, before);
    drawn[row] = Math.max(right, from + 1);
    const look = looks[index];
    if (!look) return;
    const { fill, ink } = this.colors(look);
    const [top, height] = rowEdges(picture, row);
    const wanted = found === null || found[index] === 1;
    // What is around the part that is looked at only says where one is.
    const around = picture.zoom >= 0 && index < picture.zoom && row < (picture.boxes.row[picture.zoom] ?? 0);
    context.globalAlpha = wanted ? (around ? 0.55 : 1) : 0.22;
    context.fillStyle = fill;
    const gap = right - from > 3 * ratio ? ratio : 0;
    context.fillRect(from, top, Math.max(right - from - gap, 1), height);
    const begin = Math.max(from, 0) + 5 * ratio;
    const text = this.fitting.fit(look.text, Math.min(right, picture.width * ratio) - begin - 4 * ratio);
    if (!text) return;
    context.globalAlpha = wanted ? 1 : 0.6;
    context.fillStyle = wanted && !around ? ink : color("text");
    context.fillText(text, begin, top + height / 2 + 0.5 * ratio);
    context.globalAlpha = 1;
  }

  private outline(picture: Picture, index: number, width: number): void {
    const { context } = this;
    const [left, right] = edges(picture, index);
    const [top, height] = rowEdges(picture, picture.boxes.row[index] ?? 0);
    const line = width * picture.ratio;
    const from = Math.max(left, 0);
    const to = Math.min(Math.max(right - picture.ratio, from + 3 * line), picture.width * picture.ratio);
    if (right < 0 || left > picture.width * picture.ratio) return;
    context.globalAlpha = 1;
    context.strokeStyle = color("text");
    context.lineWidth = line;
    context.strokeRect(from + line / 2, top + line / 2, to - from - line, height - line);
  }

  private colors(look: Look): Colors {
    const key = `${look.role} ${look.shade}`;
    let found = this.known.get(key);
    if (!found) {
      const rgb = shaded(parsedColor(color(look.role)), hashed(look.shade));
      found = {
        fill: `rgb(${rgb.join()})`,
        ink: luminance(rgb) > 0.2 ? color("on-span") : "#ffffff",
      };
      this.known.set(key, found);
    }
    return found;
  }

  private setFont(size: number): void {
    const font = `${size}px ${FONT}`;
    const { context } = this;
    context.font = font;
    context.textBaseline = "middle";
    if (font === this.font) return;
    this.font = font;
    this.fitting = new Fitting((text) => context.measureText(text).width);
  }
}

/** Makes a canvas empty, and as large as it is shown. */
function sized(canvas: HTMLCanvasElement, width: number, height: number, ratio: number): void {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
}

/** Where a box begins and ends, in pixels of the canvas. */
function edges(picture: Picture, index: number): [left: number, right: number] {
  const { boxes, sight, width, ratio } = picture;
  const scale = (width * ratio) / Math.max(sight.end - sight.start, Number.MIN_VALUE);
  const at = (value: number) => Math.round(Math.min(Math.max((value - sight.start) * scale, -1e6), 1e6));
  return [at(boxes.start[index] ?? 0), at(boxes.end[index] ?? 0)];
}

function rowEdges(picture: Picture, row: number): [top: number, height: number] {
  const { rowHeight, scroll, ratio } = picture;
  const top = Math.round((row * rowHeight - scroll) * ratio);
  const bottom = Math.round(((row + 1) * rowHeight - scroll) * ratio);
  return [top, bottom - top - Math.max(Math.round(ratio), 1)];
}
