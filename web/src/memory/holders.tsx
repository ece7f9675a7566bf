/** A list of what holds memory, under its heading; a click on a row shows the stack behind it. */

import type { ComponentChildren } from "preact";
import { frameLine } from "../operators/kinds";
import { type Answer, Nothing, Shown } from "../parts/answer";
import { Middle } from "../parts/middle";
import { frameText } from "../parts/source-text";
import { type ShownColumn, Table } from "../parts/table";
import { change } from "../router";
import type { Columns } from "../source/source";
import { type Device, knows, stackOf } from "./facts";

export function Holders(props: {
  device: Device;
  answer: Answer<Columns>;
  /** What stands above the list, and what in the place of an empty one. */
  heading: ComponentChildren;
  nothing: string;
  id: string;
  order: string;
  height: string;
  /** The columns before those that say who held it. */
  first: (table: Columns) => readonly ShownColumn[];
  /** The chosen stack. */
  chosen: string | undefined;
}) {
  const { device, chosen, id, order, height } = props;
  return (
    <section class="part">
      <header class="title">{props.heading}</header>
      <Shown answer={props.answer}>
        {(table) =>
          table.rows === 0 ? (
            <Nothing>{props.nothing}</Nothing>
          ) : (
            <Table
              table={table}
              id={id}
              order={order}
              height={height}
              columns={[...props.first(table), ...whoOf(table)].filter(({ name }) => knows(device, name))}
              onRow={(row) => change({ stack: stackOf(table, row) })}
              selected={(row) => stackOf(table, row) === chosen}
            />
          )
        }
      </Shown>
    </section>
  );
}

function whoOf(table: Columns): readonly ShownColumn[] {
  return [
    { name: "category", width: "minmax(9.8rem, 1fr)" },
    {
      name: "module",
      width: "minmax(8rem, 2fr)",
      cell: (row) => <Middle>{table.texts("module")[row] ?? "–"}</Middle>,
    },
    { name: "operator", width: "minmax(8.5rem, 2fr)" },
    {
      name: "line",
      width: "minmax(9rem, 3fr)",
      cell: (row) => {
        const line = table.texts("line")[row] ?? "–";
        const code = frameText(line);
        return <Middle>{code ? `${frameLine(line).split(" ")[0]} ${code}` : frameLine(line)}</Middle>;
      },
    },
  ];
}
