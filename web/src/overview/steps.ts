/** Steps and where their time went: the rows of the table `breakdown`, the bars they are drawn as, and their axis. */

import type { Columns } from "../source/source";

export interface Part {
  /** Its column in the table. */
  column: string;
  /** Its colour in the theme. */
  colour: string;
  /** What it is called on a device. */
  title: string;
  /** What it is called where the host computed. */
  onHost: string;
}

export const PARTS: readonly Part[] = [
  { column: "compute_ns", colour: "compute", title: "Compute", onHost: "Operators" },
  {
    column: "communication_ns",
    colour: "communication",
    title: "Communication",
    onHost: "Communication",
  },
  { column: "copy_ns", colour: "copy", title: "Copies", onHost: "Copies" },
  { column: "input_wait_ns", colour: "input", title: "Waiting for data", onHost: "Waiting for data" },
  { column: "cpu_bound_ns", colour: "cpu", title: "Waiting for CPU", onHost: "Python and other" },
  { column: "idle_ns", colour: "idle", title: "Idle", onHost: "Idle" },
];

/** The parts in which a device worked. */
export const WORKING = 3;

/** A device in one step, or in the whole trace where there are no steps. */
export interface Step {
  number: number | null;
  rank: number | null;
  device: string;
  start: number;
  duration: number;
  /** As in `PARTS`; together they are the duration. */
  parts: readonly number[];
  unrecorded: number;
}

export function stepsOf(table: Columns): Step[] {
  const number = table.values("step");
  const rank = table.values("rank");
  const device = table.texts("device");
  const start = table.numbers("start_ns");
  const duration = table.numbers("duration_ns");
  const unrecorded = table.numbers("unrecorded_ns");
  const parts = PARTS.map((part) => table.numbers(part.column));
  return Array.from({ length: table.rows }, (_, row) => ({
    number: (number[row] ?? null) as number | null,
    rank: (rank[row] ?? null) as number | null,
    device: device[row] ?? "",
    start: start[row] ?? 0,
    duration: duration[row] ?? 0,
    parts: parts.map((values) => values[row] ?? 0),
    unrecorded: unrecorded[row] ?? 0,
  }));
}

/** A device of a rank, with its steps in order of time. */
export interface Place {
  key: string;
  title: string;
  rank: number | null;
  device: string;
  steps: Step[];
}

export function placesOf(steps: readonly Step[]): Place[] {
  const places = new Map<string, Place>();
  for (const step of steps) {
    const key = `${step.rank ?? ""}/${step.device}`;
    let place = places.get(key);
    if (!place) {
      place = { key, title: placeTitle(step), rank: step.rank, device: step.device, steps: [] };
      places.set(key, place);
    }
    place.steps.push(step);
  }
  return [...places.values()].sort(
    (a, b) => (a.rank ?? -1) - (b.rank ?? -1) || a.device.localeCompare(b.device, "en", { numeric: true }),
  );
}

/** The steps that are compared: `leftOut` names others by rank and start, which hold what came before the loop. */
export function compared(steps: readonly Step[], leftOut: readonly LeftOut[]): Step[] {
  const keys = new Set(leftOut.map(([rank, start]) => `${rank}/${start}`));
  return keys.size ? steps.filter((step) => !keys.has(`${step.rank}/${step.start}`)) : [...steps];
}

export type LeftOut = readonly [rank: number | null, start: number];

export function placeTitle(step: { rank: number | null; device: string }): string {
  return step.rank === null ? step.device : `rank ${step.rank} · ${step.device}`;
}

/** What some steps come to together. */
export interface Sum {
  duration: number;
  parts: readonly number[];
  unrecorded: number;
}

export function summed(steps: readonly Step[]): Sum {
  const parts = PARTS.map(() => 0);
  let duration = 0;
  let unrecorded = 0;
  for (const step of steps) {
    duration += step.duration;
    unrecorded += step.unrecorded;
    step.parts.forEach((value, part) => {
      parts[part] = (parts[part] ?? 0) + value;
    });
  }
  return { duration, parts, unrecorded };
}

/** The share of time in which a device computed, communicated or copied, in percent. */
export function working(sum: Sum): number | null {
  if (sum.duration <= 0) return null;
  return (100 * sum.parts.slice(0, WORKING).reduce((a, b) => a + b, 0)) / sum.duration;
}

/** One bar: a step, or the mean of several that follow each other where there is no room for a bar each. */
export interface Bar {
  steps: readonly Step[];
  /** The mean of its steps. */
  duration: number;
  parts: readonly number[];
  unrecorded: number;
  least: number;
  most: number;
  start: number;
  end: number;
}

export function barOf(steps: readonly Step[]): Bar {
  const sum = summed(steps);
  const count = Math.max(steps.length, 1);
  let [least, most, start, end] = [Number.POSITIVE_INFINITY, 0, Number.POSITIVE_INFINITY, 0];
  for (const step of steps) {
    least = Math.min(least, step.duration);
    most = Math.max(most, step.duration);
    start = Math.min(start, step.start);
    end = Math.max(end, step.start + step.duration);
  }
  return {
    steps,
    duration: sum.duration / count,
    parts: sum.parts.map((part) => part / count),
    unrecorded: sum.unrecorded / count,
    least,
    most,
    start,
    end,
  };
}

/** Bars for some steps, at most about `room` of them: each of 1, 2, 5, 10, 20 ... steps. */
export function barsOf(steps: readonly Step[], room: number): Bar[] {
  const each = roundUp(steps.length / Math.max(room, 1));
  const bars: Bar[] = [];
  for (let first = 0; first < steps.length; first += each) bars.push(barOf(steps.slice(first, first + each)));
  return bars;
}

/** The next of 1, 2, 5, 10, 20, 50 ... */
export function roundUp(value: number): number {
  return value <= 1 ? 1 : rounded(value);
}

/** The top of the axis. A few bars far above all others are cut there. */
export function axisTop(bars: readonly Bar[]): number {
  const values = bars.map((bar) => bar.most).sort((a, b) => a - b);
  const largest = values[values.length - 1] ?? 0;
  const limit = values.length < 8 ? largest : quantile(values, 0.9) * 2.5;
  return largest <= limit ? largest * 1.05 : Math.max(...values.filter((value) => value <= limit)) * 1.15;
}

/** The value below which a share of ascending values lies; between two it is taken in proportion. */
export function quantile(ascending: readonly number[], share: number): number {
  if (ascending.length === 0) return Number.NaN;
  const at = share * (ascending.length - 1);
  const low = ascending[Math.floor(at)] ?? 0;
  const high = ascending[Math.ceil(at)] ?? 0;
  return low + (high - low) * (at - Math.floor(at));
}

/** Round values from 0 up to the top, about one for each `least` of `pixels`. */
export function marks(top: number, pixels: number, least = 44): number[] {
  if (!(top > 0)) return [];
  const step = rounded((top * least) / Math.max(pixels, 1));
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => index * step);
}

function rounded(value: number): number {
  const scale = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((times) => times * scale >= value * (1 - 1e-9)) ?? 10) * scale;
}

/** How many values lie in each of `bins` equal stretches from 0 to the top; those above it count in the last one. */
export function counted(values: readonly number[], top: number, bins: number): number[] {
  const counts = new Array<number>(bins).fill(0);
  if (!(top > 0)) return counts;
  for (const value of values) {
    const bin = Math.min(Math.max(Math.floor((value / top) * bins), 0), bins - 1);
    counts[bin] = (counts[bin] ?? 0) + 1;
  }
  return counts;
}

/** `Step 12`, `Steps 10 to 19`, `Whole trace`. */
export function barTitle(bar: Bar): string {
  const numbers = bar.steps.map((step) => step.number).filter((number) => number !== null);
  const [first, last] = [numbers[0], numbers[numbers.length - 1]];
  if (first === undefined) return "Whole trace";
  return first === last ? `Step ${first}` : `Steps ${first} to ${last}`;
}
