/** Where a page gets its answers from: a local server, or what a report carries with it. */

import { tableFromIPC } from "@uwdata/flechette";

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

/** A table: columns by name, all of one length. */
export class Columns {
  readonly rows: number;
  readonly facts: readonly ColumnFacts[];
  /** How many rows there are where this table is only the first of them. */
  readonly total: number;
  /** What else the answer says of the table. */
  readonly told: ReadonlyMap<string, string>;
  private readonly kept = new Map<string, ArrayLike<Value>>();
  private readonly texted = new Map<string, Coded>();
  private readonly table: ReturnType<typeof tableFromIPC> | null = null;

  /** From a table that came as Arrow, or from columns that were made in the page. */
  constructor(from: Uint8Array | ReadonlyMap<ColumnFacts, ArrayLike<Value> | Coded>, total?: number) {
    if (from instanceof Uint8Array) {
      this.table = tableFromIPC(from);
      this.told = this.table.schema.metadata ?? new Map();
      this.rows = this.table.numRows;
      this.facts = this.table.schema.fields.map((field) => ({
        name: field.name,
        unit: field.metadata?.get("unit") ?? "",
        meaning: field.metadata?.get("meaning") ?? "",
        numeric: isNumeric(field.type),
      }));
    } else {
      this.told = new Map();
      this.facts = [...from.keys()];
      const sizes = [...from].map(([{ name }, values]) => {
        if ("codes" in values) this.texted.set(name, values);
        else this.kept.set(name, values);
        return "codes" in values ? values.codes.length : values.length;
      });
      this.rows = Math.max(0, ...sizes);
    }
    this.total = total ?? this.rows;
  }

  has(name: string): boolean {
    return this.facts.some((column) => column.name === name);
  }

  /** The values of a column. Throws when there is none of this name. */
  values(name: string): ArrayLike<Value> {
    let values = this.kept.get(name);
    if (!values) {
      const coded = this.texted.get(name);
      const column = coded ?? this.table?.getChild(name);
      if (!column) throw new Error(`the table has no column ${name}`);
      values = coded
        ? Array.from(coded.codes, (code) => coded.texts[code] ?? null)
        : ((column as { toArray(): unknown }).toArray() as ArrayLike<Value>);
      this.kept.set(name, values);
    }
    return values;
  }

  /**
   * A column of texts as it was sent: each text once, and for each row its place among them. Null where it was not
   * sent that way. Much faster than `texts` for many rows.
   */
  coded(name: string): Coded | null {
    const texted = this.texted.get(name);
    if (texted) return texted;
    const parts = this.table?.getChild(name)?.data ?? [];
    const part = parts[0] as unknown as
      | { values?: ArrayLike<number>; cache?: string[]; nullCount: number }
      | undefined;
    if (parts.length !== 1 || !part?.cache || !part.values || part.nullCount > 0) return null;
    return { codes: part.values, texts: part.cache };
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
}

/** Arrow's type numbers of integers, floats, decimals and times. */
const NUMERIC_TYPES = new Set([2, 3, 7, 10]);

function isNumeric(type: { typeId: number }): boolean {
  return NUMERIC_TYPES.has(type.typeId);
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
