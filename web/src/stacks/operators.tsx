/** What ran in the chosen frame and in those within it, by name. */

import { useMemo } from "preact/hooks";
import { kindWord } from "../operators/kinds";
import { OperatorLink } from "../operators/link";
import { Shown, useColumns, useSource } from "../parts/answer";
import { Button } from "../parts/button";
import { summed } from "../parts/summed";
import { Table } from "../parts/table";
import { change, route } from "../router";
import type { Columns } from "../source/source";
import { plain } from "../timeline/names";
import * as units from "../units";
import { type Flame, frameText } from "./flame";

export function Operators(props: {
  flame: Flame;
  query: Record<string, string | number | undefined>;
  title: string;
}) {
  const { flame, title } = props;
  const source = useSource();
  const asked = route.value.query;
  const chosen = flame.place(asked["at"]);
  const node = chosen >= 0 ? chosen : flame.place(asked["zoom"]);
  const can = source.has("flame_operators", props.query);
  const answer = useColumns(can ? "flame_operators" : null, props.query);
  const frame = flame.frames[node];
  const whole = node < 0 ? flame.whole : (flame.total[node] ?? 0);
  if (!can) return null;
  return (
    <div class="stacks-below">
      <header class="stacks-chosen">
        <h2 class="name" title={frame && plain(`${frame.function} ${frame.file}:${frame.line ?? ""}`)}>
          {frame ? frameText(frame) : "All frames"}
        </h2>
        <span class="muted">
          {units.shown(whole, flame.unit)}
          {frame && flame.whole > 0 && ` · ${units.percent((100 * whole) / flame.whole)}`}
          {frame &&
            !flame.callers &&
            Boolean(flame.own[node]) &&
            ` · ${units.shown(flame.own[node], flame.unit)} self`}
        </span>
        <div class="tools">
          {node >= 0 && asked["zoom"] !== flame.key(node) && (
            <Button onClick={() => change({ zoom: flame.key(node) })}>Zoom in</Button>
          )}
          {chosen >= 0 && <Button onClick={() => change({ at: undefined })}>Clear selection</Button>}
        </div>
      </header>
      <Shown answer={answer}>
        {(table) => <Inside flame={flame} table={table} node={node} title={title} />}
      </Shown>
    </div>
  );
}

function Inside(props: { flame: Flame; table: Columns; node: number; title: string }) {
  const { flame, table, node, title } = props;
  const rows = useMemo(() => {
    const [first, last] = flame.within(node);
    const nodes = table.numbers("node");
    const inside = (row: number) => {
      const at = nodes[row] ?? -1;
      return at >= first && at < last;
    };
    return summed(table, ["name", "kind"], ["value", "count"], inside, "value");
  }, [flame, table, node]);
  const [names, kinds] = [rows.texts("name"), rows.texts("kind")];
  return (
    <Table
      table={rows}
      id="inside"
      order="-value"
      columns={[
        {
          name: "name",
          width: "minmax(14rem, 4fr)",
          cell: (row) => {
            const name = names[row] ?? "";
            if (!name) return <span class="muted">outside operators</span>;
            // Python between operators, and what blocked the thread, are no spans.
            if (!kinds[row]) return <span class="muted">{name}</span>;
            return <OperatorLink name={name} kind={kinds[row] ?? ""} />;
          },
        },
        { name: "kind", width: "9rem", cell: (row) => kinds[row] && kindWord(kinds[row] ?? "") },
        { name: "value", title, bar: true, width: "9rem" },
        { name: "share", width: "7rem" },
        { name: "count", width: "7rem" },
      ]}
    />
  );
}
