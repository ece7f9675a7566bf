/** `search`, `instances` and `histogram`, from the rows that a report carries. */

import { AnswerError, type Columns, type Query } from "../source/source";
import type { Facts } from "./facts";
import type { Spans, Store } from "./spans";
import { made, number, text } from "./window";

const MOST = 1000;
const BARS = 40;
/** All steps together, as the table of operators names them. */
const STEPS = "ProfilerStep*";

interface Found {
  store: Store;
  item: number;
}

export function search(spans: Spans, query: Query): Columns {
  const wanted = (text(query, "text") ?? "").toLowerCase();
  const limit = number(query, "limit", MOST);
  const since = number(query, "from", Number.MIN_SAFE_INTEGER);
  const matches = spans.names.map((name) => wanted !== "" && name.toLowerCase().includes(wanted));
  const stores = [...new Set([...spans.tracks.values()].map((track) => track.store))];
  const found: Found[] = [];
  let total = 0;
  for (const store of stores) {
    for (let item = 0; item < store.start.length; item++) {
      if (!matches[store.name[item] as number]) continue;
      total += 1;
      if ((store.start[item] as number) >= since) found.push({ store, item });
    }
  }
  found.sort((a, b) => (a.store.start[a.item] as number) - (b.store.start[b.item] as number));
  const rows = found.slice(0, limit);
  const places = rows.map(({ store, item }) => spans.where(item, store));
  const columns = {
    span: rows.map(({ store, item }) => (store.spans ? spans.idOf(item) : -1)),
    name: { codes: rows.map(({ store, item }) => store.name[item] as number), texts: spans.names },
    kind: { codes: rows.map(({ store, item }) => store.kindOf(item)), texts: spans.kinds },
    track: places.map((place) => place.track),
    row: places.map((place) => place.row),
    start_ns: rows.map(({ store, item }) => store.start[item] as number),
    duration_ns: rows.map(({ store, item }) => store.duration[item] as number),
  };
  return made(columns, total, spans.facts.tables["search"]);
}

export function instances(spans: Spans, facts: Facts, query: Query): Columns {
  const limit = number(query, "limit", MOST);
  const [from, below] = [number(query, "from_ns", 0), number(query, "below_ns", Number.MAX_VALUE)];
  const { duration } = spans;
  const all = named(spans, query).filter(
    (place) => (duration[place] as number) >= from && (duration[place] as number) < below,
  );
  all.sort((a, b) => (duration[b] as number) - (duration[a] as number) || a - b);
  const rows = all.slice(0, limit);
  const places = rows.map((place) => spans.where(place));
  const values = (label: string) => {
    const of = facts.lookUp(label);
    return rows.map(of) as (string | number | null)[];
  };
  const columns = {
    span: rows.map((place) => spans.idOf(place)),
    track: places.map((place) => place.track),
    row: places.map((place) => place.row),
    start_ns: rows.map((place) => spans.start[place] as number),
    duration_ns: rows.map((place) => duration[place] as number),
    self_ns: rows.map((place) => spans.own[place] as number),
    step: values("Step"),
    module: values("Module"),
    shapes: values("Input shapes"),
  };
  return made(columns, all.length, spans.facts.tables["instances"]);
}

export function histogram(spans: Spans, query: Query): Record<string, unknown> {
  const durations = Float64Array.from(named(spans, query), (place) => spans.duration[place] as number).sort();
  const edges = barEdges(durations);
  const counts = edges.slice(1).map(() => 0);
  let bar = 0;
  let total = 0;
  for (const duration of durations) {
    while (bar + 1 < counts.length && duration >= (edges[bar + 1] as number)) bar += 1;
    counts[bar] = (counts[bar] as number) + 1;
    total += duration;
  }
  const calls = durations.length;
  const at = (place: number) => (calls ? (durations[place] as number) : null);
  return {
    edges_ns: edges,
    counts,
    calls,
    total_ns: total,
    mean_ns: calls ? total / calls : null,
    min_ns: at(0),
    median_ns: at(Math.floor(calls / 2)),
    p95_ns: at(Math.floor(calls * 0.95)),
    max_ns: at(calls - 1),
  };
}

/** Where the bars of sorted durations begin and the last one ends: each is longer than the one before by one factor. */
export function barEdges(durations: Float64Array): number[] {
  const [first, last] = [durations[0], durations[durations.length - 1]];
  if (first === undefined || last === undefined) return [];
  const low = Math.max(first, 1);
  const high = Math.max(last + 1, low);
  const ends = first <= 0 ? [0, 1] : [low];
  for (let bar = 1; bar < BARS; bar++) {
    const power = Math.log10(low) + (bar * (Math.log10(high) - Math.log10(low))) / BARS;
    ends.push(Math.min(Math.max(Math.round(10 ** power), low), high));
  }
  return [...new Set([...ends, high])].sort((a, b) => a - b);
}

/** The spans of a name and kind; of all kinds where none is given. */
function named(spans: Spans, query: Query): number[] {
  const name = text(query, "name");
  if (name === undefined) throw new AnswerError("the question needs the option 'name'");
  const kind = text(query, "kind");
  const asked = kind === undefined ? -1 : spans.kinds.indexOf(kind);
  const step = spans.kinds.indexOf("step");
  const wanted = spans.names.map((one) => one === name);
  const found: number[] = [];
  for (let place = 0; place < spans.count; place++) {
    const is = spans.kind[place] as number;
    if (kind !== undefined && is !== asked) continue;
    if (name === STEPS ? is === step : wanted[spans.name[place] as number]) found.push(place);
  }
  return found;
}
