/**
 * A table that sorts, filters, copies and exports, and draws only the rows that are in view.
 *
 * The keyboard moves in it once it has the focus: arrows, page keys, Home and End choose a cell, Enter chooses its row
 * and c copies its value.
 */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { change, route } from "../router";
import type { ColumnFacts, Columns } from "../source/source";
import * as units from "../units";
import { save } from "./save";
import { Cell, type CellPlace, copied, Heading, moved } from "./table-cells";
import { ColumnChooser } from "./table-chooser";
import { chosenColumns, groupSpans, leastWidth, type ShownColumn, track, turnedNames } from "./table-columns";
import { CopyOne } from "./table-copy";
import { asCsv, asTabs, filtered, sorted, sumOf, top } from "./table-rows";

export type { ShownColumn } from "./table-columns";

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
  /** Columns that are not offered: other cells show what is in them. */
  hidden?: readonly string[];
  /** The most height of the list, a CSS length; all the room there is, where left out. */
  height?: string;
}

const ROW_REM = 1.9;
const BEYOND = 12;
const TOLD_MS = 1500;

export function Table(props: TableProps) {
  const { table, id, onRow, selected } = props;
  const query = route.value.query;
  const order = query[`${id}.sort`] ?? props.order ?? "";
  const [sortName, descending] = order.startsWith("-") ? [order.slice(1), true] : [order, false];
  const text = query[`${id}.find`] ?? "";
  const turned = turnedNames(query[`${id}.columns`]);
  const facts = useMemo(() => new Map(table.facts.map((column) => [column.name, column])), [table]);
  const shown = chosenColumns(table, props.columns, turned);
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
  const sums = useMemo(
    () =>
      shown
        .filter((column) => column.sum)
        .map((column) => ({ column, sum: sumOf(table, kept, column.name) })),
    [table, kept, shown.map((column) => column.name).join()],
  );

  const scroll = useRef<HTMLDivElement>(null);
  const body = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ first: 0, last: 60 });
  const [active, setActive] = useState<CellPlace | null>(null);
  const told = useSignal("");
  // Whole pixels, so that lines between rows are all alike.
  const rowHeight = Math.round(ROW_REM * rem());
  const look = () => {
    const element = scroll.current;
    if (!element) return;
    const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - BEYOND);
    const last = Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + BEYOND;
    element.toggleAttribute("data-scrolled", element.scrollLeft > 0);
    setView((before) => (before.first === first && before.last === last ? before : { first, last }));
  };
  const reveal = (index: number) => {
    const element = scroll.current;
    const head = element?.firstElementChild?.clientHeight ?? 0;
    if (!element) return;
    const from = index * rowHeight;
    if (from < element.scrollTop) element.scrollTop = from;
    else if (from + rowHeight + head > element.scrollTop + element.clientHeight)
      element.scrollTop = from + rowHeight + head - element.clientHeight;
  };
  useLayoutEffect(look, [rows]);
  useLayoutEffect(() => setActive(null), [rows]);
  useLayoutEffect(() => {
    // What an address chooses is in view when the page opens.
    const at = selected ? rows.findIndex(selected) : -1;
    if (at >= 0) reveal(at);
  }, [table]);
  useEffect(() => {
    const watcher = new ResizeObserver(look);
    if (scroll.current) watcher.observe(scroll.current);
    return () => watcher.disconnect();
  }, []);

  const tracks = shown.map((column) => track(column, facts.get(column.name)));
  const grid = { gridTemplateColumns: tracks.join(" ") };
  const least = leastWidth(tracks);
  const groups = groupSpans(shown);
  const names = table.facts.map((column) => column.name);
  const visible = rows.subarray(view.first, view.last);

  const say = (words: string) => {
    told.value = words;
    setTimeout(() => {
      if (told.peek() === words) told.value = "";
    }, TOLD_MS);
  };
  const copyCell = (place: CellPlace) => {
    const row = rows[place.index];
    const column = shown[place.column];
    if (row === undefined || !column) return;
    copy(copied(table.values(column.name)[row]));
    say("Copied");
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget) return;
    const wantsCopy = event.key === "c" && !event.altKey && !getSelection()?.toString();
    const next = moved(
      active,
      event.key,
      { index: rows.length - 1, column: shown.length - 1 },
      Math.max(1, Math.floor((scroll.current?.clientHeight ?? 0) / rowHeight) - 2),
      Math.ceil((scroll.current?.scrollTop ?? 0) / rowHeight),
    );
    if (next && !event.ctrlKey && !event.metaKey && !event.altKey) {
      setActive(next);
      reveal(next.index);
      const cell = scroll.current?.querySelector(`[aria-colindex="${next.column + 1}"]`);
      if (next.column !== active?.column && cell)
        cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else if (active && wantsCopy) copyCell(active);
    else if (active && onRow && event.key === "Enter") onRow(rows[active.index] ?? 0);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const onClick = (event: MouseEvent) => {
    const index = (event.target as Element).closest<HTMLElement>(".row")?.dataset["index"];
    const row = index === undefined ? undefined : rows[Number(index)];
    // A text that was just marked, to be copied, is no choice.
    if (row === undefined || getSelection()?.type === "Range") return;
    setActive({ index: Number(index), column: active?.column ?? 0 });
    onRow?.(row);
  };

  return (
    <section class="table" aria-label={id.replaceAll("_", " ")}>
      <div class="bar">
        <input
          type="search"
          placeholder="Filter"
          aria-label={`Filter ${id.replaceAll("_", " ")}`}
          value={text}
          onInput={(event) => change({ [`${id}.find`]: event.currentTarget.value || undefined }, true)}
        />
        <span class="count">
          {rows.length === table.rows
            ? `${units.count(table.rows)} rows`
            : `${units.count(rows.length)} of ${units.count(table.rows)} rows`}
          {table.total > table.rows && `, the first of ${units.count(table.total)}`}
          {sums.map(({ column, sum }) => (
            <Sum key={column.name} column={column} facts={facts.get(column.name)} sum={sum} />
          ))}
        </span>
        {props.tools}
        <div class="tools">
          <span class={told.value ? "copied" : undefined} role="status">
            {told}
          </span>
          <ColumnChooser
            id={id}
            table={table}
            columns={props.columns}
            hidden={props.hidden}
            shown={shown}
            turned={turned}
          />
          <button
            type="button"
            title="Copy what is shown, for a spreadsheet"
            onClick={() => {
              copy(asTabs(table, rows, names));
              say("Copied");
            }}
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
        onKeyDown={onKey}
        onClick={onRow && onClick}
        style={{ maxHeight: props.height ?? "none", "--row": `${rowHeight}px` }}
        role="grid"
        aria-label={id.replaceAll("_", " ")}
        aria-rowcount={rows.length + 1}
        aria-colcount={shown.length}
        aria-activedescendant={active ? `${id}-active` : undefined}
        tabIndex={0}
      >
        <div
          class="head"
          role="row"
          style={{ ...grid, minWidth: least }}
          data-groups={groups.length ? "" : undefined}
        >
          {groups.map((one) => (
            <span
              key={one.first}
              class="group"
              aria-hidden="true"
              style={{ gridColumn: `${one.first} / ${one.beyond}` }}
            >
              {one.group}
            </span>
          ))}
          {shown.map((column, place) => (
            <Heading
              key={column.name}
              column={column}
              place={place}
              facts={facts.get(column.name)}
              sort={sortName === column.name ? (descending ? "descending" : "ascending") : undefined}
              onClick={() => change({ [`${id}.sort`]: next(column.name, sortName, descending, facts) })}
            />
          ))}
        </div>
        <div
          class="body"
          role="rowgroup"
          ref={body}
          style={{ height: `${rows.length * rowHeight}px`, minWidth: least }}
        >
          {Array.from(visible, (row, offset) => (
            <div
              key={row}
              class={onRow ? "row link" : "row"}
              role="row"
              aria-rowindex={view.first + offset + 2}
              aria-selected={selected?.(row) ?? undefined}
              data-index={view.first + offset}
              style={{ ...grid, top: `${(view.first + offset) * rowHeight}px` }}
            >
              {shown.map((column, place) => (
                <Cell
                  key={column.name}
                  id={
                    active?.index === view.first + offset && active.column === place
                      ? `${id}-active`
                      : undefined
                  }
                  column={column}
                  place={place}
                  facts={facts.get(column.name)}
                  table={table}
                  row={row}
                  largest={largest.get(column.name)}
                />
              ))}
            </div>
          ))}
          <CopyOne
            body={body}
            onCopy={(cell) =>
              copyCell({
                index: Number(cell.parentElement?.dataset["index"]),
                column: Number(cell.ariaColIndex) - 1,
              })
            }
          />
        </div>
      </div>
      {rows.length === 0 && <p class="nothing">{text ? `Nothing holds “${text}”.` : "No rows."}</p>}
    </section>
  );
}

function Sum(props: { column: ShownColumn; facts: ColumnFacts | undefined; sum: number }) {
  const { column, facts, sum } = props;
  const title = column.title ?? units.heading(column.name, facts?.unit ?? "");
  return (
    <span title={`${units.count(sum)} ${facts?.unit ?? ""} in the rows that are shown`}>
      {" · "}
      {title.toLowerCase()} {units.shown(sum, facts?.unit ?? "", column.name)}
    </span>
  );
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

function rem(): number {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
}

function copy(text: string): void {
  navigator.clipboard?.writeText(text).catch(() => {
    // Without the right to write the clipboard, the browser's own dialogue shows the text to copy.
    prompt("Copy:", text.slice(0, 100_000));
  });
}
