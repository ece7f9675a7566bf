/** Operators, backward functions, ranges, calls of the runtime and of Python: by name, and further by place. */

import { useEffect, useMemo } from "preact/hooks";
import { facts, rowOf, rowsWhere } from "../operators/find";
import { CATEGORIES, frames, isCall, kindColour, kindWord, lineName } from "../operators/kinds";
import { close, closeOnEscape, Panel } from "../operators/panel";
import "../operators/operators.css";
import { Nothing, Shown, useColumns, useSource } from "../parts/answer";
import { Choice } from "../parts/choice";
import { End } from "../parts/end";
import { type ShownColumn, Table } from "../parts/table";
import { says } from "../parts/table-columns";
import { change, route } from "../router";
import type { Columns, Query } from "../source/source";
import { plain } from "../timeline/names";

const WAYS = [
  { key: "name", title: "Name", hint: "All calls of one name together" },
  { key: "shape", title: "Shape", hint: "Apart by the sizes of their inputs" },
  { key: "line", title: "Line", hint: "Apart by the line of your code that ran them" },
  { key: "stack", title: "Stack", hint: "Apart by the whole stack of your code" },
  { key: "module", title: "Module", hint: "Apart by the module they ran in" },
] as const;

const NONE: Readonly<Record<string, string>> = {
  shape:
    "No shapes were recorded: record with record_shapes=True to tell calls apart by the sizes of their inputs.",
  line: "No stacks were recorded, so no lines are known: record with with_stack=True.",
  stack: "No stacks were recorded: record with with_stack=True.",
  module: "No modules were recorded: record with with_modules=True, and run a torch.nn.Module.",
};

const FACTS: Readonly<Record<string, string>> = {
  count: "Calls",
  self_ns: "Self",
  total_ns: "Total",
  self_percent: "Self share",
  mean_ns: "Mean",
  min_ns: "Shortest",
  max_ns: "Longest",
  device_self_ns: "Device self",
  device_ns: "Device total",
  self_bytes: "Memory self",
  bytes: "Memory",
  flops: "Operations",
  flops_per_s: "Speed",
  bytes_moved: "Bytes moved",
  arithmetic_intensity: "Intensity",
};

export function Operators() {
  const { query } = route.value;
  const source = useSource();
  const category =
    CATEGORIES.find((one) => one.key === (query["what"] ?? (isCall(query["kind"]) ? "python" : ""))) ??
    CATEGORIES[0];
  const categories = CATEGORIES.filter(
    (one) => one.key !== "python" || source.has("operators", asking("name", "calls")),
  );
  const of = category?.key === "python" ? "calls" : undefined;
  // A call of Python is at its own line already.
  const ways = WAYS.filter(
    (way) => (way.key === "name" || !of) && source.has("operators", asking(way.key, of)),
  );
  const way = ways.find((one) => one.key === query["by"])?.key ?? "name";
  useEffect(closeOnEscape, []);
  return (
    <>
      <header class="title">
        <h1>Operators</h1>
        <div class="tools">
          <Choice
            label="What"
            options={categories.map((one) => [one.key, one.title] as const)}
            chosen={category?.key ?? ""}
            onChoice={(key) => change({ what: key || undefined, ...nothingChosen })}
          />
          {ways.length > 1 && (
            <Choice
              label="Added up by"
              options={ways.map((one) => [one.key, one.title, one.hint] as const)}
              chosen={way}
              onChoice={(key) => change({ by: key === "name" ? undefined : key, place: undefined })}
            />
          )}
        </div>
      </header>
      <Listed
        key={`${way} ${of}`}
        asked={asking(way, of)}
        way={way}
        kinds={category?.kinds ?? []}
        calls={of !== undefined}
      />
    </>
  );
}

const nothingChosen = { name: undefined, kind: undefined, place: undefined, bar: undefined };

function asking(way: string, of: string | undefined): Query {
  return { by: way === "name" ? undefined : way, of };
}

/** Made anew for each question: while one is on its way, the answer to the one before would be taken for it. */
function Listed(props: { asked: Query; way: string; kinds: readonly string[]; calls: boolean }) {
  const answer = useColumns("operators", props.asked);
  return <Shown answer={answer}>{(table) => <Rows {...props} table={table} />}</Shown>;
}

function Rows(props: { table: Columns; way: string; kinds: readonly string[]; calls: boolean }) {
  const { table, way, kinds, calls } = props;
  const { query } = route.value;
  const names = table.texts("name");
  const allKinds = table.texts("kind");
  const places = table.texts("place");
  const rows = useMemo(
    () =>
      kinds.length === 0 || calls
        ? undefined
        : rowsWhere(table, (row) => kinds.includes(allKinds[row] ?? "")),
    [table, kinds, calls],
  );
  const columns = useMemo(() => columnsOf(table, way), [table, way]);
  const name = query["name"];
  const place = way === "name" ? undefined : (query["place"] ?? null);
  // A name that was chosen by itself is found at the place where it took most.
  const exactly = name === undefined ? -1 : rowOf(table, name, query["kind"], place);
  const chosen = name === undefined || exactly >= 0 ? exactly : rowOf(table, name, query["kind"]);
  if (table.rows === 0)
    return (
      <Nothing>
        {calls
          ? "No calls of Python functions or modules were recorded: record with python_calls=True or module_spans=True."
          : "The trace holds nothing that ran on the host. Record with the CPU's activity switched on, while the program runs."}
      </Nothing>
    );
  const placeless = way !== "name" && !says(table, "place");
  return (
    <>
      {placeless && <p class="op-note">{NONE[way]}</p>}
      <div class="op-split" data-open={name === undefined ? undefined : ""}>
        <Table
          table={table}
          rows={rows}
          id={calls ? "calls_of_python" : "operators"}
          order="-self_ns"
          columns={columns}
          onRow={(row) =>
            row === chosen
              ? close()
              : change({
                  name: names[row] ?? "",
                  kind: allKinds[row] ?? "",
                  place: way === "name" ? undefined : (places[row] ?? undefined),
                  bar: undefined,
                })
          }
          selected={(row) => row === chosen}
        />
        {name !== undefined &&
          (chosen < 0 ? (
            <aside class="panel op-panel">
              <Nothing>
                The trace has no “{name.slice(0, 200)}”{way === "name" ? "" : " of this place"} here.{" "}
                <button type="button" onClick={close}>
                  Close
                </button>
              </Nothing>
            </aside>
          ) : (
            <Panel
              name={name}
              kind={allKinds[chosen] ?? ""}
              what={kindWord(allKinds[chosen] ?? "")}
              place={way === "name" ? undefined : { by: way, value: places[chosen] ?? null }}
              facts={facts(table, chosen, FACTS)}
            />
          ))}
      </div>
    </>
  );
}

const PLACES: Readonly<Record<string, string>> = {
  shape: "Shapes",
  line: "Line",
  stack: "Stack",
  module: "Module",
};

function Place(props: { way: string; place: string | null }) {
  const { way, place } = props;
  if (place === null) return "–";
  if (way === "module") return <End>{plain(place)}</End>;
  return way === "shape" ? place.slice(0, 500) : frames(place).join(" ← ");
}

function columnsOf(table: Columns, way: string): ShownColumn[] {
  const kinds = table.texts("kind");
  const names = table.texts("name");
  const places = table.texts("place");
  const shown: ShownColumn[] = [
    {
      name: "name",
      width: "minmax(13rem, 4fr)",
      cell: (row) => lineName(kinds[row] ?? "", names[row] ?? ""),
    },
    ...(way === "name"
      ? []
      : [
          {
            name: "place",
            title: PLACES[way] ?? "",
            width: "minmax(13rem, 5fr)",
            cell: (row) => <Place way={way} place={places[row] ?? null} />,
          } satisfies ShownColumn,
        ]),
    {
      name: "kind",
      width: "7rem",
      cell: (row) => (
        <>
          <span class="swatch" style={{ background: kindColour(kinds[row] ?? "") }} />
          {kindWord(kinds[row] ?? "")}
        </>
      ),
    },
    { name: "count", title: "Calls", width: "minmax(4.6rem, 1fr)", sum: true },
    { name: "self_ns", group: "Host", bar: true, sum: true },
    { name: "total_ns", group: "Host", bar: true },
    { name: "mean_ns", group: "Host", width: "minmax(5.6rem, 1fr)" },
    { name: "min_ns", title: "Shortest", group: "Host", optional: true },
    { name: "max_ns", title: "Longest", group: "Host", optional: true },
    { name: "self_percent", title: "Self %", group: "Host", width: "minmax(4.6rem, 1fr)", optional: true },
    { name: "total_percent", title: "Total %", group: "Host", width: "minmax(4.8rem, 1fr)", optional: true },
  ];
  if (says(table, "device_ns"))
    shown.push(
      { name: "device_self_ns", title: "Self", group: "Device", bar: true },
      { name: "device_ns", title: "Total", group: "Device", bar: true },
    );
  if (says(table, "bytes"))
    shown.push(
      { name: "self_bytes", title: "Self", group: "Memory", width: "minmax(6.4rem, 1fr)" },
      { name: "bytes", title: "Total", group: "Memory", width: "minmax(6.4rem, 1fr)", optional: true },
    );
  if (says(table, "flops"))
    shown.push(
      { name: "flops", title: "Operations", group: "Compute", width: "minmax(7.3rem, 1fr)" },
      { name: "flops_per_s", title: "Speed", group: "Compute", width: "minmax(7.7rem, 1fr)" },
      {
        name: "arithmetic_intensity",
        title: "Intensity",
        group: "Compute",
        width: "minmax(8rem, 1fr)",
        optional: true,
      },
      { name: "bytes_moved", title: "Moved", group: "Compute", width: "minmax(6rem, 1fr)", optional: true },
    );
  return shown;
}
