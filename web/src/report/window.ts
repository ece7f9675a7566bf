/** `window` and `counter`, from the rows that a report carries. */

import { look, lowest, pixelEdges } from "../source/lod";
import { AnswerError, type Coded, type ColumnFacts, Columns, type Query, type Value } from "../source/source";
import type { Spans } from "./spans";

export function window(spans: Spans, query: Query): Columns {
  const { start, end } = stretch(query);
  const width = number(query, "width");
  const found = {
    track: [] as number[],
    row: [] as number[],
    start: [] as number[],
    duration: [] as number[],
    busy: [] as number[],
    count: [] as number[],
    span: [] as number[],
  };
  const names: number[] = [];
  const kinds: number[] = [];
  for (const { id, store, first, count } of spans.chosen(text(query, "tracks"))) {
    const { rows } = store;
    const seen = look(rows, first, count, start, end, width);
    seen.item.forEach((at, index) => {
      const many = seen.count[index] as number;
      const last = at + many - 1;
      const item = rows.order[at] as number;
      const [begin, length] = [rows.start[at] as number, rows.duration[last] as number];
      found.track.push(id);
      found.row.push((seen.row[index] as number) - first);
      found.start.push(begin);
      found.duration.push((rows.start[last] as number) + length - begin);
      found.busy.push((rows.before[last] as number) + length - (rows.before[at] as number));
      found.count.push(many);
      found.span.push(store.spans ? spans.idOf(item) : -1);
      names.push(store.name[item] as number);
      kinds.push(store.kindOf(item));
    });
  }
  return made({
    ...found,
    name: { codes: names, texts: spans.shownNames },
    kind: { codes: kinds, texts: spans.kinds },
  });
}

/** A counter as the report holds it, seen in the pixels that are asked for. */
export function counter(held: Columns, query: Query): Columns {
  const { start, end } = stretch(query);
  const edges = pixelEdges(start, end, number(query, "width"));
  const time = held.numbers("time");
  const [low, high, last] = ["low", "high", "last"].map((name) => Array.from(held.numbers(name))) as [
    number[],
    number[],
    number[],
  ];
  const found = {
    time: [] as (number | undefined)[],
    low: [] as number[],
    high: [] as number[],
    last: [] as (number | undefined)[],
  };
  let place = lowest(time, 0, held.rows, edges[0] as number);
  const add = (from: number, to: number) => {
    found.time.push(time[from]);
    found.low.push(low.slice(from, to).reduce((a, b) => Math.min(a, b)));
    found.high.push(high.slice(from, to).reduce((a, b) => Math.max(a, b)));
    found.last.push(last[to - 1]);
  };
  if (place > 0) add(place - 1, place);
  for (let pixel = 0; pixel + 1 < edges.length && place < held.rows; pixel++) {
    const beyond = lowest(time, place, held.rows, edges[pixel + 1] as number);
    if (beyond > place) add(place, beyond);
    place = beyond;
  }
  return made(found as Record<keyof typeof found, number[]>);
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
