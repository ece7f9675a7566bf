/** `range`: what ran between two moments, by name; as in `viewer/_range.py`. */

import { lowest } from "../source/lod";
import type { Columns, Query } from "../source/source";
import type { Spans, Track } from "./spans";
import { made, stretch, text } from "./window";

export function range(spans: Spans, query: Query): Columns {
  const asked = stretch(query);
  const [start, end] = [rounded(asked.start), rounded(asked.end)];
  const inside = (place: number) =>
    Math.min((spans.start[place] as number) + (spans.duration[place] as number), end) -
    Math.max(spans.start[place] as number, start);
  const chosen = spans.chosen(text(query, "tracks")).filter((track) => track.store.spans);
  const ran = chosen.flatMap((track) => running(track, start, end));
  const own = ownWithin(spans, ran, start, end, inside);

  const groups = new Map<
    number,
    { name: number; kind: number; count: number; total: number; self: number }
  >();
  let all = 0;
  ran.forEach((place, index) => {
    const [name, kind] = [spans.name[place] as number, spans.kind[place] as number];
    const key = name * 256 + kind;
    let group = groups.get(key);
    if (!group) {
      group = { name, kind, count: 0, total: 0, self: 0 };
      groups.set(key, group);
    }
    group.count += 1;
    group.total += inside(place);
    group.self += own[index] as number;
    all += own[index] as number;
  });
  const rows = [...groups.values()].sort(
    (a, b) => b.self - a.self || b.total - a.total || a.name - b.name || a.kind - b.kind,
  );
  const columns = {
    name: { codes: rows.map((row) => row.name), texts: spans.names },
    kind: { codes: rows.map((row) => row.kind), texts: spans.kinds },
    count: rows.map((row) => row.count),
    total_ns: rows.map((row) => row.total),
    self_ns: rows.map((row) => row.self),
    share: rows.map((row) => (all ? (100 * row.self) / all : null)),
  };
  return made(columns, rows.length, spans.facts.tables["range"]);
}

/** The items of some rows that run between two moments. */
function running(track: Pick<Track, "store" | "first" | "count">, start: number, end: number): number[] {
  const { rows } = track.store;
  const found: number[] = [];
  for (let row = track.first; row < track.first + track.count; row++) {
    const low = rows.edges[row];
    const high = rows.edges[row + 1];
    if (low === undefined || high === undefined) continue;
    let begin = lowest(rows.start, low, high, start);
    const beyond = lowest(rows.start, begin, high, end);
    // Only the last of those that began before can reach into it: they do not overlap.
    const before = begin - 1;
    if (before >= low && (rows.start[before] as number) + (rows.duration[before] as number) > start)
      begin = before;
    for (let at = begin; at < beyond; at++) found.push(rows.order[at] as number);
  }
  return found;
}

/** For each of some spans its time in the range without that of the spans inside it. */
function ownWithin(
  spans: Spans,
  ran: readonly number[],
  start: number,
  end: number,
  inside: (place: number) => number,
): Float64Array {
  const own = Float64Array.from(ran, (place) => spans.own[place] as number);
  const cut = new Map<number, number>();
  ran.forEach((place, index) => {
    const time = inside(place);
    if (time === spans.duration[place]) return;
    cut.set(place, index);
    own[index] = spans.beside[place] ? 0 : time;
  });
  const store = spans.stores[0];
  if (!cut.size || !store) return own;
  // Of a span that is cut, only the part of its children that lies in the range is not its own.
  for (const place of running({ store, first: 0, count: store.rows.edges.length - 1 }, start, end)) {
    for (const outer of spans.outer(place)) {
      const index = cut.get(outer);
      if (index !== undefined) own[index] = (own[index] as number) - inside(place);
    }
  }
  return own;
}

/** To the nearest whole number, halves to the even one, as Python rounds. */
function rounded(value: number): number {
  const near = Math.round(value);
  return near % 2 && near - value === 0.5 ? near - 1 : near;
}
