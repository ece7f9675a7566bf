/** The blocks one by one: the biggest, those that lived longest, those that were never freed. */

import { useColumns } from "../parts/answer";
import { Choice } from "../parts/choice";
import { partStart } from "../parts/part";
import { address, change } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import type { Device } from "./facts";
import { Holders } from "./holders";

const ORDERS = [
  ["biggest", "Largest"],
  ["longest", "Longest-lived"],
  ["never freed", "Never freed"],
] as const;

const NO_BLOCKS: Readonly<Record<string, string>> = {
  longest: "No block was both allocated and freed during the recording.",
  "never freed": "Every block allocated during the recording was freed.",
};

export function BlocksView(props: {
  device: Device;
  order: string;
  /** The chosen stack. */
  chosen: string | undefined;
}) {
  const { device } = props;
  const order = ORDERS.some(([name]) => name === props.order) ? props.order : "biggest";
  const answer = useColumns("memory/blocks", { device: device.key, order });
  return (
    <Holders
      device={device}
      answer={answer}
      nothing={NO_BLOCKS[order] ?? "No blocks."}
      id="blocks"
      order={order === "longest" ? "-lifetime_ns" : "-bytes"}
      height="max(22rem, 30vh)"
      chosen={props.chosen}
      heading={
        <>
          <h2>Blocks</h2>
          <span class="about">{units.count(device.blocks)} total</span>
          <span class="tools">
            <Choice
              label="Which blocks"
              options={ORDERS}
              chosen={order}
              onChoice={(value) =>
                change({ blocks: value === "biggest" ? undefined : value, "blocks.sort": undefined })
              }
            />
          </span>
        </>
      }
      first={(table) => [
        { name: "time_ns", title: "Allocated", width: "7rem", cell: (row) => when(table, row) },
        { name: "bytes", title: "Size", width: "6.5rem", bar: true },
        { name: "lifetime_ns", title: "Lifetime", width: "7rem", cell: (row) => lived(table, row) },
      ]}
    />
  );
}

/** A link to what allocated it, or else to the moment. */
function when(table: Columns, row: number) {
  const time = table.values("time_ns")[row];
  if (typeof time !== "number")
    return (
      <span class="faint" title="Allocated before the recording, or outside of it.">
        not seen
      </span>
    );
  const span = table.values("span")[row];
  const query = typeof span === "number" ? { span: String(span) } : { time: String(time + partStart()) };
  return (
    <a
      href={address("timeline", query)}
      title="Show on the timeline"
      onClick={(event) => event.stopPropagation()}
    >
      {units.time(time)}
    </a>
  );
}

function lived(table: Columns, row: number) {
  const lifetime = table.values("lifetime_ns")[row];
  if (typeof lifetime === "number") return units.time(lifetime);
  return <span class="faint">{table.values("freed_ns")[row] === null ? "not freed" : "–"}</span>;
}
