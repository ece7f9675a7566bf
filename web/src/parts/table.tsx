/**
 * A table that sorts, filters, copies and exports, and draws only the rows that are in view.
 *
 * The keyboard moves in it once it has the focus: arrows, page keys, Home and End choose a cell, Enter chooses its row
 * and c copies its value.
 */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useState } from "preact/hooks";
import { change, route } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { Button } from "./button";
import { rem, reveal, useSized } from "./lengths";
import { save } from "./save";
import { Cell, type CellPlace, Heading, moved } from "./table-cells";
import { ColumnChooser } from "./table-chooser";
import { chosenColumns, groupSpans, leastWidth, type ShownColumn, track, turnedNames } from "./table-columns";
import { CopyOne, useCopyPlace } from "./table-copy";
import { asCsv, asTabs, byColumn, filtered, sumOf, top } from "./table-rows";

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
  /** Where rows hold rows: which are in sight, and how keys walk through them. */
  outline?: Outlined;
}

/** Rows within rows, of which some are open. */
export interface Outlined {
  /** The rows in sight, of those that the filter found. */
  inSight: (found: Int32Array, order: (a: number, b: number) => number) => Int32Array;
  depth: (row: number) => number;
  /** The row that holds a row, -1 for none. */
  around: (row: number) => number;
  /** Whether a row is open; undefined where it holds none. */
  open: (row: number) => boolean | undefined;
  turn: (row: number) => void;
  /** The row that is chosen, -1 for none: keys walk on from it, and choose the row they lead to. */
  chosen: number;
  choose: (row: number) => void;
}

const ROW_REM = 1.9;
const NARROWEST_REM = 4;
const BEYOND = 12;
const TOLD_MS = 1500;

export function Table(props: TableProps) {
  const { table, id, onRow, selected, outline } = props;
  const query = route.value.query;
  const order = query[`${id}.sort`] ?? props.order ?? "";
  const descending = order.startsWith("-");
  const sortName = descending ? order.slice(1) : order;
  const text = query[`${id}.find`] ?? "";
  const label = id.replaceAll("_", " ");
  const turned = turnedNames(query[`${id}.columns`]);
  const shown = chosenColumns(table, props.columns, turned);
  const names = table.facts.map((column) => column.name);
  const searched =
    props.searched ?? table.facts.filter((column) => !column.numeric).map((column) => column.name);

  const kept = useMemo(
    () => filtered(table, searched, text, props.rows),
    [table, text, searched.join(), props.rows],
  );
  const rows = useMemo(() => {
    const compare = byColumn(table, sortName, descending);
    return outline ? outline.inSight(kept, compare) : kept.slice().sort(compare);
  }, [table, kept, order, outline?.inSight]);
  const [largest, sums] = useMemo(
    () => [
      new Map(shown.filter((column) => column.bar).map(({ name }) => [name, top(table, name)])),
      shown
        .filter((column) => column.sum)
        .map((column) => ({ column, sum: sumOf(table, kept, column.name) })),
    ],
    [table, kept, shown.map((column) => column.name).join()],
  );

  const { place: copyPlace, ...pointed } = useCopyPlace();
  const [view, setView] = useState({ first: 0, last: 60 });
  const [active, setActive] = useState<CellPlace | null>(null);
  const status = useSignal("");
  // Whole pixels, so that lines between rows are all alike.
  const rowHeight = Math.round(ROW_REM * rem());
  const look = (element: HTMLElement) => {
    const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - BEYOND);
    const last = Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + BEYOND;
    element.toggleAttribute("data-scrolled", element.scrollLeft > 0);
    setView((before) => (before.first === first && before.last === last ? before : { first, last }));
  };
  const scroll = useSized<HTMLDivElement>(look);
  const showRow = (index: number) =>
    reveal(scroll.current, index * rowHeight, rowHeight, scroll.current?.firstElementChild?.clientHeight);
  const walked = outline ? rows.indexOf(outline.chosen) : -1;
  useLayoutEffect(() => {
    if (scroll.current) look(scroll.current);
    setActive(walked < 0 ? null : { index: walked, column: active?.column ?? 0 });
  }, [rows, walked]);
  useLayoutEffect(() => {
    // What an address chooses is in view when the page opens.
    const at = selected ? rows.findIndex(selected) : -1;
    if (at >= 0) showRow(at);
  }, [table]);
  useLayoutEffect(() => {
    if (walked >= 0) showRow(walked);
  }, [walked]);

  const wide = Number(query[`${id}.width`]) || 0;
  const tracks = shown.map((column, place) => (place === 0 && wide > 0 ? `${wide}rem` : track(column)));
  const minWidth = leastWidth(tracks);
  const grid = { gridTemplateColumns: tracks.join(" "), minWidth };
  const groups = groupSpans(shown);

  const copyText = (text: string) => {
    copy(text);
    status.value = "Copied";
    setTimeout(() => {
      status.value = "";
    }, TOLD_MS);
  };
  const copyCell = (place: CellPlace) => {
    const row = rows[place.index];
    const column = shown[place.column];
    if (row !== undefined && column) copyText(String(table.values(column.name)[row] ?? ""));
  };
  /** Opens and closes a row, or leads to the one around it. */
  const turns = (key: string): boolean => {
    const opens = { ArrowLeft: false, ArrowRight: true }[key];
    const row = active?.column === 0 ? rows[active.index] : undefined;
    if (!outline || opens === undefined || row === undefined) return false;
    if (outline.open(row) === !opens) outline.turn(row);
    else if (opens) return false;
    else if (outline.around(row) >= 0) outline.choose(outline.around(row));
    return true;
  };
  const onKey = (event: KeyboardEvent) => {
    const { key, currentTarget } = event;
    const element = scroll.current;
    if (event.target !== currentTarget || !element) return;
    const wantsCopy = key === "c" && !event.altKey && !getSelection()?.toString();
    const next = moved(
      active,
      key,
      { index: rows.length - 1, column: shown.length - 1 },
      Math.max(1, Math.floor(element.clientHeight / rowHeight) - 2),
      Math.ceil(element.scrollTop / rowHeight),
    );
    if (next && !event.ctrlKey && !event.metaKey && !event.altKey) {
      if (!turns(key)) {
        setActive(next);
        showRow(next.index);
        if (next.index !== active?.index) outline?.choose(rows[next.index] ?? -1);
        if (next.column !== active?.column)
          element
            .querySelector(`[aria-colindex="${next.column + 1}"]`)
            ?.scrollIntoView({ block: "nearest", inline: "nearest" });
      }
    } else if (active && wantsCopy) copyCell(active);
    else if (active && onRow && key === "Enter") onRow(rows[active.index] ?? 0);
    else if (key === "Escape" && outline && outline.chosen >= 0) outline.choose(-1);
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

  const used = {
    role: outline ? "treegrid" : "grid",
    "aria-label": label,
    "aria-rowcount": rows.length + 1,
    "aria-colcount": shown.length,
    "aria-activedescendant": active ? `${id}-active` : undefined,
    tabIndex: 0,
    onKeyDown: onKey,
    onClick: onRow && onClick,
  } as const;

  return (
    <section class="table" aria-label={label}>
      <div class="bar">
        <input
          type="search"
          placeholder="Filter"
          aria-label={`Filter ${label}`}
          value={text}
          onInput={(event) => change({ [`${id}.find`]: event.currentTarget.value || undefined }, true)}
        />
        <span class="count">
          {kept.length < table.rows && `${units.count(kept.length)} of `}
          {table.total > table.rows
            ? `the first ${units.count(table.rows)} of ${units.count(table.total)} rows`
            : `${units.count(table.rows)} ${table.rows === 1 ? "row" : "rows"}`}
          {sums.map(({ column, sum }) => (
            <span
              key={column.name}
              title={`${units.count(sum)} ${column.facts.unit} in the rows that are shown`}
            >
              {" · "}
              {column.title.toLowerCase()} {units.shown(sum, column.facts.unit, column.name)}
            </span>
          ))}
        </span>
        {props.tools}
        <div class="tools">
          <span class={status.value ? "copied" : undefined} role="status">
            {status}
          </span>
          <ColumnChooser
            id={id}
            table={table}
            columns={props.columns}
            hidden={props.hidden}
            shown={shown}
            turned={turned}
          />
          <Button
            title="Copy the table for a spreadsheet"
            onClick={() => copyText(asTabs(table, rows, names))}
          >
            Copy
          </Button>
          <Button
            title="Save the table as CSV"
            onClick={() => save(`${id}.csv`, asCsv(table, rows, names), "text/csv")}
          >
            CSV
          </Button>
        </div>
      </div>
      <div
        class="scroll"
        ref={scroll}
        onScroll={(event) => look(event.currentTarget)}
        style={{ maxHeight: props.height ?? "none", "--row": `${rowHeight}px` }}
        {...used}
      >
        <div class="head" role="row" style={grid} data-groups={groups.length ? "" : undefined}>
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
              onWidth={
                place === 0 && !column.facts.numeric
                  ? (width) =>
                      change({ [`${id}.width`]: Math.max(width / rem(), NARROWEST_REM).toFixed(1) }, true)
                  : undefined
              }
              sort={sortName === column.name ? (descending ? "descending" : "ascending") : undefined}
              onClick={() => {
                // Numbers begin with the largest, texts with the first.
                const down = sortName === column.name ? !descending : column.facts.numeric;
                change({ [`${id}.sort`]: down ? `-${column.name}` : column.name });
              }}
            />
          ))}
        </div>
        <div
          class="body"
          role="rowgroup"
          {...pointed}
          style={{ height: `${rows.length * rowHeight}px`, minWidth }}
        >
          {Array.from(rows.subarray(view.first, view.last), (row, offset) => {
            const index = view.first + offset;
            return (
              <div
                key={row}
                class={onRow ? "row link" : "row"}
                role="row"
                aria-rowindex={index + 2}
                aria-level={outline && outline.depth(row) + 1}
                aria-expanded={outline?.open(row)}
                aria-selected={selected?.(row)}
                data-index={index}
                style={{ ...grid, top: `${index * rowHeight}px` }}
              >
                {shown.map((column, place) => (
                  <Cell
                    key={column.name}
                    id={active?.index === index && active.column === place ? `${id}-active` : undefined}
                    column={column}
                    place={place}
                    table={table}
                    row={row}
                    largest={largest.get(column.name)}
                  />
                ))}
              </div>
            );
          })}
          <CopyOne
            place={copyPlace}
            onCopy={(cell) =>
              copyCell({
                index: Number(cell.parentElement?.dataset["index"]),
                column: Number(cell.ariaColIndex) - 1,
              })
            }
          />
        </div>
      </div>
      {rows.length === 0 && <p class="nothing">{text ? `No rows match “${text}”.` : "No rows."}</p>}
    </section>
  );
}

function copy(text: string): void {
  navigator.clipboard?.writeText(text).catch(() => {
    // Without the right to write the clipboard, the browser's own dialogue shows the text to copy.
    prompt("Copy:", text.slice(0, 100_000));
  });
}
