/** What ran in the chosen stretch of time, or in all that is in view while nothing is chosen. */

import { useEffect, useRef, useState } from "preact/hooks";
import { Shown, useColumns } from "../parts/answer";
import { Select } from "../parts/choice";
import { Table } from "../parts/table";
import { change, route } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import type { Sort, Track } from "./layout";
import { moment } from "./ticks";
import type { Timeline } from "./timeline";
import { FitOrClose } from "./toolbar";
import { same, type View } from "./view";

/** What is in view is counted when the view has not moved this long, or three times as long as counting took. */
const REST_MS = 350;
const MOST_REST_MS = 3000;

const PARTS: readonly (readonly [key: string, title: string, ...sorts: Sort[]])[] = [
  ["", "Threads and streams", "thread", "stream"],
  ["host", "Threads", "thread"],
  ["device", "Streams", "stream"],
  ["python", "Python", "python"],
  ["modules", "Modules", "modules"],
];

export function RangeTable(props: { timeline: Timeline; range: View | null }) {
  const { timeline, range } = props;
  const took = useRef(0);
  const inView = useRested(timeline, took);
  const view = range ?? inView;
  const all = timeline.tracks.groups.flatMap((group) => group.tracks);
  const parts = PARTS.filter(([, , ...sorts]) => tracksOf(all, sorts).length > 0);
  const chosen = parts.find(([key]) => key === (route.value.query["of"] ?? "")) ?? parts[0];
  const tracks = tracksOf(all, chosen?.slice(2) ?? []).join();
  const start = Math.floor(view.start);
  const end = Math.max(Math.ceil(view.end), start + 1);
  const query = { start, end, tracks };
  const answer = useColumns(tracks ? "range" : null, query);
  const since = useRef(0);
  useEffect(() => {
    if (answer.waiting) since.current = performance.now();
    else if (since.current) took.current = performance.now() - since.current;
  }, [answer.waiting]);
  const resolution = (end - start) / 1000;
  return (
    <div class="tl-range" aria-busy={answer.waiting}>
      <header class="tl-chosen-head">
        <h2>{range ? `${units.time(end - start)} chosen` : "In view"}</h2>
        {parts.length > 2 && (
          <Select
            label="Which tracks"
            chosen={chosen?.[0] ?? ""}
            options={parts.map(([key, title]) => [key, title])}
            onChoice={(key) => change({ of: key || undefined }, true)}
          />
        )}
        {range && <FitOrClose timeline={timeline} onClose={() => timeline.chooseRange(null)} />}
        <span class="muted name" title={`${moment(start, resolution)} to ${moment(end, resolution)}`}>
          {/* While another stretch is counted, what is there still tells of the one before. */}
          {answer.value && !answer.waiting ? summed(answer.value, end - start) : ""}
        </span>
      </header>
      <Shown answer={answer}>
        {(table) => (
          <Table
            table={table}
            id="range"
            order="-self_ns"
            columns={[
              { name: "name", width: "minmax(12rem, 4fr)" },
              {
                name: "kind",
                width: "10rem",
                cell: (row) => (table.texts("kind")[row] ?? "").replaceAll("_", " "),
              },
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

function tracksOf(all: readonly Track[], sorts: readonly string[]): number[] {
  return all.filter((track) => sorts.includes(track.sort) && !track.runs).map((track) => track.id);
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
  const spans = count === 1 ? "1 span" : `${units.count(count)} spans`;
  return `${spans} · ${units.time(self)} in all · ${(self / width).toFixed(2)} at a time`;
}
