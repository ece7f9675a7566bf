/** A button that opens the list of the columns a table can show. */

import { useMemo, useRef } from "preact/hooks";
import { change } from "../router";
import type { Columns } from "../source/source";
import { Button } from "./button";
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
  const offered = useMemo(() => offeredColumns(table, props.columns, props.hidden), [table, props.columns]);
  const shown = new Set(props.shown.map((column) => column.name));
  if (offered.length < 2) return null;
  // In the top layer nothing cuts it off; it hangs below the button.
  const place = (button: HTMLElement) => {
    const { bottom, right } = button.getBoundingClientRect();
    Object.assign(list.current?.style ?? {}, {
      top: `${bottom + 4}px`,
      right: `${Math.max(8, innerWidth - right)}px`,
      maxHeight: `${Math.max(160, innerHeight - bottom - 16)}px`,
    });
  };
  return (
    <>
      <Button
        title="Choose columns"
        aria-haspopup="dialog"
        popovertarget={`${id}-columns`}
        onClick={(event) => place(event.currentTarget)}
      >
        Columns
      </Button>
      <div ref={list} id={`${id}-columns`} popover="auto" class="columns" role="dialog" aria-label="Columns">
        {offered.map((column) => (
          <label key={column.name} title={column.facts.meaning}>
            <input
              type="checkbox"
              checked={shown.has(column.name)}
              onChange={() => change({ [`${id}.columns`]: turn(turned, column.name) }, true)}
            />
            <span>
              {column.group && <span class="muted">{column.group} · </span>}
              {column.title}
            </span>
          </label>
        ))}
        {turned.size > 0 && (
          <Button onClick={() => change({ [`${id}.columns`]: undefined }, true)}>Reset columns</Button>
        )}
      </div>
    </>
  );
}
