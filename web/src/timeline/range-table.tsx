/** What ran in the chosen stretch of time. */

import { Shown, useColumns } from "../parts/answer";
import { Table } from "../parts/table";
import { change, route } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import type { Sort, Track } from "./layout";
import { moment } from "./ticks";
import type { Timeline } from "./timeline";
import type { View } from "./view";

const PARTS: readonly { key: string; title: string; sorts: readonly Sort[] }[] = [
  { key: "", title: "All", sorts: ["thread", "stream"] },
  { key: "host", title: "Host", sorts: ["thread"] },
  { key: "device", title: "Device", sorts: ["stream"] },
  { key: "python", title: "Python", sorts: ["python"] },
  { key: "modules", title: "Modules", sorts: ["modules"] },
];

export function RangeTable(props: { timeline: Timeline; range: View }) {
  const { timeline, range } = props;
  const all = timeline.tracks.groups.flatMap((group) => group.tracks);
  const parts = PARTS.filter((part) => tracksOf(all, part.sorts).length > 0);
  const chosen = parts.find((part) => part.key === (route.value.query["of"] ?? "")) ?? parts[0];
  const tracks = tracksOf(all, chosen?.sorts ?? []).join();
  const start = Math.round(range.start);
  const end = Math.round(range.end);
  const answer = useColumns(tracks ? "range" : null, { start, end, tracks });
  const resolution = (end - start) / 1000;
  return (
    <div class="tl-range">
      <header class="tl-chosen-head">
        <h2>{units.time(end - start)} chosen</h2>
        <span class="muted">
          {moment(start, resolution)} to {moment(end, resolution)}
        </span>
        {answer.value && <span class="muted">{summed(answer.value, end - start)}</span>}
        <div class="tools">
          {parts.length > 2 && (
            <span class="choice">
              {parts.map((part) => (
                <button
                  type="button"
                  key={part.key}
                  aria-pressed={part === chosen}
                  onClick={() => change({ of: part.key || undefined }, true)}
                >
                  {part.title}
                </button>
              ))}
            </span>
          )}
          <button type="button" title="Fit it into the view (f)" onClick={() => timeline.fit()}>
            Fit
          </button>
          <button
            type="button"
            title="Choose nothing (Esc)"
            aria-label="Close"
            onClick={() => timeline.chooseRange(null)}
          >
            ✕
          </button>
        </div>
      </header>
      <Shown answer={answer}>
        {(table) => (
          <Table
            table={table}
            id="range"
            order="-self_ns"
            columns={[
              { name: "name", width: "minmax(12rem, 4fr)" },
              { name: "kind", width: "8rem" },
              { name: "count", width: "minmax(5rem, 1fr)" },
              { name: "self_ns", bar: true },
              { name: "total_ns", bar: true },
              { name: "share", title: "Self %", width: "minmax(5rem, 1fr)" },
            ]}
            onRow={(row) => change({ find: table.texts("name")[row] ?? undefined }, true)}
          />
        )}
      </Shown>
    </div>
  );
}

function tracksOf(all: readonly Track[], sorts: readonly Sort[]): number[] {
  return all.filter((track) => sorts.includes(track.sort)).map((track) => track.id);
}

/** What all rows come to together. */
function summed(table: Columns, width: number): string {
  let self = 0;
  let count = 0;
  for (let row = 0; row < table.rows; row++) {
    self += table.numbers("self_ns")[row] ?? 0;
    count += table.numbers("count")[row] ?? 0;
  }
  const busy = width > 0 ? self / width : 0;
  return `${units.count(count)} spans, ${units.time(self)} in all: ${busy.toFixed(2)} busy at a time`;
}
