/** What a window of a track holds, as it is drawn: boxes by row, in order of time. */

import type { Columns } from "../source/source";
import type { View } from "./view";

/** The boxes of one track in one stretch of time, as a source answered. */
export interface Boxes {
  /** The stretch of time that was asked for. */
  readonly view: View;
  /** Nanoseconds of one pixel of the answer; what is thinner was put together. */
  readonly pixel: number;
  /** True where every box is one span: looking closer shows nothing new. */
  readonly whole: boolean;
  /** Row r has the boxes from `rows[r]` up to `rows[r + 1]`. */
  readonly rows: Int32Array;
  readonly start: Float64Array;
  readonly duration: Float64Array;
  /** How much of the duration something ran. */
  readonly busy: Float64Array;
  readonly count: Int32Array;
  /** The span, the first of them, or -1 for what is no span. */
  readonly span: Int32Array;
  /** What it is, as a place among the labels. */
  readonly label: Int32Array;
}

/** Numbers a kind and a name of a box. */
export type LabelOf = (kind: string, name: string) => number;

/** Split the answer of a window into its tracks; a track that has nothing there gets an empty one. */
export function split(
  answer: Columns,
  tracks: readonly number[],
  view: View,
  pixel: number,
  labelOf: LabelOf,
): Map<number, Boxes> {
  const size = answer.rows;
  const track = answer.numbers("track");
  const row = answer.numbers("row");
  const start = floats(answer.numbers("start"), size);
  const parts = {
    start,
    duration: floats(answer.numbers("duration"), size),
    busy: floats(answer.numbers("busy"), size),
    count: integers(answer.numbers("count"), size),
    span: integers(answer.numbers("span"), size),
    label: labelled(answer, labelOf),
  };
  const made = new Map<number, Boxes>();
  for (let first = 0; first < size; ) {
    const id = track[first] ?? 0;
    if (made.has(id)) throw new Error("the boxes of a track do not follow each other");
    let last = first + 1;
    while (last < size && track[last] === id) {
      const back = (row[last] ?? 0) - (row[last - 1] ?? 0);
      if (back < 0 || (back === 0 && (start[last] ?? 0) < (start[last - 1] ?? 0)))
        throw new Error("the boxes of a track are not in order");
      last += 1;
    }
    made.set(id, gathered(parts, row, first, last, view, pixel));
    first = last;
  }
  for (const id of tracks) if (!made.has(id)) made.set(id, gathered(parts, row, 0, 0, view, pixel));
  return made;
}

type Parts = Pick<Boxes, "start" | "duration" | "busy" | "count" | "span" | "label">;

/** The boxes from one place of the answer up to another: one track's. */
function gathered(
  parts: Parts,
  row: ArrayLike<number>,
  first: number,
  last: number,
  view: View,
  pixel: number,
): Boxes {
  const rows = new Int32Array(last > first ? (row[last - 1] ?? 0) + 2 : 1);
  for (let index = 1, filled = first; index < rows.length; index++) {
    while (filled < last && (row[filled] ?? 0) < index) filled += 1;
    rows[index] = filled - first;
  }
  const count = parts.count.subarray(first, last);
  return {
    view,
    pixel,
    whole: count.every((one) => one === 1),
    rows,
    start: parts.start.subarray(first, last),
    duration: parts.duration.subarray(first, last),
    busy: parts.busy.subarray(first, last),
    count,
    span: parts.span.subarray(first, last),
    label: parts.label.subarray(first, last),
  };
}

/** The label of each row. Both texts have few values, so few pairs are looked up. */
function labelled(answer: Columns, labelOf: LabelOf): Int32Array {
  const names = answer.coded("name");
  const kinds = answer.coded("kind");
  const known = new Int32Array(names.texts.length * kinds.texts.length).fill(-1);
  const labels = new Int32Array(answer.rows);
  for (let index = 0; index < answer.rows; index++) {
    const name = names.codes[index] ?? 0;
    const kind = kinds.codes[index] ?? 0;
    const pair = kind * names.texts.length + name;
    let label = known[pair] ?? -1;
    if (label < 0) {
      label = labelOf(kinds.texts[kind] ?? "", names.texts[name] ?? "");
      known[pair] = label;
    }
    labels[index] = label;
  }
  return labels;
}

function floats(values: ArrayLike<number>, size: number): Float64Array {
  return values instanceof Float64Array ? values.subarray(0, size) : Float64Array.from(values);
}

function integers(values: ArrayLike<number>, size: number): Int32Array {
  return values instanceof Int32Array ? values.subarray(0, size) : Int32Array.from(values);
}

/** The boxes of a row that reach into a stretch of time: from the first up to, not including, the second number. */
export function within(boxes: Boxes, row: number, view: View): readonly [number, number] {
  const from = boxes.rows[row];
  const to = boxes.rows[row + 1];
  if (from === undefined || to === undefined) return [0, 0];
  // Boxes of one row follow each other, so only the one before the first start can reach in.
  let first = lowest(boxes.start, from, to, view.start);
  if (first > from && endOf(boxes, first - 1) > view.start) first -= 1;
  return [first, lowest(boxes.start, first, to, view.end)];
}

export function endOf(boxes: Boxes, index: number): number {
  return (boxes.start[index] ?? 0) + (boxes.duration[index] ?? 0);
}

/** The box of a row at a time, or the nearest one not farther than `reach`; -1 where there is none. */
export function boxAt(boxes: Boxes, row: number, time: number, reach: number): number {
  const from = boxes.rows[row];
  const to = boxes.rows[row + 1];
  if (from === undefined || to === undefined || from === to) return -1;
  const after = lowest(boxes.start, from, to, time);
  let best = -1;
  let distance = reach;
  for (const index of [after - 1, after]) {
    if (index < from || index >= to) continue;
    const start = boxes.start[index] ?? 0;
    const away = Math.max(start - time, time - endOf(boxes, index), 0);
    if (away < distance || (away === 0 && best < 0)) {
      best = index;
      distance = away;
    }
  }
  return best;
}

/** The first place in a sorted part whose value is at least this. */
function lowest(values: Float64Array, from: number, to: number, wanted: number): number {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((values[middle] ?? 0) < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}
