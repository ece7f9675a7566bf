/** Rows of a table by what they are, and which of its columns say anything. */

import { says } from "../parts/table-columns";
import type { Columns } from "../source/source";
import * as units from "../units";
import type { Fact } from "./panel";

/** The row of a name and kind, and of a place where rows are told apart by one; -1 without. */
export function rowOf(table: Columns, name: string, kind?: string, place?: string | null): number {
  const names = table.texts("name");
  const kinds = table.has("kind") ? table.texts("kind") : undefined;
  const places = table.has("place") ? table.texts("place") : undefined;
  for (let row = 0; row < table.rows; row++) {
    if (names[row] !== name || (kind !== undefined && kinds && kinds[row] !== kind)) continue;
    if (place === undefined || !places || (places[row] ?? null) === place) return row;
  }
  return -1;
}

/** The named columns of a row as facts; those without a value are left out. */
export function facts(table: Columns, row: number, names: Readonly<Record<string, string>>): Fact[] {
  const found: Fact[] = [];
  for (const column of table.facts) {
    const label = names[column.name];
    const value = table.values(column.name)[row];
    if (label === undefined || value === null || value === undefined) continue;
    // A zero tells something only where others are not zero.
    if (value === 0 && !says(table, column.name)) continue;
    const exact = typeof value === "number" ? `${value.toLocaleString("en-US")} ${column.unit}` : "";
    found.push({
      label,
      value: units.shown(value, column.unit, column.name),
      title: `${exact.trim()}\n${column.meaning}`.trim(),
    });
  }
  return found;
}

/** All rows of which the test holds. */
export function rowsWhere(table: Columns, test: (row: number) => boolean): Int32Array {
  return Int32Array.from({ length: table.rows }, (_, row) => row).filter(test);
}
