/** What ran in the chosen module and in those that it holds, by name. */

import { useMemo } from "preact/hooks";
import { kindWord } from "../operators/kinds";
import { OperatorLink } from "../operators/link";
import { Shown, useColumns, useSource } from "../parts/answer";
import { Button } from "../parts/button";
import { summed } from "../parts/summed";
import { Table } from "../parts/table";
import { says } from "../parts/table-columns";
import { address, change, route } from "../router";
import type { Columns } from "../source/source";
import { plain } from "../timeline/names";
import * as units from "../units";
import { rowsAround, type Tree } from "./tree";

export function Inside(props: { table: Columns; tree: Tree; chosen: number }) {
  const { table, tree, chosen } = props;
  const source = useSource();
  const can = source.has("table/module_operators");
  const answer = useColumns(can ? "table/module_operators" : null);
  if (!can) return null;
  const span = chosen < 0 ? null : table.values("span")[chosen];
  const id = String(tree.ids[chosen]);
  const within = route.value.query["zoom"] === id;
  const path = plain(table.texts("path")[chosen] ?? "");
  return (
    <div>
      <header class="head-line">
        <h2 class="name" title={path}>
          {chosen < 0 ? "All modules" : path}
        </h2>
        <span class="muted">
          {chosen >= 0 && `${units.time(table.numbers("total_ns")[chosen])} on the CPU`}
        </span>
        <div class="tools">
          {typeof span === "number" && (
            <a
              class="button"
              title="Its first call, or the first operator inside it"
              href={address("timeline", { span: String(span) })}
            >
              Show on the timeline
            </a>
          )}
          {chosen >= 0 && (
            <Button onClick={() => change({ zoom: within ? undefined : id })}>
              {within ? "Show all" : "Zoom in"}
            </Button>
          )}
        </div>
      </header>
      <Shown answer={answer}>
        {(operators) => <Operators operators={operators} table={table} tree={tree} chosen={chosen} />}
      </Shown>
    </div>
  );
}

function Operators(props: { operators: Columns; table: Columns; tree: Tree; chosen: number }) {
  const { operators, tree, chosen } = props;
  const rows = useMemo(() => {
    const modules = operators.numbers("module");
    const known = new Map<number | undefined, boolean>();
    tree.places.forEach((place, id) => {
      known.set(id, chosen < 0 || rowsAround(tree, place).includes(chosen));
    });
    const inside = (row: number) => known.get(modules[row]) ?? false;
    const sums = ["self_ns", "device_self_ns", "count"];
    return summed(operators, ["name", "kind"], sums, inside, "self_ns", ["span"]);
  }, [operators, tree, chosen]);
  const [names, kinds, spans] = [rows.texts("name"), rows.texts("kind"), rows.values("span")];
  return (
    <Table
      table={rows}
      id="inside"
      order="-self_ns"
      columns={[
        {
          name: "name",
          width: [11, 4],
          cell: (row) => <OperatorLink name={names[row] ?? ""} kind={kinds[row] ?? ""} />,
        },
        { name: "kind", width: 9, cell: (row) => kindWord(kinds[row] ?? "") },
        { name: "self_ns", title: "CPU self", bar: true, width: 7 },
        { name: "share", width: 5.5 },
        {
          name: "device_self_ns",
          title: "Device",
          bar: true,
          width: 7,
          optional: !says(rows, "device_self_ns"),
        },
        { name: "count", width: 5 },
        {
          name: "span",
          title: "Longest",
          width: 6,
          cell: (row: number) =>
            typeof spans[row] === "number" ? (
              <a href={address("timeline", { span: String(spans[row]) })}>timeline</a>
            ) : null,
        },
      ]}
    />
  );
}
