/** The heading and the cells of a table. */

import type { ColumnFacts, Columns, Value } from "../source/source";
import * as units from "../units";
import type { ShownColumn } from "./table-columns";

const MOST_TITLE = 2000;

export function Heading(props: {
  column: ShownColumn;
  place: number;
  facts: ColumnFacts | undefined;
  sort: "ascending" | "descending" | undefined;
  onClick: () => void;
}) {
  const { column, facts, sort, place } = props;
  const text = column.title ?? units.heading(column.name, facts?.unit ?? "");
  return (
    <div
      role="columnheader"
      class={place === 0 ? "first" : undefined}
      aria-sort={sort ?? "none"}
      aria-colindex={place + 1}
      style={{ gridColumn: place + 1 }}
    >
      <button
        type="button"
        class={facts?.numeric ? "number" : ""}
        title={[text, facts?.meaning].filter(Boolean).join(": ")}
        onClick={props.onClick}
      >
        <span class="name">{text}</span>
        {sort && <span aria-hidden="true">{sort === "descending" ? "↓" : "↑"}</span>}
      </button>
    </div>
  );
}

export function Cell(props: {
  id: string | undefined;
  column: ShownColumn;
  place: number;
  facts: ColumnFacts | undefined;
  table: Columns;
  row: number;
  largest: number | undefined;
}) {
  const { column, facts, table, row, largest } = props;
  const value = table.values(column.name)[row];
  const text = units.shown(value, facts?.unit ?? "", column.name);
  const share = largest && typeof value === "number" ? Math.max(0, Math.min(1, value / largest)) : 0;
  const first = props.place === 0 ? " first" : "";
  return (
    <div
      id={props.id}
      class={`${facts?.numeric ? "cell number" : "cell"}${first}`}
      role="gridcell"
      aria-colindex={props.place + 1}
      data-active={props.id === undefined ? undefined : ""}
      title={exact(value, facts, text)}
    >
      {share > 0 && <span class="fill" style={{ "--share": share }} />}
      {column.cell ? column.cell(row) : text.length > MOST_TITLE ? `${text.slice(0, MOST_TITLE)}…` : text}
    </div>
  );
}

/** The value in full, where what is shown is shorter. */
export function exact(value: unknown, facts: ColumnFacts | undefined, text: string): string {
  if (typeof value === "number" && facts?.unit && !facts.unit.startsWith("row of"))
    return `${value.toLocaleString("en-US")} ${facts.unit}`;
  return text.length > MOST_TITLE ? `${text.slice(0, MOST_TITLE)}…` : text;
}

/** The value as it is copied: exact, without its unit. */
export function copied(value: Value | undefined): string {
  return value === null || value === undefined ? "" : String(value);
}

/** Where a cell is copied from, by the place of its row among those shown and of its column. */
export interface CellPlace {
  index: number;
  column: number;
}

/** The cell that a key leads to from another one, or null for a key that leads nowhere. */
export function moved(
  from: CellPlace | null,
  key: string,
  last: CellPlace,
  page: number,
  firstSeen: number,
): CellPlace | null {
  if (last.index < 0) return null;
  const at = from ?? { index: firstSeen, column: 0 };
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page }[key];
  if (by !== undefined) return from ? { ...at, index: held(at.index + by, last.index) } : at;
  if (key === "ArrowLeft" || key === "ArrowRight")
    return from ? { ...at, column: held(at.column + (key === "ArrowLeft" ? -1 : 1), last.column) } : at;
  if (key === "Home") return { ...at, index: 0 };
  if (key === "End") return { ...at, index: last.index };
  return null;
}

function held(value: number, last: number): number {
  return Math.min(Math.max(value, 0), last);
}
