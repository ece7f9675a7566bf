/** What a window of a track holds, as it is drawn: boxes by row, in order of time. */

import type { Columns, Source } from "../source/source";
import { lowest } from "../source/window";
import type { View } from "./view";

type Numbers = Float64Array;

/** The boxes of one track in one stretch of time, as a source answered. */
export interface Boxes {
  /** The stretch of time that was requested. */
  readonly view: View;
  /** Nanoseconds of one pixel of the answer; what is thinner was put together. */
  readonly pixel: number;
  /** True where every box is one span: looking closer shows nothing new. */
  readonly whole: boolean;
  /** Row r has the boxes from `rows[r]` up to `rows[r + 1]`. */
  readonly rows: Int32Array;
  readonly start: Numbers;
  readonly duration: Numbers;
  /** How much of the duration something ran. */
  readonly busy: Numbers;
  readonly count: Numbers;
  /** The span, the first of them, or -1 for what is no span. */
  readonly span: Numbers;
  /** What it is, as a place among the labels. */
  readonly label: Numbers;
}

/** Numbers a kind and a name of a box. */
export type LabelOf = (kind: string, name: string) => number;

/** Ask what lies in a stretch of time, in so many pixels. */
export async function windowOf(
  source: Source,
  view: View,
  width: number,
  tracks: readonly number[],
  labelOf: LabelOf,
): Promise<Map<number, Boxes>> {
  const answer = await source.window({ ...view, width, tracks });
  return split(answer, tracks, view, (view.end - view.start) / width, labelOf);
}

/** Split the answer of a window into its tracks; a track that has nothing there gets an empty one. */
export function split(
  answer: Columns,
  tracks: readonly number[],
  view: View,
  pixel: number,
  labelOf: LabelOf,
): Map<number, Boxes> {
  const size = answer.rows;
  const [track, row, start, duration, busy, count, span] = [
    "track",
    "row",
    "start",
    "duration",
    "busy",
    "count",
    "span",
  ].map((name) => Float64Array.from(answer.numbers(name))) as [
    Numbers,
    Numbers,
    Numbers,
    Numbers,
    Numbers,
    Numbers,
    Numbers,
  ];
  const label = labelled(answer, labelOf);
  const made = new Map<number, Boxes>();
  /** The boxes from one place of the answer up to another: one track's. */
  const gather = (id: number, first: number, last: number) => {
    const rows = new Int32Array(last > first ? (row[last - 1] as number) + 2 : 1);
    for (let index = 1; index < rows.length; index++) rows[index] = lowest(row, first, last, index) - first;
    const part = (values: Numbers) => values.subarray(first, last);
    const counts = part(count);
    made.set(id, {
      view,
      pixel,
      whole: counts.every((one) => one === 1),
      rows,
      start: part(start),
      duration: part(duration),
      busy: part(busy),
      count: counts,
      span: part(span),
      label: part(label),
    });
  };
  for (let first = 0; first < size; ) {
    const id = track[first] as number;
    let last = first + 1;
    let ordered = !made.has(id);
    for (; last < size && track[last] === id; last++) {
      const back = (row[last] as number) - (row[last - 1] as number);
      ordered &&= back > 0 || (back === 0 && (start[last] as number) >= (start[last - 1] as number));
    }
    if (!ordered) throw new Error("the boxes of a track are not in order");
    gather(id, first, last);
    first = last;
  }
  for (const id of tracks) if (!made.has(id)) gather(id, 0, 0);
  return made;
}

/** The label of each row. Both texts have few values, so few pairs are looked up. */
function labelled(answer: Columns, labelOf: LabelOf): Numbers {
  const names = answer.coded("name");
  const kinds = answer.coded("kind");
  const known: number[] = [];
  return Float64Array.from({ length: answer.rows }, (_, index) => {
    const name = names.codes[index] as number;
    const kind = kinds.codes[index] as number;
    const pair = kind * names.texts.length + name;
    known[pair] ??= labelOf(kinds.texts[kind] ?? "", names.texts[name] ?? "");
    return known[pair];
  });
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

/** How many rows have a box in a stretch of time, with those above them. */
export function rowsWithin(boxes: Boxes, view: View): number {
  for (let row = boxes.rows.length - 2; row >= 0; row--) {
    const [first, last] = within(boxes, row, view);
    if (last > first) return row + 1;
  }
  return 0;
}

export function endOf(boxes: Boxes, index: number): number {
  return (boxes.start[index] as number) + (boxes.duration[index] as number);
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
    const start = boxes.start[index] as number;
    const away = Math.max(start - time, time - endOf(boxes, index), 0);
    if (away < distance || (away === 0 && best < 0)) {
      best = index;
      distance = away;
    }
  }
  return best;
}
