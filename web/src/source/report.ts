/**
 * A report as a source: responses that were written into it, windows of its items, and details of its spans. Apart from the
 * window, it looks up and computes nothing; made in `viewer/server/report.py`.
 */

import * as units from "../units";
import { tableOf } from "./arrow";
import {
  type Coded,
  type Columns,
  type Fact,
  type Link,
  type Query,
  type Source,
  SourceError,
  type SpanFacts,
  spelled,
  type WindowQuery,
} from "./source";
import { type Items, lowest, rowsOf, shortened, windowOf } from "./window";

/** Where a response is, or why there is none. */
interface Part {
  total?: number;
  block?: number;
  at?: readonly number[];
  error?: string;
}

export interface Report {
  version: string;
  name: string;
  parts: Readonly<Record<string, Part>>;
  timeline: {
    rows: number;
    /** The number of each track, its first row, and how many rows it has. */
    tracks: readonly (readonly [number, number, number])[];
    /** How many links there are of each label, in the order of their table. */
    links: readonly (readonly [string, number])[];
  } | null;
  cut: { before_ns: number; spans: number } | null;
  /** The address of what it shows at first, or nothing. */
  start: string;
  /** A text above all pages, or nothing. */
  notice: string;
}

const LACKING = "This report does not include this: open the trace with `kinetoscope view`.";

export class ReportSource implements Source {
  readonly served = false;
  readonly lacks: string | undefined;
  readonly #report: Report;
  readonly #lettersOf: (block: number) => string;
  readonly #blocks = new Map<number, Promise<Uint8Array<ArrayBuffer>>>();
  #items: Promise<Items> | undefined;
  #details: Promise<Details> | undefined;

  /** `lettersOf` returns a block as it is in the page. */
  constructor(report: Report, lettersOf: (block: number) => string) {
    this.#report = report;
    this.#lettersOf = lettersOf;
    const { cut } = report;
    if (cut)
      this.lacks =
        `The timeline of this report ends after ${units.time(cut.before_ns)}: it has the first ` +
        `${units.counted(cut.spans, "span")}. Tables are of the whole trace.`;
  }

  has(path: string, query?: Query): boolean {
    const { parts } = this.#report;
    if (spelled(path, query) in parts) return true;
    // Without a query: whether there is anything of this kind.
    return query === undefined && Object.keys(parts).some((key) => key.startsWith(`${path}?`));
  }

  async info<T>(path: string, query?: Query): Promise<T> {
    return JSON.parse(new TextDecoder().decode(await this.#body(path, query))) as T;
  }

  async table(path: string, query?: Query): Promise<Columns> {
    return tableOf(await this.#body(path, query), this.#report.parts[spelled(path, query)]?.total);
  }

  async window(query: WindowQuery): Promise<Columns> {
    return windowOf(await this.#allItems(), query);
  }

  /** Of the whole trace, in less detail than a server would give. */
  counters({ tracks }: WindowQuery): Promise<Columns[]> {
    return Promise.all(tracks.map((track) => this.table("counter", { track })));
  }

  async span(id: number): Promise<SpanFacts> {
    this.#details ??= this.#allDetails();
    const found = (await this.#details).span(id);
    if (found) return found;
    throw new SourceError(
      `This report does not include span ${id}: open the trace with \`kinetoscope view\`.`,
    );
  }

  download(): null {
    return null;
  }

  async #body(path: string, query?: Query): Promise<Uint8Array<ArrayBuffer>> {
    const part = this.#report.parts[spelled(path, query)];
    if (!part) throw new SourceError(LACKING);
    const { error, block = 0, at: [at = 0, length = 0] = [] } = part;
    if (error !== undefined) throw new SourceError(error);
    const body = this.#blocks.get(block) ?? unpacked(this.#lettersOf(block));
    this.#blocks.set(block, body);
    // A copy of its own, whose numbers begin where numbers may begin.
    return (await body).slice(at, at + length);
  }

  #allItems(): Promise<Items> {
    const { rows = 0, tracks = [] } = this.#report.timeline ?? {};
    this.#items ??= this.table("timeline/items").then((table) => {
      const name = table.coded("name");
      return {
        rows: rowsOf(
          integers(table, "row"),
          integers(table, "start", true),
          integers(table, "duration"),
          rows,
        ),
        name: { codes: name.codes, texts: name.texts.map(shortened) },
        kind: table.coded("kind"),
        span: integers(table, "span", true),
        tracks: new Map(tracks.map(([id, first, count]) => [id, { first, count }])),
      };
    });
    return this.#items;
  }

  async #allDetails(): Promise<Details> {
    const [items, table, facts, links, stacks, frames] = await Promise.all([
      this.#allItems(),
      ...["items", "facts", "links", "stacks", "frames"].map((name) => this.table(`timeline/${name}`)),
    ] as const);
    return new Details(items, { table, facts, links, stacks, frames } as Tables, this.#report.timeline);
  }
}

interface Tables {
  table: Columns;
  facts: Columns;
  links: Columns;
  stacks: Columns;
  frames: Columns;
}

/** The details of spans, looked up. */
class Details {
  readonly #items: Items;
  readonly #tables: Tables;
  /** For each item its place in the rows. */
  readonly #place: Int32Array;
  readonly #names: Coded;
  readonly #tracks: readonly (readonly [number, number, number])[];
  readonly #links: { label: string; from: number; to: number }[];
  readonly #source: Float64Array;
  /** The time of the spans right in each. */
  readonly #inside: Float64Array;
  readonly #spans: number;

  constructor(items: Items, tables: Tables, timeline: Report["timeline"]) {
    this.#items = items;
    this.#tables = tables;
    const { order } = items.rows;
    this.#place = new Int32Array(order.length);
    for (let place = 0; place < order.length; place++) this.#place[order[place] as number] = place;
    this.#names = tables.table.coded("name");
    this.#tracks = timeline?.tracks ?? [];
    let to = 0;
    this.#links = (timeline?.links ?? []).map(([label, count]) => {
      to += count;
      return { label, from: to - count, to };
    });
    this.#source = integers(tables.links, "source", true);
    this.#spans = tables.facts.rows;
    this.#inside = integers(tables.facts, "inside");
    const far = integers(tables.links, "far");
    for (const { from, to } of this.#links.filter(({ label }) => label === "in")) {
      for (let link = from; link < to; link++) {
        const item = this.#source[link] as number;
        const duration = items.rows.duration[this.#place[item] as number] as number;
        (this.#inside[item + (far[link] as number)] as number) += duration;
      }
    }
  }

  span(id: number): SpanFacts | undefined {
    const { span } = this.#items;
    const item = lowest(span, 0, this.#spans, id);
    if (item >= this.#spans || span[item] !== id) return;
    const { facts } = this.#tables;
    const found = this.#found(item);
    return {
      id,
      kind: this.#items.kind.texts[this.#items.kind.codes[item] as number] ?? "",
      ...found,
      self_ns: found.duration_ns - (this.#inside[item] as number),
      facts: facts.facts.flatMap((column) => this.#factsOf(column.name, column.meaning, column.unit, item)),
      stack: this.#stack(integer(facts, "stack", item) ?? -1),
      arguments: JSON.parse((facts.at("arguments", item) as string | null) ?? "{}"),
      links: this.#linksOf(item),
    };
  }

  /** What is shown of an item wherever it is named. */
  #found(item: number): Omit<Link, "label" | "span"> {
    const { rows } = this.#items;
    const place = this.#place[item] as number;
    const row = lowest(rows.edges, 0, rows.edges.length, place, true) - 1;
    const [track, first] = this.#tracks.find(([, first, count]) => row >= first && row < first + count) ?? [
      -1,
      row + 1,
    ];
    return {
      name: this.#names.texts[this.#names.codes[item] as number] ?? "",
      track,
      row: row - first,
      start_ns: rows.start[place] as number,
      duration_ns: rows.duration[place] as number,
    };
  }

  #factsOf(name: string, label: string, unit: string, item: number): readonly Fact[] {
    if (!/^fact \d+$/.test(name)) return [];
    const { facts } = this.#tables;
    if (!label) return JSON.parse((facts.at(name, item) as string | null) ?? "[]") as Fact[];
    const value = integer(facts, name, item);
    return value === null ? [] : [{ label, value, unit }];
  }

  #stack(stack: number): string[] {
    const { stacks, frames } = this.#tables;
    const found: string[] = [];
    for (let at = stack; at >= 0; ) {
      const frame = integer(stacks, "frame", at) ?? -1;
      if (frame >= 0) found.push(String(frames.at("text", frame)));
      const far = integer(stacks, "far", at);
      at = far ? at - far : -1;
    }
    return found;
  }

  #linksOf(item: number): Link[] {
    const { links } = this.#tables;
    return this.#links.flatMap(({ label, from, to }) => {
      const first = lowest(this.#source, from, to, item);
      const last = lowest(this.#source, first, to, item, true);
      return Array.from({ length: last - first }, (_, index) => {
        const other = item + (integer(links, "far", first + index) ?? 0);
        return { label, span: this.#items.span[other] as number, ...this.#found(other) };
      });
    });
  }
}

/** Letters as they are in the page, unpacked by the browser. */
async function unpacked(letters: string): Promise<Uint8Array<ArrayBuffer>> {
  try {
    const text = atob(letters);
    const bytes = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new SourceError("The file of this report is damaged or incomplete.");
  }
}

/** An integer that a report has as columns of bytes: `_planes` in `viewer/server/report.py`. */
function integer(table: Columns, name: string, row: number): number | null {
  let folded = Number(table.at(name, row));
  for (let byte = 1, scale = 256; table.has(`${name} ${byte}`); byte++, scale *= 256)
    folded += Number(table.at(`${name} ${byte}`, row)) * scale;
  return unfolded(folded);
}

/** All integers of such columns; of differences their sums. */
function integers(table: Columns, name: string, differences = false): Float64Array<ArrayBuffer> {
  const values = Float64Array.from(table.numbers(name));
  for (let byte = 1, scale = 256; table.has(`${name} ${byte}`); byte++, scale *= 256) {
    const plane = table.numbers(`${name} ${byte}`);
    for (let row = 0; row < values.length; row++) (values[row] as number) += (plane[row] as number) * scale;
  }
  let sum = 0;
  for (let row = 0; row < values.length; row++) {
    const value = unfolded(values[row] as number) ?? 0;
    sum += value;
    values[row] = differences ? sum : value;
  }
  return values;
}

function unfolded(folded: number): number | null {
  if (!folded) return null;
  return folded % 2 ? (folded - 1) / 2 : -folded / 2;
}

/** The report in this page, or null where the page comes from a server. */
export function reportInPage(): { source: ReportSource; report: Report } | null {
  const lettersOf = (id: string | number) => document.getElementById(`kinetoscope-${id}`)?.textContent ?? "";
  const text = lettersOf("report");
  if (!text) return null;
  const report = JSON.parse(text) as Report;
  return { source: new ReportSource(report, lettersOf), report };
}
