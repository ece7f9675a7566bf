/** The tree of modules: what ran in each, forward and backward, on the host and on devices. */

import { useMemo } from "preact/hooks";
import { Inside } from "../modules/inside";
import { Outline } from "../modules/outline";
import { shortPath, type Tree, treeOf } from "../modules/tree";
import { Nothing, Shown, useColumns } from "../parts/answer";
import { Choice, Select } from "../parts/choice";
import { Icicle } from "../parts/icicle";
import type { Look } from "../parts/icicle-paint";
import { laidOut } from "../parts/icicle-rows";
import { NoFlops } from "../parts/no-flops";
import type { ShownColumn } from "../parts/table";
import { says } from "../parts/table-columns";
import { change, route } from "../router";
import type { Columns } from "../source/source";
import { plain } from "../timeline/names";
import * as units from "../units";
import "../modules/modules.css";

/** The picture shows one of those that have bars. */
const COLUMNS = [
  { name: "calls", title: "Calls", width: 5 },
  { name: "total_ns", title: "CPU time", width: 7.5, bar: true },
  { name: "self_ns", title: "Self", width: 6 },
  { name: "forward_ns", title: "Forward", width: 6 },
  { name: "backward_ns", title: "Backward", width: 6.5 },
  { name: "recompute_ns", title: "Recompute", width: 7 },
  { name: "device_ns", title: "Device time", width: 8, bar: true },
  { name: "flops", title: "FLOPs", width: 7.5, bar: true },
  { name: "bytes", title: "Memory", width: 6 },
] satisfies ShownColumn[];

export function Modules() {
  const answer = useColumns("table/modules");
  return (
    <Shown answer={answer}>
      {(table) =>
        table.rows > 0 ? (
          <Whole table={table} />
        ) : (
          <>
            <h1>Modules</h1>
            <Nothing>
              No <code>nn.Module</code> was recorded. Record with <code>with_modules=True</code>; with{" "}
              <code>kinetoscope run</code> modules are recorded unless you pass <code>--no-modules</code>.
            </Nothing>
          </>
        )
      }
    </Shown>
  );
}

function Whole(props: { table: Columns }) {
  const { table } = props;
  const query = route.value.query;
  const ranks = useMemo(() => processesOf(table), [table]);
  const rank = ranks.find((one) => one.key === query["process"]);
  const part = useMemo(() => (rank ? ofProcess(table, rank.key) : table), [table, rank]);
  const tree = useMemo(() => treeOf(part), [part]);
  const columns = useMemo(() => COLUMNS.filter((column) => holdsAny(part, column.name)), [part]);
  const measures = columns.filter((one) => one.bar);
  const { name: by = "total_ns", title = "" } =
    measures.find((one) => one.name === query["by"]) ?? measures[0] ?? {};
  const chosen = tree.places.get(Number(query["module"] ?? -1)) ?? -1;
  const choose = (row: number, byKey: boolean) =>
    change({ module: row < 0 ? undefined : String(tree.ids[row]) }, byKey);
  return (
    <>
      <header class="title">
        <h1>Modules</h1>
        {measures.length > 1 && (
          <Choice
            label="Metric"
            options={measures.map((one) => [one.name, one.title] as const)}
            chosen={by}
            onChoice={(wanted) => change({ by: wanted })}
          />
        )}
        {ranks.length > 1 && (
          <Select
            label="Process"
            options={[["", "all processes"], ...ranks.map((one) => [one.key, one.label] as const)]}
            chosen={rank?.key ?? ""}
            onChoice={(process) => change({ process: process || undefined, module: undefined })}
          />
        )}
      </header>
      <NoFlops table={table} />
      <Picture table={part} tree={tree} by={by} title={title} chosen={chosen} onChoose={choose} />
      <div class="modules-parts">
        <Outline
          key={rank?.key}
          table={part}
          tree={tree}
          columns={columns}
          chosen={chosen}
          onChoose={choose}
        />
        <Inside table={part} tree={tree} chosen={chosen} />
      </div>
    </>
  );
}

/** The icicle above the tree. */
function Picture(props: {
  table: Columns;
  tree: Tree;
  by: string;
  title: string;
  chosen: number;
  onChoose: (row: number, byKey: boolean) => void;
}) {
  const { table, tree, by, title, chosen, onChoose } = props;
  const { rows, boxes, looks, places, weights } = useMemo(() => drawn(table, tree, by), [table, tree, by]);
  const zoom = places.get(tree.places.get(Number(route.value.query["zoom"] ?? -1)) ?? -1) ?? -1;
  const unit = table.facts.find((column) => column.name === by)?.unit ?? "";
  const paths = table.texts("path");
  const classes = table.texts("class");
  const percent = (index: number) => units.percent((100 * (weights[index] ?? 0)) / (boxes.whole || 1));
  return (
    <Icicle
      boxes={boxes}
      looks={looks}
      label={`${title} by module`}
      mostRows={9}
      zoom={zoom}
      chosen={places.get(chosen) ?? -1}
      onChoose={(index, byKey) => onChoose(index < 0 ? -1 : (rows[index] ?? -1), byKey)}
      onZoom={(index) => {
        const row = index < 0 ? -1 : (rows[index] ?? -1);
        const id = row < 0 ? undefined : String(tree.ids[row]);
        change({ zoom: id, module: id ?? route.value.query["module"] });
      }}
      said={(index) =>
        `${plain(paths[rows[index] ?? 0] ?? "")}, ${units.shown(weights[index] ?? 0, unit, by)}, ${percent(index)}`
      }
      tip={(index) => {
        const row = rows[index] ?? 0;
        const value = (name: string) => (table.has(name) ? table.numbers(name)[row] : null);
        return (
          <>
            <strong>{plain(paths[row] ?? "")}</strong>
            <div class="muted">{plain(classes[row] ?? "")}</div>
            <div>
              <strong>{units.shown(weights[index] ?? 0, unit, by)}</strong> · {percent(index)} of all modules
            </div>
            {by === "total_ns" && (
              <div class="muted">
                forward {units.time(value("forward_ns"))} · backward {units.time(value("backward_ns"))}
                {Boolean(value("recompute_ns")) && ` · recomputed ${units.time(value("recompute_ns"))}`}
              </div>
            )}
          </>
        );
      }}
    />
  );
}

/** The modules that weigh something as boxes, and which box is of which row. */
function drawn(table: Columns, tree: Tree, by: string) {
  const [all, paths, classes] = [table.numbers(by), table.texts("path"), table.texts("class")];
  const rows = tree.ids.map((_, row) => row).filter((row) => (all[row] ?? 0) > 0);
  const places = new Map(rows.map((row, place) => [row, place]));
  const weights = rows.map((row) => all[row] ?? 0);
  const boxes = laidOut(
    rows.map((row) => places.get(tree.parent[row] ?? -1) ?? -1),
    weights,
  );
  const looks: Look[] = rows.map((row) => {
    const [path, type] = [plain(paths[row] ?? ""), plain(classes[row] ?? "")];
    const name = tree.depth[row] ? shortPath(path) : path;
    return { text: type && type !== name ? `${name}  ${type}` : name, role: "module", shade: type };
  });
  return { rows, boxes, looks, places, weights };
}

/** Whether a column says anything, or is the one that is always there. */
function holdsAny(table: Columns, name: string): boolean {
  return name === "total_ns" || says(table, name);
}

/** The process that each row is of. */
function processOf(table: Columns): (row: number) => string {
  const [processes, ranks] = [table.values("process"), table.values("rank")];
  return (row) => `${ranks[row] ?? ""}.${processes[row] ?? ""}`;
}

/** The processes that the modules are of. */
function processesOf(table: Columns) {
  const key = processOf(table);
  return [...new Set(Array.from({ length: table.rows }, (_, row) => key(row)))]
    .map((key) => {
      const [rank, process] = key.split(".");
      const label = [rank && `rank ${rank}`, process && `process ${process}`].filter(Boolean).join(" · ");
      return { key, label: label || "unknown" };
    })
    .sort((a, b) => a.label.localeCompare(b.label, "en", { numeric: true }));
}

/** The rows of one process. */
function ofProcess(table: Columns, wanted: string): Columns {
  const key = processOf(table);
  return table.where((row) => key(row) === wanted);
}
