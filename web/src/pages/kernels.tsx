/** What ran on devices: kernels by name or launch, and copies by direction. */

import { useMemo } from "preact/hooks";
import { facts, rowOf, rowsWhere } from "../operators/find";
import { kernelNames, lineName } from "../operators/kinds";
import { Asked, Head, type Option, Split } from "../operators/listed";
import { close, Panel } from "../operators/panel";
import { size } from "../operators/parts";
import { Nothing, useAdvice, useColumns, useSource } from "../parts/answer";
import { Middle } from "../parts/middle";
import { type ShownColumn, Table } from "../parts/table";
import { says } from "../parts/table-columns";
import { address, change, go, route } from "../router";
import type { Columns, Query } from "../source/source";

const KERNEL_WAYS: readonly Option[] = [
  ["name", "Name", "All launches with the same name"],
  ["launch", "Launch", "Group by grid, block, registers and shared memory"],
];

const COPY_WAYS: readonly Option[] = [
  ["direction", "Direction", "Group by source and destination"],
  ["operator", "Operator", "Group by the operator that launched them"],
  ["each", "Each", "Every copy"],
];

export function Kernels() {
  const { query } = route.value;
  const source = useSource();
  const advice = useAdvice();
  const copied = query["tab"] === "copies";
  const ways = (copied ? COPY_WAYS : KERNEL_WAYS).filter(([way]) => source.has(...asking(copied, way)));
  const way = (ways.find(([key]) => key === query["by"]) ?? ways[0])?.[0] ?? "";
  const kernels = useColumns("table/kernels").value;
  const copies = useColumns(source.has("table/copies") ? "table/copies" : null).value;
  const none = kernels?.rows === 0 && !copies?.rows;
  const [path, asked] = asking(copied, way);
  return (
    <>
      <Head
        title="Kernels"
        what="tab"
        whats={
          none
            ? []
            : [
                ["", "Kernels"],
                ["copies", "Copies"],
              ]
        }
        chosen={copied ? "copies" : ""}
        ways={none ? [] : ways}
        way={way}
      />
      {none ? (
        <Nothing>
          This trace has no device work: no kernels and no copies. A CPU-only program has none; of a program
          that uses a GPU, it was not recorded{advice["devices"]}.
        </Nothing>
      ) : (
        <Asked key={`${copied} ${way}`} path={path} query={asked}>
          {(table) =>
            copied ? (
              <CopyRows table={table} way={way} />
            ) : (
              <KernelRows table={table} byName={way === "name"} />
            )
          }
        </Asked>
      )}
    </>
  );
}

function asking(copied: boolean, way: string): [path: string, query: Query] {
  const [table, first] = copied ? ["table/copies", "each"] : ["table/kernels", "name"];
  return [table, { by: way === first ? undefined : way }];
}

function KernelRows(props: { table: Columns; byName: boolean }) {
  const { table, byName } = props;
  const names = table.texts("name");
  const { name } = route.value.query;
  const columns = useMemo(() => kernelColumns(table, byName), [table, byName]);
  if (table.rows === 0) return <Nothing>This trace has copies but no kernels.</Nothing>;
  const there = name !== undefined && rowOf(table, name) >= 0;
  return (
    <Split
      name={name}
      missing={there ? undefined : `The trace has no kernel “${name?.slice(0, 200)}”.`}
      table={
        <Table
          table={table}
          id="kernels"
          hidden={HIDDEN}
          order="-total_ns"
          columns={columns}
          onRow={(row) =>
            names[row] === name ? close() : change({ name: names[row] ?? "", bar: undefined })
          }
          selected={(row) => names[row] === name}
        />
      }
    >
      {byName ? (
        <ChosenKernel name={name ?? ""} table={table} />
      ) : (
        // The numbers in the panel are of all launches, also where the table tells them apart.
        <Asked path="table/kernels">{(all) => <ChosenKernel name={name ?? ""} table={all} />}</Asked>
      )}
    </Split>
  );
}

function ChosenKernel(props: { name: string; table: Columns }) {
  const { name, table } = props;
  const row = rowOf(table, name);
  return (
    <Panel
      name={name}
      kind="kernel"
      what={`kernel, ${table.texts("category")[row] ?? ""}`}
      facts={row < 0 ? [] : facts(table, row, kernelColumns(table, true))}
    />
  );
}

/** They are shown with those in x. */
const HIDDEN = ["grid_y", "grid_z", "block_y", "block_z"];

/** Launches of one kernel mostly differ in their size, so it has columns where rows are launches. */
function kernelColumns(table: Columns, byName: boolean): ShownColumn[] {
  const where = (there: boolean, ...columns: ShownColumn[]) => (there ? columns : []);
  const sized = (name: string, row: number) =>
    size(...["x", "y", "z"].map((axis) => table.numbers(`${name}_${axis}`)[row]));
  const names = table.texts("name");
  const operators = table.texts("operator");
  const short = kernelNames(names);
  const aten = Array.prototype.every.call(operators, (name) => name === null || name.startsWith("aten::"));
  return [
    { name: "name", width: [15, 5], cell: (row) => <Middle>{short[row] ?? ""}</Middle> },
    { name: "count", width: [4.6, 1], sum: true },
    { name: "total_ns", title: "Time", bar: true, sum: true },
    { name: "kernel_percent", title: "Share", width: [5, 1] },
    { name: "mean_ns", width: [5.6, 1] },
    { name: "min_ns", title: "Shortest", optional: true },
    { name: "max_ns", title: "Longest", optional: true },
    ...where(says(table, "delay_ns"), { name: "delay_ns", title: "Delay", width: [5.6, 1] }),
    { name: "device_percent", title: "Share of device", optional: true },
    ...where(says(table, "tensor_cores"), { name: "tensor_cores", title: "Tensor cores", width: 8 }),
    {
      name: "operator",
      title: "Launched by",
      width: [10, 3.5],
      cell: (row) =>
        operators[row] === null ? (
          "–"
        ) : (
          <a
            href={address("operators", { name: operators[row] ?? "" })}
            onClick={(event) => event.stopPropagation()}
          >
            <Middle>{lineName("operator", operators[row] ?? "", aten)}</Middle>
          </a>
        ),
    },
    ...where(
      says(table, "grid_x") || says(table, "block_x"),
      { name: "grid_x", title: "Grid", width: [7, 1], optional: byName, cell: (row) => sized("grid", row) },
      {
        name: "block_x",
        title: "Block",
        width: [5, 1],
        optional: byName,
        cell: (row) => sized("block", row),
      },
    ),
    ...[
      { name: "registers", width: 6.4, optional: true },
      { name: "shared_bytes", title: "Shared memory", width: 9, optional: true },
      { name: "occupancy_percent", title: "Occupancy", width: 7 },
    ].filter(({ name }) => says(table, name)),
    { name: "streams", width: 5.8 },
    { name: "devices", optional: true },
    { name: "blocks_per_sm", title: "Blocks per SM", optional: true },
    { name: "warps_per_sm", title: "Warps per SM", optional: true },
  ];
}

/** What rows of copies have in common where they are of one place. */
function placeOf(table: Columns): (row: number) => string {
  const parts = ["direction", "kind", "source", "target"].map((name) => table.texts(name));
  return (row) => parts.map((texts) => texts[row] ?? "").join(" ");
}

function CopyRows(props: { table: Columns; way: string }) {
  const { table, way } = props;
  const source = useSource();
  if (table.rows === 0) return <Nothing>This trace has no device copies or memsets.</Nothing>;
  if (way === "each") return <EachCopy table={table} />;
  const kinds = table.texts("kind");
  const directions = table.texts("direction");
  const columns: ShownColumn[] = [
    {
      name: "direction",
      width: [7, 1],
      cell: (row) => directions[row] ?? (kinds[row] === "memset" ? "memset" : "–"),
    },
    { name: "source", title: "From", width: [6, 1] },
    { name: "target", title: "To", width: [6, 1] },
    { name: "operator", title: "Launched by", optional: way !== "operator" },
    { name: "count", title: "Copies", width: [4.6, 1] },
    { name: "total_ns", title: "Time", bar: true, sum: true },
    { name: "mean_ns", width: [5.6, 1] },
    { name: "max_ns", title: "Longest", width: [5.6, 1] },
    { name: "bytes", bar: true },
    { name: "gb_per_s", title: "Bandwidth", width: [6.9, 1] },
    { name: "max_gb_per_s", title: "Fastest", width: [6.4, 1] },
    { name: "blocked", title: "Host waited", width: [7.4, 1] },
  ];
  const key = placeOf(table);
  const chosen = route.value.query["place"];
  return (
    <div class="rows op-copies">
      <Table
        table={table}
        id="copies"
        order="-total_ns"
        columns={columns}
        onRow={(row) => change({ place: key(row) === chosen ? undefined : key(row) })}
        selected={(row) => key(row) === chosen}
      />
      {chosen !== undefined && source.has("table/copies") && (
        <Asked path="table/copies">{(each) => <EachCopy table={each} place={chosen} />}</Asked>
      )}
    </div>
  );
}

function EachCopy(props: { table: Columns; place?: string }) {
  const { table, place } = props;
  const rows = useMemo(() => {
    const key = placeOf(table);
    return place === undefined ? undefined : rowsWhere(table, (row) => key(row) === place);
  }, [table, place]);
  const spans = table.numbers("span");
  return (
    <Table
      table={table}
      rows={rows}
      id="each_copy"
      order="-duration_ns"
      columns={[
        { name: "name", width: [14, 3] },
        { name: "start_ns", title: "At" },
        { name: "duration_ns", bar: true, width: [6.8, 1] },
        { name: "bytes", bar: true },
        { name: "gb_per_s", title: "Bandwidth", width: [6.9, 1] },
        { name: "call", width: [9, 2] },
        { name: "call_ns", title: "Call took", width: [6, 1] },
        { name: "blocked", title: "Host waited", width: 7.6 },
        { name: "operator", title: "Launched by", width: [9, 2] },
        { name: "step", width: 5 },
      ]}
      onRow={(row) => go("timeline", { span: String(spans[row]) })}
    />
  );
}
