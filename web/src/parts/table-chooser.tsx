/** A button that opens the list of the columns a table can show. */

import { useMemo, useRef } from "preact/hooks";
import { change } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { offeredColumns, type ShownColumn, turn } from "./table-columns";

export function ColumnChooser(props: {
  id: string;
  table: Columns;
  columns: readonly ShownColumn[];
  hidden: readonly string[] | undefined;
  shown: readonly ShownColumn[];
  turned: ReadonlySet<string>;
}) {
  const { id, table, turned } = props;
  const list = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const offered = useMemo(() => offeredColumns(table, props.columns, props.hidden), [table, props.columns]);
  const shown = new Set(props.shown.map((column) => column.name));
  if (offered.length < 2) return null;
  const open = () => {
    const place = button.current?.getBoundingClientRect();
    if (!place || !list.current) return;
    // In the top layer nothing cuts it off; it hangs below the button.
    list.current.style.top = `${place.bottom + 4}px`;
    list.current.style.right = `${Math.max(8, innerWidth - place.right)}px`;
    list.current.style.maxHeight = `${Math.max(160, innerHeight - place.bottom - 16)}px`;
    list.current.togglePopover();
  };
  return (
    <>
      <button
        ref={button}
        type="button"
        title="Choose what is shown"
        aria-haspopup="dialog"
        onClick={open}
        onPointerDown={(event) => {
          // Otherwise the list closes at the press and opens again at the click.
          if (list.current?.matches(":popover-open")) {
            event.preventDefault();
            list.current.hidePopover();
            event.currentTarget.dataset["closed"] = "";
          } else delete event.currentTarget.dataset["closed"];
        }}
        onClickCapture={(event) => {
          if (event.currentTarget.dataset["closed"] === undefined) return;
          delete event.currentTarget.dataset["closed"];
          event.stopImmediatePropagation();
        }}
      >
        Columns
      </button>
      <div ref={list} popover="auto" class="columns" role="dialog" aria-label="Columns">
        {offered.map((column) => {
          const facts = table.facts.find((one) => one.name === column.name);
          return (
            <label key={column.name} title={facts?.meaning}>
              <input
                type="checkbox"
                checked={shown.has(column.name)}
                onChange={() => change({ [`${id}.columns`]: turn(turned, column.name) }, true)}
              />
              <span>
                {column.group ? <span class="muted">{column.group} · </span> : null}
                {column.title ?? units.heading(column.name, facts?.unit ?? "")}
              </span>
            </label>
          );
        })}
        {turned.size > 0 && (
          <button type="button" onClick={() => change({ [`${id}.columns`]: undefined }, true)}>
            As at first
          </button>
        )}
      </div>
    </>
  );
}
