/** A short list of what took most time, with a link to the page that has it all. */

import { Shown, useColumns } from "../parts/answer";
import { address } from "../router";
import type { Columns } from "../source/source";
import { boxName, plain } from "../timeline/names";
import * as units from "../units";

export interface TopKind {
  /** The table it is the head of. */
  table: "ops" | "modules" | "lines" | "kernels";
  title: string;
  /** The page that has all of it. */
  page: string;
  noun: string;
  /** Where a row leads. */
  leads: (row: Row) => string;
}

export interface Row {
  name: string;
  detail: string | null;
  kind: string | null;
  key: number | null;
  depth: number;
  count: number;
  time: number;
  share: number;
}

export function TopCard(props: { kind: TopKind; time: "host" | "device"; nothing: string }) {
  const { kind } = props;
  const query = kind.table === "kernels" ? {} : { time: props.time };
  const answer = useColumns(`top/${kind.table}`, query);
  const total = answer.value?.total;
  return (
    <section class="card ov-top" aria-label={kind.title}>
      <header class="ov-head">
        <h2>{kind.title}</h2>
        <a href={address(kind.page)}>
          {total && total > 1 ? `All ${units.count(total)} ${kind.noun}` : `More of ${kind.noun}`}
        </a>
      </header>
      <Shown answer={answer}>
        {(table) =>
          table.rows ? <Rows rows={rowsOf(table)} kind={kind} /> : <p class="nothing">{props.nothing}</p>
        }
      </Shown>
    </section>
  );
}

function rowsOf(table: Columns): Row[] {
  return Array.from({ length: table.rows }, (_, row) => ({
    name: table.texts("name")[row] ?? "",
    detail: table.texts("detail")[row] ?? null,
    kind: table.texts("kind")[row] ?? null,
    key: (table.values("key")[row] ?? null) as number | null,
    depth: table.numbers("depth")[row] ?? 0,
    count: table.numbers("count")[row] ?? 0,
    time: table.numbers("time_ns")[row] ?? 0,
    share: table.numbers("share")[row] ?? 0,
  }));
}

function Rows(props: { rows: readonly Row[]; kind: TopKind }) {
  const { rows, kind } = props;
  const most = Math.max(1, ...rows.map((row) => row.time));
  return (
    <ol>
      {rows.map((row, index) => {
        const [shown, beside] = named(kind.table, row);
        const whole = `${row.name}${row.detail ? `\n${row.detail}` : ""}\n${units.count(row.count)} times`;
        return (
          <li key={index}>
            <a href={kind.leads(row)} title={whole.slice(0, 2000)}>
              <span class="ov-fill" style={{ width: `${(100 * row.time) / most}%` }} />
              <span class="name" style={{ paddingLeft: `${Math.min(row.depth, 12) * 0.8}rem` }}>
                {shown}
                {beside && <span class="muted"> {beside}</span>}
              </span>
              <span class="ov-time">{units.time(row.time)}</span>
              <span class="ov-share">{units.percent(row.share)}</span>
            </a>
          </li>
        );
      })}
    </ol>
  );
}

/** The name as it is shown, and what stands beside it. */
export function named(table: TopKind["table"], row: Row): [string, string] {
  if (table === "kernels") return kernel(boxName("kernel", row.name), plain(row.detail ?? ""));
  if (table === "lines") return [`${fileOf(plain(row.name))}:${row.key}`, plain(row.detail ?? "")];
  if (table === "modules") {
    const last = row.name.slice(row.name.lastIndexOf(".") + 1);
    return [plain(last), row.detail === row.name ? "" : plain(row.detail ?? "")];
  }
  return [
    plain(row.name),
    row.kind === "operator" || row.kind === "backward"
      ? ""
      : (row.kind ?? "").replace("user_annotation", "range"),
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
