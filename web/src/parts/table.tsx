/** A table that sorts, filters, copies and exports, and draws only the rows that are in view. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { change, route } from "../router";
import type { ColumnFacts, Columns } from "../source/source";
import * as units from "../units";
import { save } from "./save";
import { asCsv, asTabs, filtered, sorted } from "./table-rows";

export interface ShownColumn {
  name: string;
  /** The heading, made from the name where it is left out. */
  title?: string;
  /** A CSS grid track such as `minmax(12rem, 3fr)`. */
  width?: string;
  /** A bar behind the number, as a share of the largest in the column. */
  bar?: boolean;
  /** What is shown in the place of the value. */
  cell?: (row: number) => ComponentChildren;
}

export interface TableProps {
  table: Columns;
  columns: readonly ShownColumn[];
  /** What the exported file is called, and the prefix of the table's keys in the address (`ops.sort`). */
  id: string;
  /** The rows that may be shown, all where left out; kept the same while they are the same. */
  rows?: Int32Array | undefined;
  /** The column of the first order, `-` in front for the largest first. */
  order?: string;
  /** Columns in which the filter looks; those with text, where left out. */
  searched?: readonly string[];
  /** More tools beside the filter. */
  tools?: ComponentChildren;
  onRow?: (row: number) => void;
  selected?: (row: number) => boolean;
  /** The most height of the list, a CSS length; all the room there is, where left out. */
  height?: string;
}

const ROW_REM = 1.9;
const BEYOND = 12;

export function Table(props: TableProps) {
  const { table, columns, id, onRow, selected } = props;
  const query = route.value.query;
  const order = query[`${id}.sort`] ?? props.order ?? "";
  const [sortName, descending] = order.startsWith("-") ? [order.slice(1), true] : [order, false];
  const text = query[`${id}.find`] ?? "";
  const facts = useMemo(() => new Map(table.facts.map((column) => [column.name, column])), [table]);
  const shown = columns.filter((column) => facts.has(column.name));
  const searched =
    props.searched ?? table.facts.filter((column) => !column.numeric).map((column) => column.name);

  const kept = useMemo(
    () => filtered(table, searched, text, props.rows),
    [table, text, searched.join(), props.rows],
  );
  const rows = useMemo(() => sorted(table, kept, sortName, descending), [table, kept, sortName, descending]);
  const largest = useMemo(
    () =>
      new Map(shown.filter((column) => column.bar).map((column) => [column.name, top(table, column.name)])),
    [table, shown.map((column) => column.name).join()],
  );

  const scroll = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ first: 0, last: 60 });
  const rowHeight = ROW_REM * rem();
  const look = () => {
    const element = scroll.current;
    if (!element) return;
    const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - BEYOND);
    const last = Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + BEYOND;
    setView((before) => (before.first === first && before.last === last ? before : { first, last }));
  };
  useLayoutEffect(look, [rows]);
  useEffect(() => {
    const watcher = new ResizeObserver(look);
    if (scroll.current) watcher.observe(scroll.current);
    return () => watcher.disconnect();
  }, []);

  const tracks = shown.map((column) => column.width ?? width(facts.get(column.name))).join(" ");
  const names = table.facts.map((column) => column.name);
  const visible = rows.subarray(view.first, view.last);

  return (
    <section class="table" aria-label={id}>
      <div class="bar">
        <input
          type="search"
          placeholder="Filter"
          aria-label={`Filter ${id}`}
          value={text}
          onInput={(event) => change({ [`${id}.find`]: event.currentTarget.value || undefined }, true)}
        />
        <span class="count">
          {rows.length === table.rows
            ? `${units.count(table.rows)} rows`
            : `${units.count(rows.length)} of ${units.count(table.rows)} rows`}
          {table.total > table.rows && `, the first of ${units.count(table.total)}`}
        </span>
        {props.tools}
        <div class="tools">
          <button
            type="button"
            title="Copy what is shown, for a spreadsheet"
            onClick={() => copy(asTabs(table, rows, names))}
          >
            Copy
          </button>
          <button
            type="button"
            title="Save what is shown as a file"
            onClick={() => save(`${id}.csv`, asCsv(table, rows, names), "text/csv")}
          >
            CSV
          </button>
        </div>
      </div>
      <div
        class="scroll"
        ref={scroll}
        onScroll={look}
        style={{ maxHeight: props.height ?? "none" }}
        role="table"
        aria-rowcount={rows.length}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls it
        tabIndex={0}
      >
        <div class="head" role="row" style={{ gridTemplateColumns: tracks }}>
          {shown.map((column) => (
            <Heading
              key={column.name}
              column={column}
              facts={facts.get(column.name)}
              sort={sortName === column.name ? (descending ? "descending" : "ascending") : undefined}
              onClick={() => change({ [`${id}.sort`]: next(column.name, sortName, descending, facts) })}
            />
          ))}
        </div>
        <div class="body" role="rowgroup" style={{ height: `${rows.length * ROW_REM}rem` }}>
          {Array.from(visible, (row, offset) => (
            <div
              key={row}
              class={onRow ? "row link" : "row"}
              role="row"
              aria-selected={selected?.(row) ?? undefined}
              tabIndex={onRow ? 0 : undefined}
              onClick={onRow && (() => onRow(row))}
              onKeyDown={onRow && ((event) => event.key === "Enter" && onRow(row))}
              style={{ gridTemplateColumns: tracks, top: `${(view.first + offset) * ROW_REM}rem` }}
            >
              {shown.map((column) => (
                <Cell
                  key={column.name}
                  column={column}
                  facts={facts.get(column.name)}
                  table={table}
                  row={row}
                  largest={largest.get(column.name)}
                />
              ))}
            </div>
          ))}
        </div>
      </div>
      {rows.length === 0 && <p class="nothing">{text ? `Nothing holds “${text}”.` : "No rows."}</p>}
    </section>
  );
}

function Heading(props: {
  column: ShownColumn;
  facts: ColumnFacts | undefined;
  sort: "ascending" | "descending" | undefined;
  onClick: () => void;
}) {
  const { column, facts, sort } = props;
  return (
    <div role="columnheader" aria-sort={sort ?? "none"}>
      <button
        type="button"
        class={facts?.numeric ? "number" : ""}
        title={facts?.meaning}
        onClick={props.onClick}
      >
        <span class="name">{column.title ?? units.heading(column.name, facts?.unit ?? "")}</span>
        {sort && <span aria-hidden="true">{sort === "descending" ? "↓" : "↑"}</span>}
      </button>
    </div>
  );
}

function Cell(props: {
  column: ShownColumn;
  facts: ColumnFacts | undefined;
  table: Columns;
  row: number;
  largest: number | undefined;
}) {
  const { column, facts, table, row, largest } = props;
  const value = table.values(column.name)[row];
  const text = units.shown(value, facts?.unit ?? "", column.name);
  const share = largest && typeof value === "number" ? Math.max(0, Math.min(1, value / largest)) : 0;
  return (
    <div class={facts?.numeric ? "cell number" : "cell"} role="cell" title={exact(value, facts, text)}>
      {share > 0 && <span class="fill" style={{ width: `${share * 100}%` }} />}
      {column.cell ? column.cell(row) : text}
    </div>
  );
}

/** The value in full, where what is shown is shorter. */
function exact(value: unknown, facts: ColumnFacts | undefined, text: string): string {
  if (typeof value === "number" && facts?.unit && !facts.unit.startsWith("row of"))
    return `${value.toLocaleString("en-US")} ${facts.unit}`;
  return text.length > 2000 ? `${text.slice(0, 2000)}…` : text;
}

/** The order after a click on a heading: numbers begin with the largest, texts with the first. */
function next(
  name: string,
  current: string,
  descending: boolean,
  facts: ReadonlyMap<string, ColumnFacts>,
): string {
  if (name !== current) return facts.get(name)?.numeric ? `-${name}` : name;
  return descending ? name : `-${name}`;
}

function width(facts: ColumnFacts | undefined): string {
  return facts?.numeric ? "minmax(6rem, 1fr)" : "minmax(9rem, 3fr)";
}

function top(table: Columns, name: string): number {
  let most = 0;
  const values = table.numbers(name);
  for (let row = 0; row < values.length; row++) most = Math.max(most, values[row] ?? 0);
  return most;
}

function rem(): number {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
}

function copy(text: string): void {
  navigator.clipboard?.writeText(text).catch(() => {
    // Without the right to write the clipboard, the browser's own dialogue shows the text to copy.
    prompt("Copy:", text.slice(0, 100_000));
  });
}
