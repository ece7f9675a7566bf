/** What ran on devices: kernels by name or launch, and copies by direction. */

import { useEffect, useMemo } from "preact/hooks";
import { facts, rowOf, rowsWhere } from "../operators/find";
import { kernelLine } from "../operators/kinds";
import { close, closeOnEscape, Panel } from "../operators/panel";
import { size } from "../operators/parts";
import "../operators/operators.css";
import { Nothing, Shown, useColumns, useSource } from "../parts/answer";
import { Choice } from "../parts/choice";
import { type ShownColumn, Table } from "../parts/table";
import { says } from "../parts/table-columns";
import { address, change, go, route } from "../router";
import type { Columns, Query } from "../source/source";

const TABS = [
  { key: "", title: "Kernels" },
  { key: "copies", title: "Copies" },
] as const;

const FACTS: Readonly<Record<string, string>> = {
  calls: "Calls",
  total_ns: "Time",
  mean_ns: "Mean",
  min_ns: "Shortest",
  max_ns: "Longest",
  kernel_percent: "Of all kernels",
  registers: "Registers",
  shared_bytes: "Shared memory",
  blocks_per_sm: "Blocks per SM",
  warps_per_sm: "Warps per SM",
  occupancy_percent: "Occupancy",
  tensor_cores: "Tensor cores",
  streams: "Streams",
  devices: "Devices",
};

export function Kernels() {
  const { query } = route.value;
  const source = useSource();
  const tab = query["tab"] === "copies" ? "copies" : "";
  const ways = (tab === "copies" ? COPY_WAYS : KERNEL_WAYS).filter((way) =>
    source.has(...asking(tab, way.key)),
  );
  const way = ways.find((one) => one.key === query["by"])?.key ?? ways[0]?.key ?? "";
  const kernels = useColumns("kernels");
  const copies = useColumns(source.has("copies") ? "copies" : null);
  useEffect(closeOnEscape, []);
  const none = kernels.value?.rows === 0 && (copies.value === undefined || copies.value.rows === 0);
  return (
    <>
      <header class="title">
        <h1>Kernels</h1>
        {!none && (
          <div class="tools">
            <Choice
              label="What"
              options={TABS.map((one) => [one.key, one.title] as const)}
              chosen={tab}
              onChoice={(key) => change({ tab: key || undefined, by: undefined, ...nothingChosen })}
            />
            {ways.length > 1 && (
              <Choice
                label="Added up by"
                options={ways.map((one) => [one.key, one.title, one.hint] as const)}
                chosen={way}
                onChoice={(key) => change({ by: key === ways[0]?.key ? undefined : key })}
              />
            )}
          </div>
        )}
      </header>
      {none ? (
        <Nothing>
          Nothing ran on a device in this trace: it has no kernels and no copies. A program that uses the CPU
          alone has none; for one that uses a GPU, record with the device's activity switched on (for example{" "}
          <code>activities=["cpu", "cuda"]</code>).
        </Nothing>
      ) : (
        <Listed key={`${tab} ${way}`} tab={tab} way={way} />
      )}
    </>
  );
}

/** Made anew for each question: while one is on its way, the answer to the one before would be taken for it. */
function Listed(props: { tab: string; way: string }) {
  const { tab, way } = props;
  const answer = useColumns(...asking(tab, way));
  return (
    <Shown answer={answer}>
      {(table) =>
        tab === "copies" ? <CopyRows table={table} way={way} /> : <KernelRows table={table} way={way} />
      }
    </Shown>
  );
}

const nothingChosen = { name: undefined, kind: undefined, place: undefined, bar: undefined };

const KERNEL_WAYS = [
  { key: "name", title: "Name", hint: "All launches of one name together" },
  { key: "launch", title: "Launch", hint: "Apart by grid, block, registers and shared memory" },
];

const COPY_WAYS = [
  { key: "direction", title: "Direction", hint: "Apart by the kinds of memory" },
  { key: "operator", title: "Operator", hint: "Apart by what asked for them too" },
  { key: "each", title: "Each", hint: "One by one" },
];

function asking(tab: string, way: string): [path: string, query: Query] {
  if (tab === "copies" && way === "each") return ["table/copies", {}];
  const first = tab === "copies" ? "direction" : "name";
  return [tab === "copies" ? "copies" : "kernels", { by: way === first ? undefined : way }];
}

function KernelRows(props: { table: Columns; way: string }) {
  const { table, way } = props;
  const names = table.texts("name");
  const name = route.value.query["name"];
  const columns = useMemo(() => kernelColumns(table), [table]);
  const chosen = name === undefined ? -1 : rowOf(table, name);
  if (table.rows === 0) return <Nothing>No kernel ran in this trace, only copies.</Nothing>;
  return (
    <div class="op-split" data-open={name === undefined ? undefined : ""}>
      <Table
        key={way}
        table={table}
        id="kernels"
        hidden={HIDDEN}
        order="-total_ns"
        columns={columns}
        onRow={(row) => (names[row] === name ? close() : change({ name: names[row] ?? "", bar: undefined }))}
        selected={(row) => names[row] === name}
      />
      {name !== undefined &&
        (chosen < 0 ? (
          <aside class="panel op-panel">
            <Nothing>
              The trace has no kernel “{name.slice(0, 200)}”.{" "}
              <button type="button" onClick={close}>
                Close
              </button>
            </Nothing>
          </aside>
        ) : (
          <ChosenKernel name={name} table={table} row={chosen} way={way} />
        ))}
    </div>
  );
}

function ChosenKernel(props: { name: string; table: Columns; row: number; way: string }) {
  const { name, way } = props;
  // The numbers in the panel are of all launches, also where the table tells them apart.
  const all = useColumns(way === "name" ? null : "kernels");
  const table = way === "name" ? props.table : all.value;
  const row = way === "name" ? props.row : table ? rowOf(table, name) : -1;
  const told = table && row >= 0 ? facts(table, row, FACTS) : [];
  if (table && row >= 0) {
    const value = (column: string) => table.numbers(column)[row];
    const grid = size(value("grid_x"), value("grid_y"), value("grid_z"));
    const block = size(value("block_x"), value("block_y"), value("block_z"));
    if (grid !== "–") told.push({ label: "Grid", value: grid, title: "Blocks of the grid" });
    if (block !== "–") told.push({ label: "Block", value: block, title: "Threads of a block" });
  }
  const sort = table && row >= 0 ? table.texts("sort")[row] : "";
  return <Panel name={name} kind="kernel" what={`kernel, ${sort ?? ""}`} facts={told} />;
}

/** They are shown with those in x. */
const HIDDEN = ["grid_y", "grid_z", "block_y", "block_z"];

function kernelColumns(table: Columns): ShownColumn[] {
  const names = table.texts("name");
  const cores = table.values("tensor_cores");
  const operators = table.texts("operator");
  const at = (column: string, row: number) => table.numbers(column)[row];
  const shown: ShownColumn[] = [
    { name: "name", width: "minmax(16rem, 5fr)", cell: (row) => kernelLine(names[row] ?? "") },
    { name: "calls", width: "minmax(4.6rem, 1fr)", sum: true },
    { name: "total_ns", title: "Time", bar: true, sum: true },
    { name: "kernel_percent", title: "Share", width: "minmax(5rem, 1fr)" },
    { name: "mean_ns", width: "minmax(5.6rem, 1fr)" },
    { name: "min_ns", title: "Shortest", optional: true },
    { name: "max_ns", title: "Longest", optional: true },
    { name: "device_percent", title: "Share of all device work", optional: true },
  ];
  if (says(table, "tensor_cores") || Array.prototype.includes.call(cores, false))
    shown.push({ name: "tensor_cores", title: "Tensor cores", width: "8rem" });
  shown.push({
    name: "operator",
    title: "Launched by",
    width: "minmax(9rem, 2fr)",
    cell: (row) =>
      operators[row] === null ? (
        "–"
      ) : (
        <a
          href={address("operators", { name: operators[row] ?? "" })}
          onClick={(event) => event.stopPropagation()}
        >
          {operators[row]}
        </a>
      ),
  });
  if (says(table, "grid_x") || says(table, "block_x"))
    shown.push(
      {
        name: "grid_x",
        title: "Grid",
        width: "minmax(7rem, 1fr)",
        cell: (row) => size(at("grid_x", row), at("grid_y", row), at("grid_z", row)),
      },
      {
        name: "block_x",
        title: "Block",
        width: "minmax(5rem, 1fr)",
        cell: (row) => size(at("block_x", row), at("block_y", row), at("block_z", row)),
      },
    );
  for (const [name, title, width] of [
    ["registers", "Registers", "6.2rem"],
    ["shared_bytes", "Shared", "6rem"],
    ["occupancy_percent", "Occupancy", "6.6rem"],
  ] as const)
    if (says(table, name)) shown.push({ name, title, width });
  shown.push(
    { name: "streams", width: "5.4rem" },
    { name: "blocks_per_sm", title: "Blocks per SM", optional: true },
    { name: "warps_per_sm", title: "Warps per SM", optional: true },
  );
  return shown;
}

function CopyRows(props: { table: Columns; way: string }) {
  const { table, way } = props;
  const { query } = route.value;
  if (table.rows === 0) return <Nothing>Nothing was copied or filled on a device in this trace.</Nothing>;
  if (way === "each") return <EachCopy table={table} />;
  const kinds = table.texts("kind");
  const directions = table.texts("direction");
  const columns: ShownColumn[] = [
    {
      name: "direction",
      width: "minmax(7rem, 1fr)",
      cell: (row) => directions[row] ?? (kinds[row] === "memset" ? "filled" : "–"),
    },
    { name: "source", title: "From", width: "minmax(6rem, 1fr)" },
    { name: "target", title: "To", width: "minmax(6rem, 1fr)" },
    ...(way === "operator" ? [{ name: "operator", title: "Asked for by" } satisfies ShownColumn] : []),
    { name: "count", title: "Copies", width: "minmax(4.6rem, 1fr)" },
    { name: "total_ns", title: "Time", bar: true, sum: true },
    { name: "mean_ns", width: "minmax(5.6rem, 1fr)" },
    { name: "max_ns", title: "Longest", width: "minmax(5.6rem, 1fr)" },
    { name: "bytes", bar: true },
    { name: "gb_per_s", title: "Bandwidth", width: "minmax(6.9rem, 1fr)" },
    { name: "max_gb_per_s", title: "Fastest", width: "minmax(6.4rem, 1fr)" },
    { name: "blocked", title: "Host waited", width: "minmax(7.4rem, 1fr)" },
  ];
  const key = (row: number) =>
    ["direction", "kind", "source", "target"].map((name) => table.texts(name)[row] ?? "").join(" ");
  const chosen = query["place"];
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
      {chosen !== undefined && <CopiesOf place={chosen} />}
    </div>
  );
}

/** The single copies of a chosen direction. */
function CopiesOf(props: { place: string }) {
  const source = useSource();
  const answer = useColumns(source.has("table/copies") ? "table/copies" : null);
  if (!source.has("table/copies")) return null;
  return <Shown answer={answer}>{(table) => <EachCopy table={table} place={props.place} />}</Shown>;
}

function EachCopy(props: { table: Columns; place?: string }) {
  const { table, place } = props;
  const rows = useMemo(() => {
    if (place === undefined) return undefined;
    const names = ["direction", "kind", "source", "target"].map((name) => table.texts(name));
    return rowsWhere(table, (row) => names.map((texts) => texts[row] ?? "").join(" ") === place);
  }, [table, place]);
  const spans = table.numbers("span");
  return (
    <Table
      table={table}
      rows={rows}
      id="each_copy"
      order="-duration_ns"
      columns={[
        { name: "name", width: "minmax(14rem, 3fr)" },
        { name: "start_ns", title: "At" },
        { name: "duration_ns", bar: true, width: "minmax(6.8rem, 1fr)" },
        { name: "bytes", bar: true },
        { name: "gb_per_s", title: "Bandwidth", width: "minmax(6.9rem, 1fr)" },
        { name: "call", width: "minmax(9rem, 2fr)" },
        { name: "call_ns", title: "Call took", width: "minmax(6rem, 1fr)" },
        { name: "blocked", title: "Host waited", width: "7.6rem" },
        { name: "operator", title: "Asked for by", width: "minmax(9rem, 2fr)" },
        { name: "step", width: "5rem" },
      ]}
      onRow={(row) => go("timeline", { span: String(spans[row]) })}
    />
  );
}
