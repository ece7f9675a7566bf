/** How far the trace can be trusted, and what was recorded. */

import { type Check, type Health, type Recorded, SIGNS, sentence } from "../health/health";
import { Shown, useColumns, useJson } from "../parts/answer";
import { type ShownColumn, Table } from "../parts/table";
import * as units from "../units";
import "../health/health.css";

const LOSSES: readonly ShownColumn[] = [
  { name: "what", width: "minmax(12rem, 2fr)" },
  { name: "count", width: "7rem" },
  { name: "where", width: "minmax(7rem, 1fr)" },
  { name: "affects", title: "Not complete", width: "minmax(9rem, 1fr)" },
  { name: "why", width: "minmax(16rem, 5fr)" },
];
const PROCESSES: readonly ShownColumn[] = [
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
];
const INFO: readonly ShownColumn[] = [
  { name: "key", width: "minmax(12rem, 1fr)" },
  { name: "value", width: "minmax(20rem, 4fr)" },
];

export function HealthPage() {
  const answer = useJson<Health>("health");
  return (
    <>
      <header class="title">
        <h1>Trace health</h1>
      </header>
      <Shown answer={answer}>
        {(health) => (
          <div class="he">
            <p class={`verdict he-verdict ${health.state}`}>
              <span aria-hidden="true">{SIGNS[health.state]}</span>
              {sentence(health.line)}
            </p>
            <div class="he-both">
              <section class="card" aria-label="Checks">
                <h2>Checks</h2>
                <ul>
                  {health.checks.map((check) => (
                    <Line key={check.title} check={check} />
                  ))}
                </ul>
              </section>
              <section class="card" aria-label="What was recorded">
                <h2>What was recorded</h2>
                <ul>
                  {health.recorded.map((one) => (
                    <Kind key={one.title} one={one} />
                  ))}
                </ul>
              </section>
            </div>
            {health.losses.kinds > 0 && (
              <Listed name="losses" title="Losses" order="-count" columns={LOSSES} />
            )}
            {health.processes.count > 1 && (
              <Listed name="processes" title="Processes" order="rank" columns={PROCESSES} />
            )}
            <Listed name="info" title="Metadata" order="key" columns={INFO} />
          </div>
        )}
      </Shown>
    </>
  );
}

function Line(props: { check: Check }) {
  const { check } = props;
  const meaning = sentence(check.meaning);
  return (
    <li class={check.state}>
      <span class="he-sign" role="img" aria-label={check.state}>
        {SIGNS[check.state]}
      </span>
      <span class="he-title">{check.title}</span>
      <span>
        {sentence(check.finding)}
        {meaning && <span class="muted he-meaning">{meaning}</span>}
      </span>
    </li>
  );
}

function Kind(props: { one: Recorded }) {
  const { one } = props;
  const there = one.rows > 0;
  return (
    <li class={there ? "good" : "absent"}>
      <span class="he-sign" role="img" aria-label={there ? "recorded" : "not recorded"}>
        {there ? SIGNS.good : "–"}
      </span>
      <span class="he-title">{one.title}</span>
      <span>
        {there ? units.count(one.rows) : "none"}
        <span class="muted he-meaning">
          {one.gives}
          {!there && !one.requested && (
            <>
              ; to record them: <code>{one.how}</code>
            </>
          )}
        </span>
      </span>
    </li>
  );
}

function Listed(props: { name: string; title: string; order: string; columns: readonly ShownColumn[] }) {
  const answer = useColumns(`table/${props.name}`);
  return (
    <section aria-label={props.title}>
      <h2>{props.title}</h2>
      <Shown answer={answer}>
        {(table) => (
          <Table
            table={table}
            id={props.name}
            order={props.order}
            height="max(min(28rem, 70vh), 45vh)"
            columns={props.columns}
          />
        )}
      </Shown>
    </section>
  );
}
