/** Who held the memory at the cursor or, without one, at the peak. */

import { Nothing, Shown, useColumns, useSource } from "../parts/answer";
import { Choice } from "../parts/choice";
import { Table } from "../parts/table";
import { address, change } from "../router";
import * as units from "../units";
import type { Device } from "./facts";

const GROUPINGS = [
  ["all", "All"],
  ["category", "Category"],
  ["module", "Module"],
  ["operator", "Operator"],
  ["line", "Line"],
] as const;

export function LiveView(props: {
  device: Device;
  /** The chosen time, undefined for the peak. */
  time: number | undefined;
  by: string;
  chosen: number | undefined;
  onStack: (stack: number | undefined) => void;
}) {
  const { device, time, chosen, onStack } = props;
  const by = GROUPINGS.some(([name]) => name === props.by) ? props.by : "all";
  const source = useSource();
  const query = { device: device.key, by, time };
  const can = source.has("memory/live", query);
  const answer = useColumns("memory/live", can ? query : { device: device.key, by });
  const shownTime = can && time !== undefined ? time : device.peak_ns;
  return (
    <section class="part">
      <header class="title">
        <h2>
          Live {shownTime === device.peak_ns ? "at the peak" : "at the cursor"}, {units.time(shownTime)}
        </h2>
        {!can && (
          <span class="told">A report knows who held memory at the peak alone; the viewer at any time.</span>
        )}
        <span class="tools">
          {time !== undefined && (
            <button type="button" onClick={() => change({ time: undefined })}>
              Go to the peak
            </button>
          )}
          <a class="button" href={address("timeline", { time: String(shownTime) })}>
            Show on the timeline
          </a>
          <Choice
            label="Put together by"
            options={GROUPINGS}
            chosen={by}
            onChoice={(value) => change({ group: value === "all" ? undefined : value })}
          />
        </span>
      </header>
      <Shown answer={answer}>
        {(table) =>
          table.rows === 0 ? (
            <Nothing>Nothing that the trace knows of was live then.</Nothing>
          ) : (
            <Table
              table={table}
              id="live"
              order="-bytes"
              height="17rem"
              columns={[
                { name: "bytes", title: "Size", width: "7rem", bar: true },
                { name: "percent", title: "Share", width: "5.5rem" },
                { name: "blocks", width: "5rem" },
                { name: "category", width: "minmax(7rem, 1fr)" },
                { name: "module", width: "minmax(8rem, 2fr)" },
                { name: "operator", width: "minmax(9rem, 2fr)" },
                { name: "line", width: "minmax(10rem, 3fr)" },
              ]}
              onRow={(row) => onStack(stackOf(table.values("stack")[row]))}
              selected={(row) => chosen !== undefined && table.values("stack")[row] === chosen}
            />
          )
        }
      </Shown>
    </section>
  );
}

function stackOf(value: unknown): number | undefined {
  return typeof value === "number" ? value : undefined;
}
