/** Rows of a table by name and kind, and the facts of one. */

import type { ComponentChildren } from "preact";
import { chosenColumns, type ShownColumn, says } from "../parts/table-columns";
import type { Columns } from "../source/source";
import * as units from "../units";

export interface Fact {
  label: string;
  value: ComponentChildren;
  /** The number in full, and what it means. */
  title: string;
}

/** The row of a name and kind, and of a place where rows are grouped by one; -1 without. */
export function rowOf(table: Columns, name: string, kind?: string, place?: string | null): number {
  const is = (column: string, wanted: string | null | undefined, row: number) =>
    wanted === undefined || !table.has(column) || (table.values(column)[row] ?? null) === wanted;
  const names = table.texts("name");
  for (let row = 0; row < table.rows; row++)
    if (names[row] === name && is("kind", kind, row) && is("place", place, row)) return row;
  return -1;
}

/** What columns beside the name say of a row; those without a value are left out. */
export function facts(table: Columns, row: number, columns: readonly ShownColumn[]): Fact[] {
  const all = new Set(columns.filter((column) => column.optional).map((column) => column.name));
  return chosenColumns(table, columns, all).flatMap(({ name, title, group = "", facts, cell }) => {
    const value = table.values(name)[row] ?? null;
    // A zero tells something only where others are not zero.
    if (value === null || /^(name|kind|place)$/.test(name) || (value === 0 && !says(table, name))) return [];
    const exact = typeof value === "number" ? `${value.toLocaleString("en-US")} ${facts.unit}`.trim() : "";
    return {
      label: /Device|Memory/.test(group) ? `${group} ${title.toLowerCase()}` : title,
      value: cell ? cell(row) : units.shown(value, facts.unit, name),
      title: [exact, facts.meaning].filter(Boolean).join("\n"),
    };
  });
}

/** All rows of which the test holds. */
export function rowsWhere(table: Columns, test: (row: number) => boolean): Int32Array {
  return Int32Array.from({ length: table.rows }, (_, row) => row).filter(test);
}
