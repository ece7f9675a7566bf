/** Where a page gets its answers from: a local server, or what a report carries with it. */

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

/** A column as it was sent or made; one that is sent is read when it is asked for. */
export type Held = ArrayLike<Value> | Coded | (() => ArrayLike<Value> | Coded);

/** A table: columns by name, all of one length. */
export class Columns {
  readonly facts: readonly ColumnFacts[];
  readonly rows: number;
  /** How many rows there are where this table is only the first of them. */
  readonly total: number;
  readonly #held: Map<string, Held>;
  readonly #values = new Map<string, ArrayLike<Value>>();

  constructor(
    columns: ReadonlyMap<ColumnFacts, Held>,
    total?: number,
    rows?: number,
    /** What else the answer says of the table. */
    readonly told: ReadonlyMap<string, string> = new Map(),
  ) {
    this.facts = [...columns.keys()];
    this.#held = new Map([...columns].map(([{ name }, values]) => [name, values]));
    const [first = []] = columns.values();
    this.rows = rows ?? ("codes" in first ? first.codes : first).length;
    this.total = total ?? this.rows;
  }

  has(name: string): boolean {
    return this.#held.has(name);
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

  /** The rows that are chosen. */
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
    const held = this.#held.get(name);
    if (!held) throw new Error(`the table has no column ${name}`);
    if (typeof held !== "function") return held;
    const read = held();
    this.#held.set(name, read);
    return read;
  }
}

/** What is said when an answer cannot be had: one sentence for the person at the page. */
export class AnswerError extends Error {}

export interface Source {
  /** True where a server answers: every query can be asked, files can be exported, a live trace is refreshed. */
  readonly served: boolean;
  /** What this source does not hold of the trace, as one sentence; undefined where it holds all. */
  readonly lacks?: string | undefined;
  /** Where Perfetto's page is, to which a window can be handed over; nothing where none can be made. */
  readonly perfettoUi?: string | undefined;
  /** A JSON answer. */
  json<T>(path: string, query?: Query): Promise<T>;
  /** A table. */
  columns(path: string, query?: Query): Promise<Columns>;
  /** Whether this source can answer; a report holds only what was put into it. */
  has(path: string, query?: Query): boolean;
  /** The address of a file made from the trace, or null where there is no server to make it. */
  download(path: string, query?: Query): string | null;
}

/** The one spelling of a path and its query, by which a report finds its answers: keys sorted, empty ones left out. */
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
