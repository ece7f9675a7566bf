/** The data of a page: tables, and the two sources they come from. */

export type Query = Record<string, string | number | boolean | undefined>;

/** One column of a table: its values are numbers, strings, booleans or null. */
export interface ColumnFacts {
  name: string;
  /** `ns`, `bytes`, `%`, `row of spans` ... or empty. */
  unit: string;
  /** One sentence for the reader. */
  meaning: string;
  /** Whether the values are numbers. */
  numeric: boolean;
}

export type Value = number | string | boolean | null;

/** A column of texts: each text once, and for each row its place among them. */
export interface Coded {
  codes: ArrayLike<number>;
  texts: readonly string[];
}

/** A column that was sent: a value of it, or all of them. */
interface Sent {
  at(row: number): Value;
  read(): ArrayLike<Value> | Coded;
}

/** A column as it was sent or made; one that was sent is read when a page needs it. */
export type Stored = ArrayLike<Value> | Coded | Sent;

/** A table: columns by name, all of one length. */
export class Columns {
  readonly facts: readonly ColumnFacts[];
  readonly rows: number;
  /** How many rows there are where this table is only the first of them. */
  readonly total: number;
  readonly #stored: Map<string, Stored>;
  readonly #values = new Map<string, ArrayLike<Value>>();

  constructor(
    columns: ReadonlyMap<ColumnFacts, Stored>,
    total?: number,
    rows?: number,
    /** What else the response says of the table. */
    readonly about: ReadonlyMap<string, string> = new Map(),
  ) {
    this.facts = [...columns.keys()];
    this.#stored = new Map([...columns].map(([{ name }, values]) => [name, values]));
    const [first = []] = columns.values();
    this.rows =
      rows ?? ("at" in first && "read" in first ? 0 : "codes" in first ? first.codes.length : first.length);
    this.total = total ?? this.rows;
  }

  has(name: string): boolean {
    return this.#stored.has(name);
  }

  /** The values of a column. Throws when there is none of this name. */
  values(name: string): ArrayLike<Value> {
    let values = this.#values.get(name);
    if (!values) {
      const held = this.#read(name);
      values = "codes" in held ? Array.from(held.codes, (code) => held.texts[code] ?? null) : held;
      this.#values.set(name, values);
    }
    return values;
  }

  /** One value of a column, without reading the others. */
  at(name: string, row: number): Value {
    const stored = this.#stored.get(name);
    return stored && "read" in stored ? stored.at(row) : (this.values(name)[row] ?? null);
  }

  /** A column of texts with each text once: much faster than `texts` for many rows. */
  coded(name: string): Coded {
    const held = this.#read(name);
    if ("codes" in held) return held;
    const places = new Map<Value, number>();
    const codes = Array.from(held, (text) => {
      const place = places.get(text) ?? places.size;
      places.set(text, place);
      return place;
    });
    return { codes, texts: [...places.keys()].map(String) };
  }

  /** Some of the rows. */
  where(chosen: (row: number) => boolean): Columns {
    const rows: number[] = [];
    for (let row = 0; row < this.rows; row++) if (chosen(row)) rows.push(row);
    const made = this.facts.map((facts): [ColumnFacts, Value[]] => {
      const values = this.values(facts.name);
      return [facts, rows.map((row) => values[row] ?? null)];
    });
    return new Columns(new Map(made));
  }

  numbers(name: string): ArrayLike<number> {
    return this.values(name) as ArrayLike<number>;
  }

  texts(name: string): ArrayLike<string | null> {
    return this.values(name) as ArrayLike<string | null>;
  }

  #read(name: string): ArrayLike<Value> | Coded {
    const stored = this.#stored.get(name);
    if (!stored) throw new Error(`the table has no column ${name}`);
    if (!("read" in stored)) return stored;
    const read = stored.read();
    this.#stored.set(name, read);
    return read;
  }
}

/** A table that is made in the page; its columns need no words. */
export function made(columns: Readonly<Record<string, ArrayLike<Value> | Coded>>): Columns {
  const pairs = Object.entries(columns).map(
    ([name, values]) => [{ name, unit: "", meaning: "", numeric: !("codes" in values) }, values] as const,
  );
  return new Columns(new Map(pairs));
}

/** Why there is no response: one sentence for the reader. */
export class SourceError extends Error {}

/** Where a page gets its data: the local server, or the report that the page is in. */
export interface Source {
  /** True where a server responds: every request is possible, files can be exported, a live trace is refreshed. */
  readonly served: boolean;
  /** What this source does not have of the trace, as one sentence; undefined where it has all. */
  readonly lacks?: string | undefined;
  /** Whether this source can respond; a report has only what was put into it. */
  has(path: string, query?: Query): boolean;
  info<T>(path: string, query?: Query): Promise<T>;
  table(path: string, query?: Query): Promise<Columns>;
  /** What is visible of some tracks from `start` to `end` on `width` pixels. */
  window(query: WindowQuery): Promise<Columns>;
  /** Counters over a stretch of time: for each pixel in which one changes its lowest, highest and last value. */
  counters(query: WindowQuery): Promise<Columns[]>;
  /** The details of a span. */
  span(id: number): Promise<SpanFacts>;
  /** The address of a file made from the trace, or null where there is no server to make it. */
  download(path: string, query?: Query): string | null;
}

export interface WindowQuery {
  start: number;
  end: number;
  width: number;
  tracks: readonly number[];
}

export interface Fact {
  label: string;
  value: unknown;
  unit: string;
}

export interface Link {
  label: string;
  span: number;
  name: string;
  track: number;
  row: number;
  start_ns: number;
  duration_ns: number;
}

export interface SpanFacts {
  id: number;
  name: string;
  kind: string;
  track: number;
  row: number;
  start_ns: number;
  duration_ns: number;
  self_ns: number | null;
  facts: readonly Fact[];
  /** Innermost first. */
  stack: readonly string[];
  arguments: Readonly<Record<string, unknown>>;
  links: readonly Link[];
}

/** The one spelling of a path and its query, by which a report finds its responses: keys sorted, empty ones left out. */
export function spelled(path: string, query: Query = {}): string {
  const pairs = Object.entries(query)
    .filter((pair): pair is [string, string | number | boolean] => pair[1] !== undefined && pair[1] !== "")
    .map(([key, value]) => [key, String(value)] as const)
    .sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  const text = pairs
    .map(([key, value]) => `${encodeURIComponent(key)}=${encodeURIComponent(value)}`)
    .join("&");
  return text ? `${path}?${text}` : path;
}
