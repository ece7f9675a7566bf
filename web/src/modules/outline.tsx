/** The tree of modules as a table: rows open and close, siblings sort, the filter keeps what is around what it finds. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { Button } from "../parts/button";
import { Chevron } from "../parts/chevron";
import { type ShownColumn, Table } from "../parts/table";
import { route } from "../router";
import type { Columns } from "../source/source";
import { plain } from "../timeline/names";
import { inSight, openedAtFirst, rowsAround, shortPath, type Tree } from "./tree";

const FIRST_ROWS = 40;
const SEARCHED = ["path", "class"];
/** What tells rows apart within the page, and says nothing to its reader. */
const HIDDEN = ["id", "parent", "class"];

export function Outline(props: {
  table: Columns;
  tree: Tree;
  columns: readonly ShownColumn[];
  chosen: number;
  onChoose: (row: number, byKey: boolean) => void;
}) {
  const { table, tree, chosen, onChoose } = props;
  const wanted = (route.value.query["modules.find"] ?? "").trim().toLowerCase();
  const [opened, setOpened] = useState<ReadonlySet<number>>(() => openedAtFirst(tree, FIRST_ROWS));
  useEffect(() => {
    const around = rowsAround(tree, tree.parent[chosen] ?? -1);
    if (around.some((row) => !opened.has(row))) setOpened(new Set([...opened, ...around]));
  }, [tree, chosen]);
  const turn = (row: number) => {
    const next = new Set(opened);
    if (!next.delete(row)) next.add(row);
    setOpened(next);
  };
  const rowsInSight = useMemo(
    () => (found: Int32Array, order: (a: number, b: number) => number) =>
      inSight(tree, opened, wanted ? found : null, order),
    [tree, opened, wanted],
  );
  const [paths, classes] = [table.texts("path"), table.texts("class")];
  const name = (row: number) => {
    const [path, type] = [plain(paths[row] ?? ""), plain(classes[row] ?? "")];
    const [depth, open] = [tree.depth[row] ?? 0, opened.has(row)];
    const found = `${path}\n${type}`.toLowerCase().includes(wanted);
    return (
      <span class="modules-name" title={`${path}\n${type}`}>
        <span style={{ width: `${Math.min(depth, 24) * 0.9}rem` }} />
        {tree.held.has(row) && !wanted ? (
          <Button
            class="plain"
            tabIndex={-1}
            aria-label={open ? "Collapse" : "Expand"}
            onClick={(event) => {
              event.stopPropagation();
              turn(row);
            }}
          >
            <Chevron open={open} />
          </Button>
        ) : (
          <span class="modules-leaf" />
        )}
        <span class={found ? "name" : "name faint"}>
          {depth > 0 ? shortPath(path) : path}
          {type !== path && <span class="modules-class">{type}</span>}
        </span>
      </span>
    );
  };
  return (
    <Table
      table={table}
      id="modules"
      order="-total_ns"
      searched={SEARCHED}
      hidden={HIDDEN}
      columns={[{ name: "path", title: "Module", width: [14, 3], cell: name }, ...props.columns]}
      onRow={(row) => onChoose(row, false)}
      selected={(row) => row === chosen}
      outline={{
        inSight: rowsInSight,
        depth: (row) => tree.depth[row] ?? 0,
        around: (row) => tree.parent[row] ?? -1,
        open: (row) => (tree.held.has(row) ? Boolean(wanted) || opened.has(row) : undefined),
        turn: (row) => !wanted && turn(row),
        chosen,
        choose: (row) => onChoose(row, true),
      }}
      tools={
        <>
          <Button onClick={() => setOpened(new Set(tree.held.keys()))}>Expand all</Button>
          <Button onClick={() => setOpened(new Set())}>Collapse all</Button>
        </>
      }
    />
  );
}
