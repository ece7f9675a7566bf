/** The calls of what is chosen, longest first; each leads to its place on the timeline. */

import { useMemo } from "preact/hooks";
import { Nothing, Shown, useColumns, useSource } from "../parts/answer";
import { type ShownColumn, Table } from "../parts/table";
import { says } from "../parts/table-columns";
import { address, go } from "../router";
import type { Columns, Query } from "../source/source";
import * as units from "../units";
import type { Bar } from "./bars";
import { rowsWhere } from "./find";

/** What tells calls apart, where it is known. */
const PLACES: readonly ShownColumn[] = [
  { name: "step", width: [3.5, 0.5] },
  { name: "shapes", width: [9, 3] },
  { name: "module", width: [9, 3] },
];

export function Calls(props: { asked: Query; bar: Bar | undefined }) {
  const { asked, bar } = props;
  const source = useSource();
  const narrowed = bar ? { ...asked, from_ns: bar.low, below_ns: bar.high } : asked;
  const all = useColumns(source.has("instances", asked) ? "instances" : null, asked);
  // Where all calls have come, those of a bar are among them; a report can answer no other way.
  const inPage = !bar || (all.value !== undefined && all.value.total <= all.value.rows);
  const some = useColumns(!inPage && source.has("instances", narrowed) ? "instances" : null, narrowed);
  if (!source.has("instances", asked)) return <Nothing>A report does not carry these calls.</Nothing>;
  return (
    <Shown answer={bar && !inPage ? some : all}>
      {(table) => <CallsTable table={table} bar={inPage ? bar : undefined} />}
    </Shown>
  );
}

function CallsTable(props: { table: Columns; bar: Bar | undefined }) {
  const { table, bar } = props;
  const rows = useMemo(() => {
    if (!bar) return undefined;
    const durations = table.numbers("duration_ns");
    return rowsWhere(table, (row) => (durations[row] ?? 0) >= bar.low && (durations[row] ?? 0) < bar.high);
  }, [table, bar?.low, bar?.high]);
  const spans = table.numbers("span");
  const starts = table.numbers("start_ns");
  return (
    <Table
      table={table}
      rows={rows}
      id="calls"
      order="-duration_ns"
      columns={[
        {
          name: "start_ns",
          title: "At",
          width: [5.5, 1],
          cell: (row) => (
            <a
              href={address("timeline", { span: String(spans[row]) })}
              title="Show it on the timeline"
              onClick={(event) => event.stopPropagation()}
            >
              {units.time(starts[row])}
            </a>
          ),
        },
        { name: "duration_ns", title: "Duration", bar: true, width: [5.5, 1] },
        { name: "self_ns", title: "Self", width: [5, 1] },
        ...PLACES.filter(({ name }) => says(table, name)),
      ]}
      onRow={(row) => go("timeline", { span: String(spans[row]) })}
      height="21rem"
    />
  );
}
