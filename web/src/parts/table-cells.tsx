/** The heading and the cells of a table. */

import type { Columns } from "../source/source";
import * as units from "../units";
import { Button } from "./button";
import { Grip } from "./grip";
import { Middle } from "./middle";
import type { Column } from "./table-columns";

const MOST_TITLE = 2000;

export function Heading(props: {
  column: Column;
  place: number;
  sort: "ascending" | "descending" | undefined;
  onClick: () => void;
  /** Called with a width in pixels while the column is made wider or narrower; left out where it cannot be. */
  onWidth?: ((width: number) => void) | undefined;
}) {
  const { column, sort, place, onWidth } = props;
  const { title, facts } = column;
  return (
    <div
      role="columnheader"
      class={place === 0 ? "first" : undefined}
      aria-sort={sort ?? "none"}
      aria-colindex={place + 1}
      style={{ gridColumn: place + 1 }}
    >
      <Button
        class={facts.numeric ? "number" : ""}
        title={[title, facts.meaning].filter(Boolean).join(": ")}
        onClick={props.onClick}
      >
        <span class="name">{title}</span>
        {sort && <span aria-hidden="true">{sort === "descending" ? "↓" : "↑"}</span>}
      </Button>
      {onWidth && <Grip label={`Width of ${title}`} onWidth={onWidth} />}
    </div>
  );
}

export function Cell(props: {
  id: string | undefined;
  column: Column;
  place: number;
  table: Columns;
  row: number;
  largest: number | undefined;
}) {
  const { id, column, place, table, row, largest } = props;
  const { name, facts } = column;
  const value = table.values(name)[row];
  const text = units.shown(value, facts.unit, name);
  const cut = text.length > MOST_TITLE ? `${text.slice(0, MOST_TITLE)}…` : text;
  const isNumber = typeof value === "number";
  const share = largest && isNumber ? Math.max(0, Math.min(1, value / largest)) : 0;
  // The value in full, where what is shown is shorter.
  const exact = isNumber && facts.unit && !facts.unit.startsWith("row of");
  const classes = ["cell", facts.numeric && "number", place === 0 && "first", value === 0 && "faint"];
  return (
    <div
      id={id}
      class={classes.filter(Boolean).join(" ")}
      role="gridcell"
      aria-colindex={place + 1}
      data-active={id && ""}
      title={exact ? `${value.toLocaleString("en-US")} ${facts.unit}` : cut}
    >
      {share > 0 && <span class="fill" style={{ "--share": share }} />}
      {column.cell ? column.cell(row) : typeof value === "string" ? <Middle>{cut}</Middle> : cut}
    </div>
  );
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
  const down = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page }[key] ?? 0;
  const right = { ArrowLeft: -1, ArrowRight: 1 }[key] ?? 0;
  if (down || right)
    return from
      ? { index: held(at.index + down, last.index), column: held(at.column + right, last.column) }
      : at;
  if (key === "Home") return { ...at, index: 0 };
  if (key === "End") return { ...at, index: last.index };
  return null;
}

function held(value: number, last: number): number {
  return Math.min(Math.max(value, 0), last);
}
