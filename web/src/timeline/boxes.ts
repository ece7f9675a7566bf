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
  const track = answer.numbers("track");
  const row = answer.numbers("row");
  const places = new Map<number, number[]>(tracks.map((id) => [id, []]));
  for (let index = 0; index < answer.rows; index++) places.get(track[index] ?? -1)?.push(index);
  const labels = labelled(answer, labelOf);
  const start = answer.numbers("start");
  const made = new Map<number, Boxes>();
  for (const [id, found] of places) {
    found.sort((a, b) => (row[a] ?? 0) - (row[b] ?? 0) || (start[a] ?? 0) - (start[b] ?? 0));
    made.set(id, gathered(answer, found, labels, view, pixel));
  }
  return made;
}

function labelled(answer: Columns, labelOf: LabelOf): Int32Array {
  const names = answer.texts("name");
  const kinds = answer.texts("kind");
  // Neighbours often are alike, and both texts come from dictionaries: few pairs are looked up.
  const known = new Map<string, Map<string, number>>();
  const labels = new Int32Array(answer.rows);
  for (let index = 0; index < answer.rows; index++) {
    const kind = kinds[index] ?? "";
    const name = names[index] ?? "";
    let ofKind = known.get(kind);
    if (!ofKind) {
      ofKind = new Map();
      known.set(kind, ofKind);
    }
    let label = ofKind.get(name);
    if (label === undefined) {
      label = labelOf(kind, name);
      ofKind.set(name, label);
    }
    labels[index] = label;
  }
  return labels;
}

function gathered(
  answer: Columns,
  places: readonly number[],
  labels: Int32Array,
  view: View,
  pixel: number,
): Boxes {
  const row = answer.numbers("row");
  const size = places.length;
  const last = size ? (row[places[size - 1] ?? 0] ?? 0) : -1;
  const rows = new Int32Array(last + 2);
  for (let index = 0, filled = 0; index <= last + 1; index++) {
    while (filled < size && (row[places[filled] ?? 0] ?? 0) < index) filled += 1;
    rows[index] = filled;
  }
  const taken = <Kind extends Float64Array | Int32Array>(made: Kind, values: ArrayLike<number>): Kind => {
    for (let index = 0; index < size; index++) made[index] = values[places[index] ?? 0] ?? 0;
    return made;
  };
  const count = taken(new Int32Array(size), answer.numbers("count"));
  return {
    view,
    pixel,
    whole: count.every((one) => one === 1),
    rows,
    start: taken(new Float64Array(size), answer.numbers("start")),
    duration: taken(new Float64Array(size), answer.numbers("duration")),
    busy: taken(new Float64Array(size), answer.numbers("busy")),
    count,
    span: taken(new Int32Array(size), answer.numbers("span")),
    label: taken(new Int32Array(size), labels),
  };
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
