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

/** As many calls of one name as a report has: `MOST_REPORTED_CALLS` in `viewer/pages/operators.py`. */
const LONGEST_IN_REPORT = 50;

/** What distinguishes calls, where it was recorded. */
const PLACES: readonly ShownColumn[] = [
  { name: "step", width: [3.5, 0.5] },
  { name: "shapes", width: [9, 3] },
  { name: "module", width: [9, 3] },
];

export function Calls(props: { asked: Query; bar: Bar | undefined }) {
  const { bar } = props;
  const source = useSource();
  const asked = source.served ? props.asked : { ...props.asked, limit: LONGEST_IN_REPORT };
  const narrowed = bar ? { ...asked, from_ns: bar.low, below_ns: bar.high } : asked;
  const all = useColumns(source.has("instances", asked) ? "instances" : null, asked);
  // Where all calls are here, those of a bar are among them; a report has no others.
  const inPage = !bar || !source.served || (all.value !== undefined && all.value.total <= all.value.rows);
  const some = useColumns(!inPage && source.has("instances", narrowed) ? "instances" : null, narrowed);
  if (!source.has("instances", asked))
    return (
      <Nothing>
        This report does not include these calls: open the trace with <code>kinetoscope view</code>.
      </Nothing>
    );
  return (
    <Shown answer={bar && !inPage ? some : all}>
      {(table) => (
        <>
          {!source.served && table.rows < table.total && (
            <p class="muted small">
              This report includes the longest {table.rows} of {units.count(table.total)} calls. For all of
              them, open the trace with <code>kinetoscope view</code>.
            </p>
          )}
          <CallsTable table={table} bar={inPage ? bar : undefined} />
        </>
      )}
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
