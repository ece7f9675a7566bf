/** What ran in the selected time range, or in the view while nothing is selected. */

import { useEffect, useRef, useState } from "preact/hooks";
import { kindWord, lineName } from "../operators/kinds";
import { Shown, useColumns, useSource } from "../parts/answer";
import { Button } from "../parts/button";
import { Select } from "../parts/choice";
import { Middle } from "../parts/middle";
import { Table } from "../parts/table";
import { change, go, route } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import type { Sort } from "./layout";
import { moment } from "./ticks";
import type { Timeline } from "./timeline";
import { FitOrClose } from "./toolbar";
import { same, type View } from "./view";

/** What is in view is counted when the view has not moved this long, or three times as long as counting took. */
const REST_MS = 350;
const MOST_REST_MS = 3000;

const PARTS: readonly (readonly [key: string, title: string, ...sorts: Sort[]])[] = [
  ["work", "Threads and streams", "thread", "stream"],
  ["host", "Threads", "thread"],
  ["device", "Streams", "stream"],
  ["python", "Python", "python"],
  ["modules", "Modules", "modules"],
];

export function RangeTable(props: { timeline: Timeline; range: View | null }) {
  const { timeline, range } = props;
  const took = useRef(0);
  const inView = useRested(timeline, took);
  const source = useSource();
  const { served } = source;
  // A report has the sums of the whole trace; those of any other range need all spans and their nesting.
  const view = served ? (range ?? inView) : timeline.whole;
  const all = timeline.tracks.groups.flatMap((group) => group.tracks);
  const parts = PARTS.filter(([, , ...sorts]) => all.some(({ sort, runs }) => sorts.includes(sort) && !runs));
  const [of = ""] = parts.find(([key]) => key === (route.value.query["of"] ?? "work")) ?? parts[0] ?? [];
  const start = Math.floor(view.start);
  const end = Math.max(Math.ceil(view.end), start + 1);
  const answer = useColumns(of ? "range" : null, served ? { start, end, of } : { of });
  const since = useRef(0);
  useEffect(() => {
    if (answer.waiting) since.current = performance.now();
    else if (since.current) took.current = performance.now() - since.current;
  }, [answer.waiting]);
  const resolution = (end - start) / 1000;
  return (
    <div class="tl-range" aria-busy={answer.waiting}>
      <header class="tl-chosen-head">
        <h2>{served ? (range ? `${units.time(end - start)} selected` : "In view") : "Whole trace"}</h2>
        {parts.length > 2 && (
          <Select
            label="Tracks"
            chosen={of}
            options={parts.map(([key, title]) => [key, title])}
            onChoice={(key) => change({ of: key === "work" ? undefined : key }, true)}
          />
        )}
        {range && served && (
          <Button
            title="Show only this range in Operators, Kernels, Modules, Stacks and Memory"
            onClick={() => go("operators", { part: `${Math.max(start, 0)}-${end}` })}
          >
            Filter pages
          </Button>
        )}
        {range && <FitOrClose timeline={timeline} onClose={() => timeline.chooseRange(null)} />}
        <span class="muted name" title={`${moment(start, resolution)} to ${moment(end, resolution)}`}>
          {/* While another range is summed, what is shown is still of the one before. */}
          {answer.value && !answer.waiting ? summed(answer.value, end - start) : ""}
        </span>
      </header>
      {range && !served && (
        <p class="muted small">
          {units.time(range.end - range.start)} selected. For the sums of a range, open the trace with{" "}
          <code>kinetoscope view</code>.
        </p>
      )}
      <Shown answer={answer}>
        {(table) => (
          <Table
            table={table}
            id="range"
            order="-self_ns"
            columns={[
              {
                name: "name",
                width: "minmax(12rem, 4fr)",
                cell: (row) => (
                  <Middle>{lineName(table.texts("kind")[row] ?? "", table.texts("name")[row] ?? "")}</Middle>
                ),
              },
              { name: "kind", width: "9rem", cell: (row) => kindWord(table.texts("kind")[row] ?? "") },
              { name: "count", width: "minmax(5rem, 1fr)" },
              { name: "self_ns", bar: true },
              { name: "total_ns", bar: true },
              { name: "share", title: "Self %", width: "minmax(5rem, 1fr)" },
            ]}
            selected={(row) => table.texts("name")[row] === timeline.search.text.value}
            onRow={(row) => {
              const name = table.texts("name")[row] ?? "";
              change({ find: name === timeline.search.text.peek() ? undefined : name }, true);
            }}
          />
        )}
      </Shown>
    </div>
  );
}

/** The view, once it has not moved for a while: a table that changes with every frame could not be read. */
function useRested(timeline: Timeline, took: { readonly current: number }): View {
  const [view, setView] = useState(timeline.view.peek());
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const end = timeline.view.subscribe((now) => {
      clearTimeout(timer);
      const rest = Math.min(Math.max(took.current * 3, REST_MS), MOST_REST_MS);
      timer = setTimeout(() => setView((before) => (same(before, now) ? before : now)), rest);
    });
    return () => {
      clearTimeout(timer);
      end();
    };
  }, [timeline, took]);
  return view;
}

/** What all rows come to together. */
function summed(table: Columns, width: number): string {
  let self = 0;
  let count = 0;
  for (let row = 0; row < table.rows; row++) {
    self += table.numbers("self_ns")[row] ?? 0;
    count += table.numbers("count")[row] ?? 0;
  }
  if (!count) return "nothing ran";
  const spans = units.counted(count, "span");
  return `${spans} · ${units.time(self)} total self time · ${(self / width).toFixed(2)} concurrent on average`;
}
