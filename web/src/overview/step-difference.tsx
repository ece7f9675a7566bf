/** What a step or request has more of than the others: by part, operator, line, Python, module and kernel. */

import { kernelLine, kindWord, lineName } from "../operators/kinds";
import { Shown, useColumns, useSource } from "../parts/answer";
import { Button } from "../parts/button";
import { Middle } from "../parts/middle";
import { lineText } from "../parts/source-text";
import { Table } from "../parts/table";
import { address, change, go } from "../router";
import type { Columns } from "../source/source";
import { plain } from "../timeline/names";
import * as units from "../units";
import type { Step } from "./steps";

export function StepDifference(props: { step: Step; others: number }) {
  const { step, others } = props;
  const source = useSource();
  const query = source.served ? { step: step.number ?? undefined } : {};
  const can = !step.startUp && others > 0 && source.has("table/step_difference", query);
  const answer = useColumns(can ? "table/step_difference" : null, query);
  const end = step.start + step.duration;
  return (
    <section class="ov-difference" aria-label={`Step ${step.number}`}>
      <header class="head-line">
        <h2>Step {step.number}</h2>
        <span class="muted">
          {units.time(step.duration)}
          {can
            ? ", compared with the median of the other steps"
            : step.startUp
              ? ": it includes what ran before the loop, so it is not compared with the others"
              : ""}
        </span>
        <div class="tools">
          <a class="button" href={address("timeline", { start: String(step.start), end: String(end) })}>
            Show on the timeline
          </a>
          <Button class="plain" aria-label="Close" onClick={() => change({ step: undefined })}>
            ✕
          </Button>
        </div>
      </header>
      {can && (
        <Shown answer={answer}>
          {(table) =>
            table.numbers("step")[0] === step.number ? (
              <Differences table={table} noun="step" />
            ) : (
              <p class="muted">
                A report includes the longest step only: for the others, open the trace with `kinetoscope
                view`.
              </p>
            )
          }
        </Shown>
      )}
    </section>
  );
}

/** The request that takes most longer than a usual one of its name; nothing where steps are compared. */
export function RequestDifference() {
  const source = useSource();
  const can = source.has("table/step_difference", {});
  const answer = useColumns(can ? "table/step_difference" : null, {});
  if (!can) return null;
  return (
    <Shown answer={answer}>
      {(table) => {
        const request = table.values("request")[0];
        return typeof request !== "number" ? null : (
          <section class="ov-difference" aria-label={`Request ${request}`}>
            <header class="head-line">
              <h2>Request {request}</h2>
              <span class="muted">
                takes most longer than usual; compared with the median of the others of its name
              </span>
            </header>
            <Differences table={table} noun="request" />
          </section>
        );
      }}
    </Shown>
  );
}

function Differences(props: { table: Columns; noun: "step" | "request" }) {
  const { table } = props;
  const [names, kinds, files] = ["name", "kind", "file"].map((name) => table.texts(name));
  const [lines, spans, more] = [table.values("line"), table.values("span"), table.numbers("more_ns")];
  const parts = Array.from({ length: table.rows }, (_, row) => row).filter((row) => kinds?.[row] === "part");
  const rest = Int32Array.from({ length: table.rows }, (_, row) => row).filter(
    (row) => kinds?.[row] !== "part",
  );
  const named = (row: number) => {
    const [kind, name, file] = [kinds?.[row] ?? "", plain(names?.[row] ?? ""), files?.[row]];
    if (!file) return kind === "kernel" ? kernelLine(name) : lineName(kind, name);
    const line = String(lines[row] ?? "");
    return `${file.split(/[\\/]/).pop()}:${line} ${lineText(file, line) || name}`;
  };
  return (
    <>
      <ul class="legend">
        {parts.map((row) => (
          <li key={names?.[row]}>
            {names?.[row]}
            <strong>{difference(more[row] ?? 0)}</strong>
          </li>
        ))}
      </ul>
      <Table
        table={table}
        rows={rest}
        id="difference"
        order="-more_ns"
        height="18rem"
        columns={[
          { name: "name", width: "minmax(14rem, 4fr)", cell: (row) => <Middle>{named(row)}</Middle> },
          { name: "kind", width: 8, cell: (row) => kindWord(kinds?.[row] ?? "") },
          { name: "more_ns", title: "More", bar: true, cell: (row) => difference(more[row] ?? 0) },
          { name: "time_ns", title: `This ${props.noun}` },
          { name: "usual_ns", title: "Others" },
          { name: "count", title: "Calls", width: 5 },
          { name: "usual_count", title: "Others", width: 5 },
        ]}
        onRow={(row) => typeof spans[row] === "number" && go("timeline", { span: String(spans[row]) })}
      />
    </>
  );
}

/** `+1.2 ms` or `-1.2 ms`. */
function difference(ns: number): string {
  return `${ns > 0 ? "+" : ""}${units.time(ns)}`;
}
