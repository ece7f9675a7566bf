/** Which rows of a table are shown, and in which order. */

import type { Columns, Value } from "../source/source";

/** The rows in which one of the columns holds the text, whatever its case; all rows for an empty text. */
export function filtered(
  table: Columns,
  names: readonly string[],
  text: string,
  from?: Int32Array,
): Int32Array {
  const wanted = text.trim().toLowerCase();
  const all = from ?? Int32Array.from({ length: table.rows }, (_, row) => row);
  if (!wanted) return all;
  const columns = names.filter((name) => table.has(name)).map((name) => table.values(name));
  // Many rows share a text: each distinct one is looked at once.
  const known = new Map<Value | undefined, boolean>([[null, false]]);
  const holds = (value: Value | undefined): boolean => {
    let found = known.get(value);
    if (found === undefined) {
      found = String(value).toLowerCase().includes(wanted);
      known.set(value, found);
    }
    return found;
  };
  return all.filter((row) => columns.some((values) => holds(values[row])));
}

/** Compares rows by a column, or as they come where it is not there; what has no value comes last either way. */
export function byColumn(
  table: Columns,
  name: string,
  descending: boolean,
): (a: number, b: number) => number {
  if (!table.has(name)) return (a, b) => a - b;
  const values = table.values(name);
  const sign = descending ? -1 : 1;
  return (a, b) => {
    const [left, right] = [values[a] ?? null, values[b] ?? null];
    if (left === right) return a - b;
    if (left === null || right === null) return left === null ? 1 : -1;
    if (typeof left === "string" && typeof right === "string") return sign * (left < right ? -1 : 1);
    return sign * (Number(left) - Number(right)) || a - b;
  };
}

/** Rows as comma-separated values, with a line of names first. Exact numbers, as in the table. */
export function asCsv(table: Columns, rows: ArrayLike<number>, names: readonly string[]): string {
  return delimited(table, rows, names, ",", (text) =>
    /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text,
  );
}

/** Rows for a spreadsheet's clipboard: tabs between, no line breaks within. */
export function asTabs(table: Columns, rows: ArrayLike<number>, names: readonly string[]): string {
  return delimited(table, rows, names, "\t", (text) => text.replace(/[\t\r\n]+/g, " "));
}

function delimited(
  table: Columns,
  rows: ArrayLike<number>,
  names: readonly string[],
  between: string,
  quoted: (text: string) => string,
): string {
  const columns = names.map((name) => table.values(name));
  const lines = Array.from(rows, (row) => columns.map((values) => written(values[row], quoted)));
  return [names.map(quoted), ...lines].map((line) => `${line.join(between)}\n`).join("");
}

function written(value: Value | undefined, quoted: (text: string) => string): string {
  if (value === null || value === undefined) return "";
  // A spreadsheet takes a text that begins like this for a formula, which a trace from elsewhere must not bring along.
  if (typeof value === "string") return quoted(/^[=+\-@\t\r]/.test(value) ? `'${value}` : value);
  return String(value);
}

/** The largest number of a column, at least 0. */
export function top(table: Columns, name: string): number {
  return Array.from(table.numbers(name)).reduce((most, value) => Math.max(most, value), 0);
}

/** The sum of a column over some rows. */
export function sumOf(table: Columns, rows: Int32Array, name: string): number {
  const values = table.numbers(name);
  return rows.reduce((sum, row) => sum + (values[row] ?? 0), 0);
}
