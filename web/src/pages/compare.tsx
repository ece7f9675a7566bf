/** Two of the open traces: what takes longer or less in one than in the other. */

import { useMemo } from "preact/hooks";
import { type About, type Explanation, KINDS, leadsTo, moduleBoxes, ROLES } from "../compare/compare";
import { Steps } from "../compare/steps";
import { Nothing, Outlines, Shown, useColumns, useJson } from "../parts/answer";
import { Choice, Select } from "../parts/choice";
import { Icicle } from "../parts/icicle";
import type { Look } from "../parts/icicle-paint";
import { type ShownColumn, Table } from "../parts/table";
import { type Fall, Waterfall } from "../parts/waterfall";
import { Words } from "../parts/words";
import { change, route } from "../router";
import type { Columns } from "../source/source";
import { plain } from "../timeline/names";
import * as units from "../units";
import "../compare/compare.css";

type Sides = Record<string, string | undefined>;

export function ComparePage() {
  const { base, new: other } = route.value.query;
  const query = { base, new: other };
  const answer = useJson<About>("compare", query);
  return (
    <>
      <header class="title">
        <h1>Compare</h1>
        {answer.value && answer.value.traces.length > 1 && <Choices about={answer.value} />}
      </header>
      <Shown
        answer={answer}
        meanwhile={
          <Outlines lines={[3, 4, 18, 12]}>
            Comparing the two traces: steps are matched, and each operator, module and count…
          </Outlines>
        }
      >
        {(about) => <Whole about={about} query={query} />}
      </Shown>
    </>
  );
}

function Choices(props: { about: About }) {
  const { about } = props;
  const options = about.traces.flatMap((name, place) => (name ? [[String(place), name] as const] : []));
  return (
    <>
      <span>
        base{" "}
        <Select
          label="Base"
          options={options}
          chosen={String(about.base)}
          onChoice={(base) => change({ base })}
        />
      </span>
      <span>
        new{" "}
        <Select
          label="New"
          options={options}
          chosen={String(about.new)}
          onChoice={(one) => change({ new: one })}
        />
      </span>
    </>
  );
}

function Whole(props: { about: About; query: Sides }) {
  const { about, query } = props;
  const times = useColumns("compare/times", query);
  const [base, other] = about.sides;
  return (
    <div class="cmp">
      <p class={`cmp-verdict ${about.verdict.split(" ")[0]}`} role="status">
        <strong>
          <Words text={about.headline.replaceAll("->", "→")} />
        </strong>
        {about.reason && (
          <span class="muted cmp-reason">
            <Words text={`${about.reason.charAt(0).toUpperCase()}${about.reason.slice(1)}.`} />
          </span>
        )}
      </p>
      <dl class="cmp-sides small">
        <dt>base</dt>
        <dd>{base}</dd>
        <dt>new</dt>
        <dd>{other}</dd>
        <dt>times</dt>
        <dd>{about.basis}</dd>
        {about.losses.length > 0 && (
          <>
            <dt>not exact</dt>
            <dd>{about.losses.join("; ")}</dd>
          </>
        )}
      </dl>
      {about.explanation && <Explained explanation={about.explanation} />}
      <Counts about={about} query={query} />
      <Steps about={about} query={query} />
      <Shown answer={times}>
        {(table) => (
          <>
            <Modules table={table} />
            <Times table={table} about={about} />
          </>
        )}
      </Shown>
    </div>
  );
}

/** From a step of the base to one of the new run, part by part. */
function Explained(props: { explanation: Explanation }) {
  const { title, base_ns, new_ns, parts } = props.explanation;
  const step = (name: string, time: number): Fall => ({
    key: name,
    label: <strong>a step of {name}</strong>,
    number: units.time(time),
    title: "",
    from: 0,
    to: time,
    color: "compute",
  });
  let reached = base_ns;
  const falls = parts.map((part, index): Fall => {
    const from = reached;
    reached += part.change_ns;
    const { what, file, line, module, text } = part;
    const where = file !== null && line !== null ? `${file.split(/[\\/]/).pop()}:${line}` : (module ?? "");
    return {
      key: `${index}`,
      label: (
        <span>
          {plain(what)}
          {where && ` ${file === null ? "in" : "at"} ${plain(where)}`}{" "}
          {text && <code class="muted">{plain(text)}</code>}
        </span>
      ),
      number: signed(part.change_ns, units.time),
      title: `${what}: ${units.time(part.base_ns)} → ${units.time(part.new_ns)} a step${file ? `, ${file}:${line}` : ""}`,
      from,
      to: reached,
      color: part.change_ns < 0 ? "copy" : "sync",
    };
  });
  return (
    <section class="card cmp-why" aria-label={title}>
      <h2>{title}</h2>
      <Waterfall label={title} falls={[step("base", base_ns), ...falls, step("new", new_ns)]} />
    </section>
  );
}

/** The counts that changed. */
function Counts(props: { about: About; query: Sides }) {
  const { about } = props;
  const answer = useColumns("compare/counts", props.query);
  return (
    <Shown answer={answer}>
      {(table) => {
        const changed = table.where((row) => table.texts("verdict")[row] !== "same");
        const same = table.rows - changed.rows;
        const names = changed.texts("name");
        const amount = (row: number) => (value: number | null | undefined) =>
          about.bytes.includes(names[row] ?? "") ? units.bytes(value) : units.count(value);
        return (
          <section aria-label="Counts">
            <h2>Counts of a step, and of the run</h2>
            {changed.rows > 0 ? (
              <Table
                table={changed}
                id="counts"
                columns={[
                  {
                    name: "name",
                    width: "minmax(16rem, 2fr)",
                    cell: (row) => about.counts[names[row] ?? ""],
                  },
                  { name: "base", title: "Base", cell: (row) => amount(row)(changed.numbers("base")[row]) },
                  { name: "new", title: "New", cell: (row) => amount(row)(changed.numbers("new")[row]) },
                  {
                    name: "change",
                    title: "Change",
                    cell: (row) => signed(changed.numbers("change")[row] ?? Number.NaN, amount(row)),
                  },
                  { name: "verdict", title: "Verdict", width: 8 },
                ]}
                hidden={["holder"]}
              />
            ) : (
              <p class="muted">All {units.count(same)} counts are the same.</p>
            )}
            {changed.rows > 0 && same > 0 && (
              <p class="muted small">{units.count(same)} more are the same.</p>
            )}
          </section>
        );
      }}
    </Shown>
  );
}

/** Modules within modules, colored by their verdicts. */
function Modules(props: { table: Columns }) {
  const { table } = props;
  const { boxes, rows, names, changes } = useMemo(() => moduleBoxes(table), [table]);
  const verdicts = table.texts("verdict");
  const verdictOf = (index: number) => verdicts[rows[index] ?? -1] ?? "same";
  const looks = useMemo<Look[]>(
    () =>
      names.map((name, index) => ({
        text: `${plain(name.split(".").pop() ?? "")} ${signed(changes[index] ?? 0, units.time)}`,
        role: ROLES[verdictOf(index)] ?? "idle",
        shade: "",
      })),
    [table],
  );
  const zoom = names.indexOf(route.value.query["zoom"] ?? "\0");
  if (names.length === 0) return null;
  return (
    <section aria-label="Modules">
      <header class="head-line">
        <h2>Modules</h2>
        <span class="cmp-legend muted small">
          {Object.entries(ROLES).map(([verdict, role]) => (
            <span key={verdict}>
              <span class="swatch" style={{ background: `var(--${role})` }} /> {verdict}
            </span>
          ))}
          <span>Color: the module itself. Number: with the modules in it.</span>
        </span>
      </header>
      <Icicle
        boxes={boxes}
        looks={looks}
        label="Modules by the change of their time"
        mostRows={9}
        zoom={zoom}
        chosen={-1}
        onChoose={(index) => index >= 0 && change({ kind: "module", "times.find": names[index] })}
        onZoom={(index) => change({ zoom: index < 0 ? undefined : names[index] })}
        said={(index) => `${plain(names[index] ?? "")}, ${signed(changes[index] ?? 0, units.time)}`}
        tip={(index) => (
          <>
            <strong>{plain(names[index] ?? "")}</strong>
            <div>{signed(changes[index] ?? 0, units.time)} a step, with the modules in it</div>
            <div class="muted">itself: {verdictOf(index)}</div>
          </>
        )}
      />
    </section>
  );
}

/** All rows of a kind, with their times on both sides, which lead to the trace. */
function Times(props: { table: Columns; about: About }) {
  const { table, about } = props;
  const kinds = table.texts("kind");
  const offered = KINDS.filter(([kind]) => Array.from(kinds).includes(kind));
  const kind =
    offered.find(([one]) => one === route.value.query["kind"])?.[0] ??
    (offered.some(([one]) => one === "module") ? "module" : offered[0]?.[0]);
  const part = useMemo(() => table.where((row) => kinds[row] === kind), [table, kind]);
  if (!kind) return <Nothing>Nothing ran in the steps.</Nothing>;
  const [names, files, lines, details, modules] = ["name", "file", "line", "detail", "module"].map((one) =>
    part.values(one),
  );
  const nameOf = (row: number) => {
    const [name, detail] = [String(names?.[row] ?? ""), String(details?.[row] ?? "")];
    if (kind === "line")
      return `${String(files?.[row] ?? "")
        .split(/[\\/]/)
        .pop()}:${lines?.[row]} ${detail || name}`;
    return `${name}${modules?.[row] ? ` in ${modules[row]}` : ""}${detail ? ` (${detail})` : ""}`;
  };
  const led = (row: number, column: "base_ns" | "new_ns") => {
    const there = part.texts("only")[row] ?? "";
    const [side, trace] = column === "base_ns" ? ["base", about.base] : ["new", about.new];
    if (there && there !== side) return "–";
    const text = units.time(part.numbers(column)[row]);
    const line = Number(column === "base_ns" ? part.values("base_line")[row] : lines?.[row]);
    const href =
      about.traces.length > 0
        ? leadsTo(kind, String(names?.[row] ?? ""), String(files?.[row] ?? ""), line, Number(trace))
        : undefined;
    return href ? (
      <a href={href} title={`Show in ${side}`}>
        {text}
      </a>
    ) : (
      text
    );
  };
  const columns: ShownColumn[] = [
    { name: "name", title: "Name", width: "minmax(14rem, 4fr)", cell: (row) => plain(nameOf(row)) },
    { name: "base_ns", title: "Base", width: 6.5, cell: (row) => led(row, "base_ns") },
    { name: "new_ns", title: "New", width: 6.5, cell: (row) => led(row, "new_ns") },
    {
      name: "change_ns",
      title: "Change",
      width: 6.5,
      cell: (row) => signed(part.numbers("change_ns")[row] ?? 0, units.time),
    },
    { name: "verdict", title: "Verdict", width: 7 },
    { name: "share_percent", title: "Share", width: 5.5 },
    { name: "base_count", title: "Base calls", width: 6.5 },
    { name: "new_count", title: "New calls", width: 6.5 },
  ];
  return (
    <section aria-label="Times">
      <header class="head-line">
        <h2>Times of a step</h2>
        <Choice
          label="Rows"
          options={offered}
          chosen={kind}
          onChoice={(one) => change({ kind: one, "times.find": undefined })}
        />
      </header>
      {about.traces.length > 0 && (
        <p class="muted small">A time in Base or New opens that row in its trace.</p>
      )}
      <Table
        table={part}
        id="times"
        columns={columns}
        searched={["name", "detail", "module", "file"]}
        hidden={["kind", "file", "line", "base_line", "detail", "module"]}
        height="min(34rem, 75vh)"
      />
    </section>
  );
}

/** A difference with its sign. */
function signed(value: number, text: (value: number) => string): string {
  if (!Number.isFinite(value)) return "–";
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${text(Math.abs(value))}`;
}
