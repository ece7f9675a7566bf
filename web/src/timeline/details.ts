/** What a source tells about one span. */

import type { Link, SpanFacts } from "../source/source";
import type { Arrow, Place } from "./paint-frame";

/** What is known of the chosen span: on its way, there, or not to be had. */
export interface Details {
  id: number;
  value?: SpanFacts;
  error?: string;
}

export function placeOf(of: Pick<Link, "track" | "row" | "start_ns" | "duration_ns">): Place {
  return { track: of.track, row: of.row, start: of.start_ns, duration: of.duration_ns };
}

/** Links that are drawn as lines; who is in whom can be seen without. */
const DRAWN = new Set(["launched by", "launched", "forward", "backward", "carried out by", "carries out"]);

/** The lines between a span and what it caused or was caused by, from the earlier to the later one. */
export function arrowsOf(span: SpanFacts): Arrow[] {
  const own = placeOf(span);
  return span.links
    .filter((link) => DRAWN.has(link.label))
    .map((link) => {
      const other = placeOf(link);
      return other.start < own.start ? { from: other, to: own } : { from: own, to: other };
    });
}

/** A value among the arguments as one line of text. */
export function argumentText(value: unknown): string {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "–");
  return text.length > 4000 ? `${text.slice(0, 4000)}…` : text;
}
