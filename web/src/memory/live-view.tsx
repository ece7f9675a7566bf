/** Who held the memory at the cursor or, without one, at the peak. */

import { useColumns, useSource } from "../parts/answer";
import { Button } from "../parts/button";
import { Choice } from "../parts/choice";
import { partStart } from "../parts/part";
import { address, change } from "../router";
import { moment } from "../timeline/ticks";
import { type Device, knows } from "./facts";
import { Holders } from "./holders";

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
  /** How much time the curve shows. */
  shown: number;
  /** The chosen stack. */
  chosen: string | undefined;
}) {
  const { device, time } = props;
  const groupings = GROUPINGS.filter(([name]) => knows(device, name));
  const by = groupings.some(([name]) => name === props.by) ? props.by : "all";
  const source = useSource();
  const query = { device: device.key, by, time };
  const can = source.has("memory/live", query);
  const answer = useColumns("memory/live", can ? query : { device: device.key, by });
  const shownTime = can && time !== undefined ? time : device.peak_ns;
  return (
    <Holders
      device={device}
      answer={answer}
      nothing="No recorded blocks were live at that time."
      id="live"
      order="-bytes"
      height="max(17rem, 24vh)"
      chosen={props.chosen}
      heading={
        <>
          <h2>
            Live {shownTime === device.peak_ns ? "at the peak" : "at the cursor"},{" "}
            {moment(shownTime, props.shown / 500)}
          </h2>
          {!can && (
            <span class="about">
              A report includes the live blocks at the peak only. For other times, open the trace with
              `kinetoscope view`.
            </span>
          )}
          <span class="tools">
            {time !== undefined && (
              <Button onClick={() => change({ time: undefined })}>Go to the peak</Button>
            )}
            <a class="button" href={address("timeline", around(shownTime + partStart(), props.shown))}>
              Show on the timeline
            </a>
            <Choice
              label="Group live blocks by"
              options={groupings}
              chosen={by}
              onChoice={(value) => change({ group: value === "all" ? undefined : value })}
            />
          </span>
        </>
      }
      first={() => [
        { name: "bytes", title: "Size", width: "7rem", bar: true },
        { name: "percent", title: "Share", width: "5.5rem" },
        { name: "blocks", width: "5rem" },
      ]}
    />
  );
}

/** A hundredth of what the curve shows, with the time in its middle. */
function around(time: number, shown: number): Record<string, string> {
  const half = Math.max(shown / 200, 1000);
  return { start: String(Math.max(0, Math.round(time - half))), end: String(Math.round(time + half)) };
}
