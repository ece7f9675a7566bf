/** `window` and `counter`, from the rows that a report carries. */

import { look, lowest, pixelEdges } from "../source/lod";
import { AnswerError, type Coded, type ColumnFacts, Columns, type Query, type Value } from "../source/source";
import type { Spans } from "./spans";

export function window(spans: Spans, query: Query): Columns {
  const { start, end } = stretch(query);
  const width = number(query, "width");
  const seen = spans.chosen(text(query, "tracks")).map((track) => {
    return { track, found: look(track.store.rows, track.first, track.count, start, end, width) };
  });
  const rows = seen.reduce((sum, { found }) => sum + found.item.length, 0);
  const [track, row, count, span, name, kind] = Array.from({ length: 6 }, () => new Int32Array(rows)) as [
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
  ];
  const [begin, duration, busy] = Array.from({ length: 3 }, () => new Float64Array(rows)) as [
    Float64Array,
    Float64Array,
    Float64Array,
  ];
  let to = 0;
  for (const { track: of, found } of seen) {
    const { rows: laid, name: names, spans: real } = of.store;
    for (let index = 0; index < found.item.length; index++, to++) {
      const first = found.item[index] as number;
      const last = first + (found.count[index] as number) - 1;
      const item = laid.order[first] as number;
      track[to] = of.id;
      row[to] = (found.row[index] as number) - of.first;
      count[to] = found.count[index] as number;
      span[to] = real ? spans.idOf(item) : -1;
      name[to] = names[item] as number;
      kind[to] = of.store.kindOf(item);
      begin[to] = laid.start[first] as number;
      duration[to] =
        (laid.start[last] as number) + (laid.duration[last] as number) - (laid.start[first] as number);
      busy[to] =
        (laid.before[last] as number) + (laid.duration[last] as number) - (laid.before[first] as number);
    }
  }
  return made({
    track,
    row,
    start: begin,
    duration,
    busy,
    count,
    span,
    name: { codes: name, texts: spans.shownNames },
    kind: { codes: kind, texts: spans.kinds },
  });
}

/** A counter as the report holds it, seen in the pixels that are asked for. */
export function counter(held: Columns, query: Query): Columns {
  const { start, end } = stretch(query);
  const edges = pixelEdges(start, end, number(query, "width"));
  const [time, low, high, last] = ["time", "low", "high", "last"].map((name) => held.numbers(name)) as [
    ArrayLike<number>,
    ArrayLike<number>,
    ArrayLike<number>,
    ArrayLike<number>,
  ];
  const found: Record<"time" | "low" | "high" | "last", number[]> = { time: [], low: [], high: [], last: [] };
  let place = lowest(time, 0, held.rows, edges[0] as number);
  const add = (from: number, to: number) => {
    let [least, most] = [low[from] as number, high[from] as number];
    for (let at = from + 1; at < to; at++) {
      least = Math.min(least, low[at] as number);
      most = Math.max(most, high[at] as number);
    }
    found.time.push(time[from] as number);
    found.low.push(least);
    found.high.push(most);
    found.last.push(last[to - 1] as number);
  };
  if (place > 0) add(place - 1, place);
  for (let pixel = 0; pixel + 1 < edges.length && place < held.rows; pixel++) {
    const beyond = lowest(time, place, held.rows, edges[pixel + 1] as number);
    if (beyond > place) add(place, beyond);
    place = beyond;
  }
  return made(found);
}

/** A table of columns that need no words, or that `facts` tells of. */
export function made(
  columns: Readonly<Record<string, ArrayLike<Value> | Coded>>,
  total?: number,
  facts: readonly ColumnFacts[] = [],
): Columns {
  const told = new Map(facts.map((fact) => [fact.name, fact]));
  const pairs = Object.entries(columns).map(([name, values]) => {
    const fact = told.get(name) ?? { name, unit: "", meaning: "", numeric: !("codes" in values) };
    return [fact, values] as const;
  });
  return new Columns(new Map(pairs), total);
}

export function stretch(query: Query): { start: number; end: number } {
  const [start, end] = [number(query, "start"), number(query, "end")];
  if (start < end) return { start, end };
  throw new AnswerError(`start=${start}, end=${end} is no window: the end must come after the start`);
}

export function number(query: Query, name: string, without?: number): number {
  const value = query[name] === undefined ? without : Number(query[name]);
  if (value !== undefined && Number.isFinite(value)) return value;
  throw new AnswerError(`the option ${name} must be a number, not ${String(query[name])}`);
}

export function text(query: Query, name: string): string | undefined {
  return query[name] === undefined ? undefined : String(query[name]);
}
