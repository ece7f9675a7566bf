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

/** A table that came as Arrow: columns by name, all of one length. */
export class Columns {
  readonly rows: number;
  readonly facts: readonly ColumnFacts[];
  /** How many rows there are where this table is only the first of them. */
  readonly total: number;
  /** What else the answer says of the table. */
  readonly told: ReadonlyMap<string, string>;
  private readonly kept = new Map<string, ArrayLike<Value>>();
  private readonly table: ReturnType<typeof tableFromIPC>;

  constructor(bytes: Uint8Array, total?: number) {
    this.table = tableFromIPC(bytes);
    this.rows = this.table.numRows;
    this.total = total ?? this.rows;
    this.told = this.table.schema.metadata ?? new Map();
    this.facts = this.table.schema.fields.map((field) => ({
      name: field.name,
      unit: field.metadata?.get("unit") ?? "",
      meaning: field.metadata?.get("meaning") ?? "",
      numeric: isNumeric(field.type),
    }));
  }

  has(name: string): boolean {
    return this.facts.some((column) => column.name === name);
  }

  /** The values of a column. Throws when there is none of this name. */
  values(name: string): ArrayLike<Value> {
    let values = this.kept.get(name);
    if (!values) {
      const column = this.table.getChild(name);
      if (!column) throw new Error(`the table has no column ${name}`);
      values = column.toArray() as ArrayLike<Value>;
      this.kept.set(name, values);
    }
    return values;
  }

  /**
   * A column of texts as it was sent: each text once, and for each row its place among them. Null where it was not
   * sent that way. Much faster than `texts` for many rows.
   */
  coded(name: string): { codes: ArrayLike<number>; texts: readonly string[] } | null {
    const parts = this.table.getChild(name)?.data ?? [];
    const part = parts[0] as unknown as
      | { values?: ArrayLike<number>; cache?: string[]; nullCount: number }
      | undefined;
    if (parts.length !== 1 || !part?.cache || !part.values || part.nullCount > 0) return null;
    return { codes: part.values, texts: part.cache };
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
