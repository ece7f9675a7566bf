/** How far the trace can be trusted, and what was recorded. */

import { type Check, type Health, judged } from "../health/checks";
import { Shown, useColumns, useJson } from "../parts/answer";
import { Table } from "../parts/table";
import * as units from "../units";
import "../health/health.css";

/** What can be recorded: what it is called, what it gives, and how to have it. */
const RECORDED: Readonly<Record<string, readonly [title: string, gives: string, how: string]>> = {
  operators: ["Operators", "times of operators and backward functions", "activities=[ProfilerActivity.CPU]"],
  steps: ["Steps", "times and parts of each step", "prof.step() in the loop, or an optimizer of torch"],
  devices: ["Devices", "kernels, copies, utilisation", "activities=[..., ProfilerActivity.CUDA]"],
  shapes: ["Shapes", "FLOPs, bytes moved, operators by their inputs", "record_shapes=True, or --shapes"],
  memory: ["Memory", "the curve of memory, its peak and who held it", "profile_memory=True, or --memory"],
  stacks: ["Stacks", "source lines and flame graphs", "with_stack=True, or --stacks"],
  modules: ["Modules", "time and memory of each layer", "with_modules=True, or --modules"],
  python: [
    "Python calls",
    "calls of functions as spans of the timeline",
    "the Kineto engine with with_stack=True",
  ],
  collectives: ["Collectives", "size and speed of calls between ranks", "torch.distributed in the program"],
  counters: ["Counters", "samples over time", "a recording with counters"],
};

export function HealthPage() {
  const answer = useJson<Health>("health");
  return (
    <>
      <header class="title">
        <h1>Trace health</h1>
      </header>
      <Shown answer={answer}>
        {(health) => {
          const { state, line, checks } = judged(health);
          return (
            <div class="he">
              <p class={`he-verdict ${state}`}>
                <span aria-hidden="true">{state === "good" ? "✓" : "▲"}</span>
                {line}
              </p>
              <section class="card" aria-label="Checks">
                <h2>Checks</h2>
                <ul class="he-checks">
                  {checks.map((check) => (
                    <Line key={check.title} check={check} />
                  ))}
                </ul>
              </section>
              <section class="card" aria-label="What was recorded">
                <h2>What was recorded</h2>
                <ul class="he-recorded">
                  {health.recorded.map((one) => (
                    <Recorded key={one.what} {...one} />
                  ))}
                </ul>
              </section>
              {health.losses.kinds > 0 && <Losses />}
              {health.processes.count > 1 && <Processes />}
              <Facts />
            </div>
          );
        }}
      </Shown>
    </>
  );
}

const SIGNS = { good: "✓", note: "●", warn: "▲" } as const;
const SAID = { good: "good", note: "note", warn: "warning" } as const;

function Line(props: { check: Check }) {
  const { check } = props;
  return (
    <li class={check.state}>
      <span class="he-sign" title={SAID[check.state]}>
        <span aria-hidden="true">{SIGNS[check.state]}</span>
        <span class="he-said">{SAID[check.state]}</span>
      </span>
      <span class="he-title">{check.title}</span>
      <span>
        {check.told}
        {check.meaning && <span class="muted he-meaning">{check.meaning}</span>}
      </span>
    </li>
  );
}

function Recorded(props: { what: string; rows: number; asked: boolean | null }) {
  const [title, gives, how] = RECORDED[props.what] ?? [props.what, "", ""];
  const there = props.rows > 0;
  return (
    <li class={there ? "there" : "absent"}>
      <span class="he-sign" aria-hidden="true">
        {there ? "✓" : "–"}
      </span>
      <span class="he-title">{title}</span>
      <span class="he-rows">{there ? units.count(props.rows) : props.asked ? "none seen" : ""}</span>
      <span class="muted">
        {there ? gives : `${gives}: `}
        {!there && <code>{how}</code>}
      </span>
    </li>
  );
}

function Losses() {
  const answer = useColumns("table/losses");
  return (
    <section aria-label="Losses">
      <h2>Losses</h2>
      <Shown answer={answer}>
        {(table) => (
          <Table
            table={table}
            id="losses"
            order="-count"
            height="20rem"
            columns={[
              { name: "what", width: "minmax(12rem, 2fr)" },
              { name: "count", width: "7rem" },
              { name: "where", width: "minmax(7rem, 1fr)" },
              { name: "why", width: "minmax(16rem, 5fr)" },
            ]}
          />
        )}
      </Shown>
    </section>
  );
}

function Processes() {
  const answer = useColumns("table/processes");
  return (
    <section aria-label="Processes">
      <h2>Processes</h2>
      <Shown answer={answer}>
        {(table) => (
          <Table
            table={table}
            id="processes"
            order="rank"
            height="20rem"
            columns={[
              { name: "process", width: "6rem" },
              { name: "rank", width: "5rem" },
              { name: "name", width: "minmax(8rem, 2fr)" },
              { name: "host", width: "minmax(6rem, 1fr)" },
              { name: "start_ns" },
              { name: "duration_ns" },
              { name: "clock", width: "8rem" },
              { name: "error_ns", title: "Clock error" },
              { name: "threads" },
              { name: "spans", bar: true },
            ]}
          />
        )}
      </Shown>
    </section>
  );
}

function Facts() {
  const answer = useColumns("table/info");
  return (
    <section aria-label="All that is known of the run">
      <h2>All that is known of the run</h2>
      <Shown answer={answer}>
        {(table) => (
          <Table
            table={table}
            id="info"
            order="key"
            height="30rem"
            columns={[
              { name: "key", width: "minmax(12rem, 1fr)" },
              { name: "value", width: "minmax(20rem, 4fr)", cell: (row) => cut(table.texts("value")[row]) },
            ]}
          />
        )}
      </Shown>
    </section>
  );
}

function cut(text: string | null | undefined): string {
  if (!text) return "";
  return text.length > 400 ? `${text.slice(0, 400)}…` : text;
}
