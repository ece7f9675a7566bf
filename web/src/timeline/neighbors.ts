/** Finds the spans beside a span: before and after it in its row, around it and in it. */

import type { Source } from "../source/source";
import { type Boxes, endOf, windowOf } from "./boxes";
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

/** The span beside another one, or null where there is none. Ever wider stretches are searched. */
export async function neighbor(source: Source, of: Known, side: Side, whole: View): Promise<number | null> {
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
    const boxes = (await windowOf(source, view, PIXELS, [of.track], () => 0)).get(of.track) as Boxes;
    let best = -1;
    for (let index = boxes.rows[row] ?? 0; index < (boxes.rows[row + 1] ?? 0); index++) {
      if (boxes.span[index] === of.span || (boxes.span[index] as number) < 0) continue;
      const start = boxes.start[index] as number;
      const end = endOf(boxes, index);
      if (end < wanted.start || start > wanted.end) continue;
      if (which === "next" && start < wanted.start) continue;
      if (which === "last" && end > wanted.end) continue;
      if (best < 0 || which === "last") best = index;
    }
    if (best < 0) return null;
    // Of several in one pixel the first is named, which is the one looked for unless the last is.
    if (boxes.count[best] === 1 || which !== "last") return boxes.span[best] as number;
    view = clamped({ start: boxes.start[best] as number, end: endOf(boxes, best) }, whole);
  }
  return null;
}
