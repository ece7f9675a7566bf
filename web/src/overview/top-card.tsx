/** A short list of what took most time, with a link to the page that has it all. */

import { allAten, lineName } from "../operators/kinds";
import { Shown, useColumns } from "../parts/answer";
import { Middle } from "../parts/middle";
import { Ranked } from "../parts/ranked";
import { lineText } from "../parts/source-text";
import { address } from "../router";
import type { Columns } from "../source/source";
import { boxName, plain } from "../timeline/names";
import * as units from "../units";

export interface Row {
  name: string;
  detail: string;
  kind: string;
  key: number | null;
  depth: number;
  count: number;
  time: number;
  share: number;
}

/** What there is a list of, by the table it is the head of. */
const TOPS = {
  kernels: { title: "Kernels", page: "kernels", leads: ({ name }: Row) => ({ name }) },
  ops: { title: "Operators", page: "operators", leads: ({ name, kind }: Row) => ({ name, kind }) },
  modules: { title: "Modules", page: "modules", leads: ({ key }: Row) => ({ module: String(key) }) },
  lines: {
    title: "Your lines",
    page: "stacks",
    leads: ({ name, key }: Row) => ({ find: `${name}(${key})` }),
  },
};

export function TopCard(props: { top: keyof typeof TOPS; time: "host" | "device"; nothing: string }) {
  const { top } = props;
  const { title, page, leads } = TOPS[top];
  const answer = useColumns(`top/${top}`, top === "kernels" ? {} : { time: props.time });
  const total = answer.value?.total ?? 0;
  const noun = title.toLowerCase().replace("your ", "");
  return (
    <section class={`card ov-top ov-top-${top}`} aria-label={title}>
      <header class="head-line">
        <h2>{title}</h2>
        <a class="tools small" href={address(page)}>
          {total > 1 ? `All ${units.count(total)} ${noun}` : `More of ${noun}`}
        </a>
      </header>
      <Shown answer={answer}>
        {(table) => {
          const rows = rowsOf(table);
          const aten = allAten(table);
          const most = Math.max(1, ...rows.map((row) => row.time));
          if (!rows.length) return <p class="nothing">{props.nothing}</p>;
          return (
            <Ranked
              rows={rows.map((row) => {
                const [shown, more] = named(top, row, aten);
                return {
                  name: (
                    <span
                      class={`ov-named ${top}`}
                      style={{ paddingLeft: `${Math.min(row.depth, 12) * 0.8}rem` }}
                    >
                      <span>
                        <Middle>{shown}</Middle>
                      </span>{" "}
                      <span class="muted">{more}</span>
                    </span>
                  ),
                  title: [row.name, row.detail, row.count ? units.counted(row.count, "time") : ""]
                    .filter(Boolean)
                    .join("\n"),
                  time: units.time(row.time),
                  percent: units.percent(row.share),
                  fill: (100 * row.time) / most,
                  href: address(page, leads(row)),
                };
              })}
            />
          );
        }}
      </Shown>
    </section>
  );
}

function rowsOf(table: Columns): Row[] {
  const text = (name: string, row: number) => table.texts(name)[row] ?? "";
  const number = (name: string, row: number) => table.numbers(name)[row] ?? 0;
  return Array.from({ length: table.rows }, (_, row) => ({
    name: text("name", row),
    detail: text("detail", row),
    kind: text("kind", row),
    key: table.numbers("key")[row] ?? null,
    depth: number("depth", row),
    count: number("count", row),
    time: number("time_ns", row),
    share: number("share", row),
  }));
}

/** The name as it is shown, and what stands beside it. */
function named(top: keyof typeof TOPS, row: Row, aten: boolean): [string, string] {
  const [name, detail] = [plain(row.name), plain(row.detail)];
  if (top === "kernels") return kernel(boxName("kernel", row.name), detail);
  if (top === "lines") return [`${fileOf(name)}:${row.key}`, lineText(row.name, row.key) || detail];
  if (top === "modules") return [name.slice(name.lastIndexOf(".") + 1), detail === name ? "" : detail];
  return [
    lineName(row.kind, row.name, aten),
    /^(operator|backward)$/.test(row.kind) ? "" : row.kind.replace("user_annotation", "range"),
  ];
}

/** Kernels that apply an operation to elements are all called alike: the operation comes first. */
function kernel(name: string, operator: string): [string, string] {
  const [, base, inner] = /^(\w*elementwise\w*) ‹(.+)›$/.exec(name) ?? [];
  return base && inner ? [inner, base] : [name, operator];
}

/** The name of a file, with the folder where every folder has such a file. */
function fileOf(path: string): string {
  const parts = path.split(/[\\/]/);
  return parts.slice(parts[parts.length - 1]?.startsWith("__") ? -2 : -1).join("/");
}
