/**
 * What is visible of rows in a window, at the level of detail of a screen: for each pixel of a row what begins in it. This is
 * the one computation that is also written in Python (`viewer/timeline/window.py`), because a report has no server; both are
 * tested with `tests/golden/viewer_window.json`.
 */

import { type Coded, type Columns, made, type WindowQuery } from "./source";

/** Items by row and then by start; those of one row never overlap. */
export interface Rows {
  /** Where each row begins in the other columns, and where the last one ends. */
  readonly edges: Int32Array;
  readonly start: Float64Array;
  readonly duration: Float64Array;
  /** The durations of all items of the same row before each. */
  readonly before: Float64Array;
}

/** Items in order of their rows, and in which order that is. */
export interface Laid extends Rows {
  readonly order: Int32Array;
}

/** What is seen: the row of each thing, its first item, and how many items it stands for. */
export interface Seen {
  readonly row: number[];
  readonly item: number[];
  readonly count: number[];
}

/** Put items in order of their rows, of which there are `rows`, and of time. */
export function rowsOf(
  row: ArrayLike<number>,
  start: Float64Array,
  duration: Float64Array,
  rows: number,
): Laid {
  const size = start.length;
  const edges = new Int32Array(rows + 1);
  for (let item = 0; item < size; item++) (edges[(row[item] as number) + 1] as number)++;
  for (let index = 0; index < rows; index++)
    edges[index + 1] = (edges[index] as number) + (edges[index + 1] as number);
  const order = new Int32Array(size);
  const next = edges.slice();
  for (let item = 0; item < size; item++) {
    const at = next[row[item] as number] as number;
    order[at] = item;
    next[row[item] as number] = at + 1;
  }
  for (let index = 0; index < rows; index++) inOrder(order.subarray(edges[index], edges[index + 1]), start);
  const laid = { edges, order, start: new Float64Array(size), duration: new Float64Array(size) };
  const before = new Float64Array(size);
  for (let index = 0; index < rows; index++) {
    let sum = 0;
    for (let at = edges[index] as number; at < (edges[index + 1] as number); at++) {
      const item = order[at] as number;
      laid.start[at] = start[item] as number;
      laid.duration[at] = duration[item] as number;
      before[at] = sum;
      sum += duration[item] as number;
    }
  }
  return { ...laid, before };
}

/** Sort a row by start; nearly all rows stand so already. */
function inOrder(order: Int32Array, start: Float64Array): void {
  const after = (a: number, b: number) => (start[a] as number) - (start[b] as number) || a - b;
  for (let at = 1; at < order.length; at++) {
    if (after(order[at] as number, order[at - 1] as number) < 0) {
      order.sort(after);
      return;
    }
  }
}

/** The first whole nanosecond of each pixel of a window, and of what comes after the last one. */
export function pixelEdges(start: number, end: number, width: number): Float64Array {
  const edges = new Float64Array(width + 1);
  for (let pixel = 0; pixel <= width; pixel++)
    edges[pixel] = Math.ceil(start + (pixel * (end - start)) / width);
  return edges;
}

/** The first place from `from` up to `to` whose value is not below `value`; with `beyond`, whose value is above it. */
export function lowest(
  values: ArrayLike<number>,
  from: number,
  to: number,
  value: number,
  beyond = false,
): number {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >>> 1;
    const found = values[middle] as number;
    if (found < value || (beyond && found === value)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Items that begin in the same pixel of a row are seen as one, but the last of them by itself where it is wider than a
 * pixel. What begins before the window and reaches into it is seen too.
 */
export function look(
  rows: Rows,
  first: number,
  count: number,
  start: number,
  end: number,
  width: number,
): Seen {
  const pixels = pixelEdges(start, end, width);
  const wide = (end - start) / width;
  const seen: Seen = { row: [], item: [], count: [] };
  const add = (row: number, item: number, many: number) => {
    seen.row.push(row);
    seen.item.push(item);
    seen.count.push(many);
  };
  for (let row = first; row < first + count; row++) {
    const low = rows.edges[row];
    const high = rows.edges[row + 1];
    if (low === undefined || high === undefined || low === high) continue;
    if ((rows.start[low] as number) >= (pixels[width] as number)) continue;
    let place = lowest(rows.start, low, high, pixels[0] as number);
    const before = place - 1;
    if (before >= low && (rows.start[before] as number) + (rows.duration[before] as number) > start)
      add(row, before, 1);
    while (place < high) {
      const pixel = lowest(pixels, 0, pixels.length, rows.start[place] as number, true) - 1;
      if (pixel >= width) break;
      const beyond = lowest(rows.start, place, high, pixels[pixel + 1] as number);
      const many = beyond - place;
      if (many > 1 && (rows.duration[beyond - 1] as number) > wide) {
        add(row, place, many - 1);
        add(row, beyond - 1, 1);
      } else add(row, place, many);
      place = beyond;
    }
  }
  return seen;
}

/** The items of the timeline of a report. */
export interface Items {
  readonly rows: Laid;
  readonly name: Coded;
  readonly kind: Coded;
  /** The span that each is, or -1. */
  readonly span: ArrayLike<number>;
  /** Where the rows of each track are. */
  readonly tracks: ReadonlyMap<number, { first: number; count: number }>;
}

/** Nobody reads more of a name in a box or a tooltip. */
const LONGEST_NAME = 2000;

/** The response to `window`, from items. */
export function windowOf(items: Items, { start, end, width, tracks }: WindowQuery): Columns {
  const { rows } = items;
  const names = ["track", "row", "start", "duration", "busy", "count", "span"] as const;
  const found = Object.fromEntries(names.map((name) => [name, [] as number[]])) as Record<
    (typeof names)[number],
    number[]
  >;
  const places: number[] = [];
  for (const id of tracks) {
    const { first, count } = items.tracks.get(id) ?? { first: 0, count: 0 };
    const seen = look(rows, first, count, start, end, width);
    seen.item.forEach((at, index) => {
      const many = seen.count[index] as number;
      const last = at + many - 1;
      const item = rows.order[at] as number;
      const [begin, length] = [rows.start[at] as number, rows.duration[last] as number];
      found.track.push(id);
      found.row.push((seen.row[index] as number) - first);
      found.start.push(begin);
      found.duration.push((rows.start[last] as number) + length - begin);
      found.busy.push((rows.before[last] as number) + length - (rows.before[at] as number));
      found.count.push(many);
      found.span.push(items.span[item] as number);
      places.push(item);
    });
  }
  const coded = ({ codes, texts }: Coded) => ({ codes: places.map((item) => codes[item] as number), texts });
  return made({ ...found, name: coded(items.name), kind: coded(items.kind) });
}

/** A name as a window has it. */
export function shortened(name: string): string {
  return name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME)}…` : name;
}
