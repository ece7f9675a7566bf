/** Finds the spans beside a span: before and after it in its row, around it and in it. */

import type { Source } from "../source/source";
import { clamped, type View } from "./view";

export type Side = "before" | "after" | "outer" | "inner";

export interface Known {
  span: number;
  track: number;
  row: number;
  start: number;
  duration: number;
}

const PIXELS = 2000;

/** The span beside another one, or null where there is none. It is asked for in ever wider stretches. */
export async function neighbour(source: Source, of: Known, side: Side, whole: View): Promise<number | null> {
  const { start } = of;
  const end = start + of.duration;
  if (side === "outer")
    return of.row === 0 ? null : at(source, of, { start, end }, of.row - 1, "first", whole);
  if (side === "inner") return at(source, of, { start, end }, of.row + 1, "first", whole);
  for (let reach = Math.max(of.duration * 8, 1000); ; reach *= 30) {
    const view = side === "after" ? { start: end, end: end + reach } : { start: start - reach, end: start };
    const found = await at(source, of, view, of.row, side === "after" ? "next" : "last", whole);
    if (found !== null) return found;
    if (side === "after" ? view.end >= whole.end : view.start <= whole.start) return null;
  }
}

/** The first or last span of a row in a stretch of time; where spans come put together, a closer look is taken. */
async function at(
  source: Source,
  of: Known,
  wanted: View,
  row: number,
  which: "first" | "next" | "last",
  whole: View,
): Promise<number | null> {
  let view = clamped(wanted, whole);
  for (let look = 0; look < 12; look++) {
    const query = { start: view.start, end: view.end, width: PIXELS, tracks: String(of.track) };
    const answer = await source.columns("window", query);
    const rows = answer.numbers("row");
    const starts = answer.numbers("start");
    const durations = answer.numbers("duration");
    const spans = answer.numbers("span");
    let best = -1;
    for (let index = 0; index < answer.rows; index++) {
      if (rows[index] !== row || spans[index] === of.span || (spans[index] ?? -1) < 0) continue;
      const start = starts[index] ?? 0;
      const end = start + (durations[index] ?? 0);
      if (end < wanted.start || start > wanted.end) continue;
      if (which === "next" && start < wanted.start) continue;
      if (which === "last" && end > wanted.end) continue;
      const later = best >= 0 && start > (starts[best] ?? 0);
      if (best < 0 || later === (which === "last")) best = index;
    }
    if (best < 0) return null;
    // Of several in one pixel the first is named, which is the one looked for unless the last is.
    const together = answer.numbers("count")[best] ?? 1;
    if (together === 1 || which !== "last") return spans[best] ?? null;
    const start = starts[best] ?? 0;
    view = clamped({ start, end: start + (durations[best] ?? 0) }, whole);
  }
  return null;
}
