/** Which columns of a table are shown, how wide they are, and what stands above them. */

import type { ComponentChildren } from "preact";
import type { ColumnFacts, Columns } from "../source/source";
import * as units from "../units";

export interface ShownColumn {
  name: string;
  /** The heading, made from the name where it is left out. */
  title?: string;
  /** In rem: fixed, or the least and the share of what is left. Or a CSS grid track such as `minmax(12rem, 3fr)`. */
  width?: number | readonly [least: number, share: number] | string;
  /** A bar behind the number, as a share of the largest in the column. */
  bar?: boolean;
  /** What is shown in the place of the value. */
  cell?: (row: number) => ComponentChildren;
  /** A word above this and the next columns of the same word. */
  group?: string;
  /** True where it is only offered, and shown when somebody asks for it. */
  optional?: boolean;
  /** Its sum over the rows that are shown stands beside their number. */
  sum?: boolean;
}

/** A column that the table has. */
export interface Column extends ShownColumn {
  title: string;
  facts: ColumnFacts;
}

/** The columns to show: those of the page, changed by what the reader turned on or off. */
export function chosenColumns(
  table: Columns,
  columns: readonly ShownColumn[],
  turned: ReadonlySet<string>,
): Column[] {
  const all = allColumns(table, columns);
  const shown = all.filter((column) => Boolean(column.optional) === turned.has(column.name));
  return shown.length > 0 ? shown : all.slice(0, 1);
}

/** All columns that can be shown: those of the page first, then what else the table says something in. */
export function offeredColumns(
  table: Columns,
  columns: readonly ShownColumn[],
  hidden: readonly string[] = [],
): Column[] {
  const mine = new Set(columns.map((column) => column.name));
  return allColumns(table, columns).filter(
    ({ name, facts }) =>
      mine.has(name) || !(hidden.includes(name) || facts.unit.startsWith("row of") || !says(table, name)),
  );
}

function allColumns(table: Columns, columns: readonly ShownColumn[]): Column[] {
  const mine = new Set(columns.map((column) => column.name));
  const more = table.facts
    .filter(({ name }) => !mine.has(name))
    .map(({ name }) => ({ name, optional: true }));
  return [...columns, ...more].flatMap((column) => {
    const facts = table.facts.find((one) => one.name === column.name);
    return facts ? { title: units.heading(column.name, facts.unit), ...column, facts } : [];
  });
}

/** Whether a column has a value that is neither null nor zero. */
export function says(table: Columns, name: string): boolean {
  return (
    table.has(name) &&
    Array.prototype.some.call(table.values(name), (value: unknown) => value != null && value !== 0)
  );
}

/** The names in an address that are turned from what the page has first. */
export function turnedNames(text = ""): ReadonlySet<string> {
  return new Set(text.split(",").filter(Boolean));
}

/** The same names with one more or less, as an address has them; undefined for none. */
export function turn(turned: ReadonlySet<string>, name: string): string | undefined {
  const names = turned.has(name) ? [...turned].filter((one) => one !== name) : [...turned, name];
  return names.join() || undefined;
}

/** The grid track of a column. */
export function track({ width, facts }: Column): string {
  if (typeof width === "string") return width;
  if (typeof width === "number") return `${width}rem`;
  const [least, share] = width ?? (facts.numeric ? [6, 1] : [9, 3]);
  return `minmax(${least}rem, ${share}fr)`;
}

/** The least width of some tracks together, for rows that are as wide as their heading. */
export function leastWidth(tracks: readonly string[]): string {
  const each = tracks.map((one) => /^minmax\((.+),[^,]*\)$/.exec(one)?.[1] ?? one);
  return `calc(${each.map((one) => (/^[\d.]+fr$/.test(one) || one === "auto" ? "4rem" : one)).join(" + ")})`;
}

/** Neighbors of one group: its word, and from which to which column it stretches, counted from 1 as a grid does. */
export function groupSpans(
  columns: readonly ShownColumn[],
): { group: string; first: number; beyond: number }[] {
  const spans: { group: string; first: number; beyond: number }[] = [];
  columns.forEach((column, index) => {
    if (!column.group) return;
    const last = spans.at(-1);
    if (last?.group === column.group && last.beyond === index + 1) last.beyond = index + 2;
    else spans.push({ group: column.group, first: index + 1, beyond: index + 2 });
  });
  return spans;
}
