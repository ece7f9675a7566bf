/** Operators, backward functions, ranges, calls of the runtime and of Python: by name, and further by place. */

import { useMemo } from "preact/hooks";
import { facts, rowOf, rowsWhere } from "../operators/find";
import { allAten, CATEGORIES, frames, isCall, kindColor, kindWord, lineName } from "../operators/kinds";
import { Asked, Head, type Option, Split } from "../operators/listed";
import { close, Panel } from "../operators/panel";
import { Nothing, useAdvice, useSource } from "../parts/answer";
import { Middle } from "../parts/middle";
import { NoFlops } from "../parts/no-flops";
import { frameText } from "../parts/source-text";
import { type ShownColumn, Table } from "../parts/table";
import { says } from "../parts/table-columns";
import { change, route } from "../router";
import type { Columns, Query } from "../source/source";
import { plain } from "../timeline/names";
import * as units from "../units";

const WAYS: readonly Option[] = [
  ["name", "Name", "All calls with the same name"],
  ["shape", "Shape", "Group by input shapes"],
  ["line", "Line", "Group by the source line in your code"],
  ["stack", "Stack", "Group by the call stack in your code"],
  ["module", "Module", "Group by module"],
];

/** What a grouping needs: its name, and the name of the advice on recording it. */
const NEEDS: Readonly<Record<string, readonly [string, string]>> = {
  shape: ["Input shapes", "shapes"],
  line: ["Stacks", "stacks"],
  stack: ["Stacks", "stacks"],
  module: ["Modules", "modules"],
};

export function Operators() {
  const { query } = route.value;
  const source = useSource();
  const wanted = query["what"] ?? (isCall(query["kind"]) ? "python" : "");
  const { key, kinds } = CATEGORIES.find((one) => one.key === wanted) ?? { key: "", kinds: [] };
  const categories = CATEGORIES.filter(
    (one) => one.key !== "python" || source.has("operators", asking("name", true)),
  );
  const calls = key === "python";
  // A call of Python is at its own line already.
  const ways = WAYS.filter(
    ([way]) => (way === "name" || !calls) && source.has("operators", asking(way, calls)),
  );
  const way = ways.find(([way]) => way === query["by"])?.[0] ?? "name";
  return (
    <>
      <Head
        title="Operators"
        what="what"
        whats={categories.map((one) => [one.key, one.title])}
        chosen={key}
        ways={ways}
        way={way}
      />
      <Asked key={`${way} ${calls}`} path="operators" query={asking(way, calls)}>
        {(table) => <Rows table={table} way={way} kinds={kinds} calls={calls} />}
      </Asked>
    </>
  );
}

function asking(way: string, calls: boolean): Query {
  return { by: way === "name" ? undefined : way, of: calls ? "calls" : undefined };
}

function lacking(way: string, advice: Readonly<Record<string, string>>): string {
  const [what, name] = NEEDS[way] ?? [];
  return name ? `${what} were not recorded${advice[name] ?? ""}.` : "";
}

function Rows(props: { table: Columns; way: string; kinds: readonly string[]; calls: boolean }) {
  const { table, way, kinds, calls } = props;
  const advice = useAdvice();
  const { name, kind, place: asked } = route.value.query;
  const [names, allKinds, places] = ["name", "kind", "place"].map((column) => table.texts(column));
  const byName = way === "name";
  const rows = useMemo(
    () =>
      kinds.length === 0 || calls
        ? undefined
        : rowsWhere(table, (row) => kinds.includes(allKinds?.[row] ?? "")),
    [table, kinds, calls],
  );
  const columns = useMemo(() => columnsOf(table, way), [table, way]);
  // A name that was chosen by itself is found at the place where it took most.
  const exactly = name === undefined ? -1 : rowOf(table, name, kind, byName ? undefined : (asked ?? null));
  const chosen = name === undefined || exactly >= 0 ? exactly : rowOf(table, name, kind);
  if (table.rows === 0)
    return (
      <Nothing>
        {calls
          ? `Calls of Python functions and modules were not recorded${advice["python"] ?? ""}.`
          : `The trace has nothing that ran on the host${advice["operators"] ?? ""}.`}
      </Nothing>
    );
  const chosenKind = allKinds?.[chosen] ?? "";
  return (
    <>
      {!byName && !says(table, "place") && <p class="op-note">{lacking(way, advice)}</p>}
      {!calls && <NoFlops table={table} />}
      <Split
        name={name}
        missing={
          chosen < 0
            ? `The trace has no “${name?.slice(0, 200)}”${byName ? "" : " of this place"} here.`
            : undefined
        }
        table={
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
                    name: names?.[row] ?? "",
                    kind: allKinds?.[row] ?? "",
                    place: byName ? undefined : (places?.[row] ?? undefined),
                    bar: undefined,
                  })
            }
            selected={(row) => row === chosen}
          />
        }
      >
        <Panel
          name={name ?? ""}
          kind={chosenKind}
          what={kindWord(chosenKind)}
          place={byName ? undefined : { by: way, value: places?.[chosen] ?? null }}
          facts={chosen < 0 ? [] : facts(table, chosen, columns)}
        />
      </Split>
    </>
  );
}

function placeCell(way: string, place: string | null) {
  if (place === null) return "–";
  if (way === "shape") return place.slice(0, 500);
  const [first = "", ...others] = way === "module" ? [plain(place)] : frames(place);
  const code = way === "line" ? frameText(place) : "";
  // The text says more than the name of the function, which is in the title.
  return <Middle>{code ? `${first.split(" ")[0]} ${code}` : [first, ...others].join(" ← ")}</Middle>;
}

/** Room for the largest number of calls: half of a number is another number. */
function callsWidth(table: Columns): number {
  const most = Array.prototype.reduce.call(
    table.numbers("count"),
    (a, b) => Math.max(a as number, b as number),
    0,
  );
  return Math.max(4.6, 1.6 + 0.58 * units.count(most as number).length);
}

function columnsOf(table: Columns, way: string): ShownColumn[] {
  const text = (column: string, row: number) => table.texts(column)[row] ?? "";
  const aten = allAten(table);
  const kinds = new Set(Array.from(table.texts("kind")));
  const longest = Math.max(0, ...[...kinds].map((kind) => kindWord(kind ?? "").length));
  const where = (column: string, ...columns: ShownColumn[]) => (says(table, column) ? columns : []);
  const place: ShownColumn = {
    name: "place",
    title: way === "shape" ? "Shapes" : (WAYS.find(([key]) => key === way)?.[1] ?? ""),
    width: [13, 5],
    cell: (row) => placeCell(way, table.texts("place")[row] ?? null),
  };
  return [
    {
      name: "name",
      width: [13, 4],
      cell: (row) => <Middle>{lineName(text("kind", row), text("name", row), aten)}</Middle>,
    },
    ...(way === "name" ? [] : [place]),
    {
      name: "kind",
      width: [longest > 9 ? 9.4 : 7, 0.35],
      cell: (row) => (
        <>
          <span class="swatch" style={{ background: kindColor(text("kind", row)) }} />
          {kindWord(text("kind", row))}
        </>
      ),
    },
    { name: "count", title: "Calls", width: [callsWidth(table), 1], sum: true },
    { name: "self_ns", group: "Host", bar: true, sum: true },
    { name: "total_ns", group: "Host", bar: true },
    { name: "mean_ns", group: "Host", width: [5.6, 1] },
    { name: "min_ns", title: "Shortest", group: "Host", optional: true },
    { name: "max_ns", title: "Longest", group: "Host", optional: true },
    { name: "self_percent", group: "Host", optional: true },
    { name: "total_percent", group: "Host", optional: true },
    ...where(
      "device_ns",
      { name: "device_self_ns", title: "Self", group: "Device", bar: true },
      { name: "device_ns", title: "Total", group: "Device", bar: true },
    ),
    ...where(
      "bytes",
      { name: "self_bytes", title: "Self", group: "Memory", width: [6.4, 1] },
      { name: "bytes", title: "Total", group: "Memory", width: [6.4, 1], optional: true },
    ),
    ...where(
      "flops",
      { name: "flops", title: "FLOPs", group: "Compute", width: [7.3, 1] },
      { name: "flops_per_s", title: "FLOP/s", group: "Compute", width: [8.5, 1] },
      {
        name: "arithmetic_intensity",
        title: "Intensity",
        group: "Compute",
        width: [8, 1],
        optional: true,
      },
      { name: "bytes_moved", group: "Compute", width: [7.3, 1], optional: true },
    ),
  ];
}
