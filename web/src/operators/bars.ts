/** A histogram of durations on a logarithmic axis: where its bars and marks stand. */

import * as units from "../units";

export interface Durations {
  /** Where the bars begin and the last one ends, each longer than the one before. */
  edges_ns: number[];
  counts: number[];
  calls: number;
  total_ns: number;
  mean_ns: number | null;
  min_ns: number | null;
  median_ns: number | null;
  p95_ns: number | null;
  max_ns: number | null;
}

export interface Bar {
  low: number;
  high: number;
  count: number;
  /** From the left of the axis to its right, 0 to 1. */
  left: number;
  right: number;
  /** Of the highest bar, 0 to 1. */
  height: number;
}

/** What takes no time stands where half a nanosecond would be. */
const LEAST_NS = 0.5;

/** Where a duration stands on the axis, 0 to 1. */
export function place(durations: Durations, ns: number): number {
  const edges = durations.edges_ns;
  const low = Math.log(Math.max(edges[0] ?? 1, LEAST_NS));
  const high = Math.log(Math.max(edges.at(-1) ?? 1, LEAST_NS));
  if (high <= low) return 0.5;
  return Math.min(1, Math.max(0, (Math.log(Math.max(ns, LEAST_NS)) - low) / (high - low)));
}

export function bars(durations: Durations): Bar[] {
  const { edges_ns, counts } = durations;
  const most = Math.max(1, ...counts);
  return counts.map((count, index) => {
    const low = edges_ns[index] ?? 0;
    const high = edges_ns[index + 1] ?? low + 1;
    const left = place(durations, low);
    return { low, high, count, left, right: place(durations, high), height: count / most };
  });
}

/** Round durations on the axis with enough room between them: 1, 2, 5, 10, 20 ... and fewer where there is no room. */
export function marks(durations: Durations, room: number): { at: number; text: string }[] {
  const low = Math.max(durations.edges_ns[0] ?? 1, 1);
  const high = durations.edges_ns.at(-1) ?? 1;
  if (high <= low) return [];
  let found: { at: number; text: string }[] = [];
  for (const steps of [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    found = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
      for (const step of steps) {
        const value = step * 10 ** power;
        if (value >= low && value <= high) found.push({ at: place(durations, value), text: round(value) });
      }
    if (found.every((mark, index) => mark.at - (found[index - 1]?.at ?? -1) >= room)) return found;
  }
  let last = -1;
  return found.filter(({ at }) => {
    if (at - last < room) return false;
    last = at;
    return true;
  });
}

/** `20 µs`: a round duration has no digits to spare. */
function round(ns: number): string {
  return units
    .time(ns)
    .replace(/\.0+ /, " ")
    .replace(/(\.\d*[1-9])0+ /, "$1 ");
}

/** The bar that an address names by its edges. */
export function barOf(found: readonly Bar[], text: string | undefined): Bar | undefined {
  return found.find((bar) => nameOf(bar) === text);
}

export function nameOf(bar: Bar): string {
  return `${bar.low}-${bar.high}`;
}

/** `12 calls from 1.00 µs to 1.20 µs`. */
export function described(bar: Bar): string {
  const calls = `${units.count(bar.count)} ${bar.count === 1 ? "call" : "calls"}`;
  return bar.high - bar.low <= 1
    ? `${calls} of ${units.time(bar.low)}`
    : `${calls} from ${units.time(bar.low)} to ${units.time(bar.high)}`;
}
