/** The blocks one by one: the biggest, those that lived longest, those that were never freed. */

import { Nothing, Shown, useColumns } from "../parts/answer";
import { Choice } from "../parts/choice";
import { Table } from "../parts/table";
import { address, change } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { type Device, knows, shortFrame, stackOf, tail } from "./facts";

const ORDERS = [
  ["biggest", "Biggest"],
  ["longest", "Longest-lived"],
  ["never freed", "Never freed"],
] as const;

const NO_BLOCKS: Readonly<Record<string, string>> = {
  longest: "No block was both allocated and freed while the trace was recorded.",
  "never freed": "Everything that was allocated while the trace was recorded was freed again.",
};

const FIRST: Readonly<Record<string, string>> = { longest: "-lifetime_ns" };

export function BlocksView(props: {
  device: Device;
  order: string;
  /** The chosen stack. */
  chosen: string | undefined;
}) {
  const { device, chosen } = props;
  const order = ORDERS.some(([name]) => name === props.order) ? props.order : "biggest";
  const answer = useColumns("memory/blocks", { device: device.key, order });
  return (
    <section class="part">
      <header class="title">
        <h2>Blocks</h2>
        <span class="told">{units.count(device.blocks)} in all</span>
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
      </header>
      <Shown answer={answer}>
        {(table) =>
          table.rows === 0 ? (
            <Nothing>{NO_BLOCKS[order] ?? "No blocks."}</Nothing>
          ) : (
            <Table
              table={table}
              id="blocks"
              order={FIRST[order] ?? "-bytes"}
              height="22rem"
              columns={[
                {
                  name: "time_ns",
                  title: "Allocated",
                  width: "7rem",
                  cell: (row: number) => when(table, row),
                },
                { name: "bytes", title: "Size", width: "6.5rem", bar: true },
                {
                  name: "lifetime_ns",
                  title: "Lived",
                  width: "7rem",
                  cell: (row: number) => lived(table, row),
                },
                { name: "category", width: "minmax(8.6rem, 1fr)" },
                {
                  name: "module",
                  width: "minmax(7rem, 2fr)",
                  cell: (row: number) => tail(table.texts("module")[row] ?? "–"),
                },
                { name: "operator", width: "minmax(8rem, 2fr)" },
                {
                  name: "line",
                  width: "minmax(9rem, 3fr)",
                  cell: (row: number) => shortFrame(table.texts("line")[row] ?? "–"),
                },
              ].filter(({ name }) => knows(device, name))}
              onRow={(row) => change({ stack: stackOf(table, row) })}
              selected={(row) => chosen !== undefined && stackOf(table, row) === chosen}
            />
          )
        }
      </Shown>
    </section>
  );
}

/** A link to what allocated it, or else to the moment. */
function when(table: Columns, row: number) {
  const time = table.values("time_ns")[row];
  if (typeof time !== "number")
    return (
      <span class="faint" title="It was there before the recording, or came from elsewhere.">
        not seen
      </span>
    );
  const span = table.values("span")[row];
  const query = typeof span === "number" ? { span: String(span) } : { time: String(time) };
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
