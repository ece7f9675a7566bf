/** The cards beside the steps: what ran where, how busy devices were, and who held the memory at its peak. */

import { Shown, useColumns, useJson } from "../parts/answer";
import { address } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { moment, type Overview, type Peak } from "./facts";
import { placeTitle } from "./steps";

export function RunCard(props: { overview: Overview }) {
  const { overview } = props;
  const facts = [
    { label: "Program", value: overview.program },
    { label: "Ended", value: overview.ended },
    { label: "Began", value: moment(overview.start_realtime_ns) },
    ...overview.facts,
  ].filter((fact) => fact.value);
  return (
    <section class="card" aria-label="What ran where">
      <h2>Run</h2>
      <dl class="ov-facts">
        {facts.map(({ label, value }) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd class={label === "Program" ? "mono" : ""}>
              <bdi>{value}</bdi>
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

export function UtilisationCard(props: { overview: Overview }) {
  const devices = useColumns("table/devices");
  const { host } = props.overview;
  return (
    <section class="card" aria-label="Utilisation">
      <header class="head-line">
        <h2>Utilisation</h2>
        <span class="muted">of the whole trace</span>
      </header>
      <Shown answer={devices}>
        {(table) => (
          <ul class="ov-meters">
            {Array.from({ length: table.rows }, (_, row) => device(table, row))}
            {host &&
              meter(
                host.thread || "thread",
                host.busy_percent,
                `busiest of ${host.threads === 1 ? "one thread" : `${units.count(host.threads)} threads`}`,
                `Operators, ranges and calls of a runtime ran for ${units.time(host.busy_ns)} on this thread.`,
              )}
          </ul>
        )}
      </Shown>
    </section>
  );
}

function device(table: Columns, row: number) {
  const number = (name: string) => table.numbers(name)[row] ?? null;
  const hint = [
    `busy for ${units.time(number("busy_ns"))}`,
    `${units.percent(number("utilisation_percent"))} from its first to its last work`,
    `${units.count(number("kernels"))} kernels and ${units.count(number("copies"))} copies in ${units.count(number("streams"))} streams`,
  ];
  const title = placeTitle({ rank: number("rank"), device: table.texts("device")[row] ?? "" });
  return meter(title, number("busy_percent"), table.texts("model")[row] ?? "", hint.join("\n"));
}

/** How much of the time something was busy. */
function meter(title: string, share: number | null, more: string, hint: string) {
  return (
    <li key={title} title={hint}>
      <span class="name">{title}</span>
      <strong>{units.percent(share)}</strong>
      <span class="ov-stacked">
        <span style={{ width: `${Math.min(share ?? 0, 100)}%`, background: "var(--compute)" }} />
      </span>
      <span class="muted tiny name">{more}</span>
    </li>
  );
}

/** The colours of the categories of memory. */
const CATEGORIES: Readonly<Record<string, string>> = {
  parameter: "compute",
  "optimizer state": "communication",
  input: "input",
  temporary: "idle",
  activation: "cpu",
  gradient: "copy",
  "autograd detail": "annotation",
};

export function MemoryCard() {
  const answer = useJson<{ peaks: Peak[] }>("overview/memory");
  return (
    <section class="card" aria-label="Memory peak">
      <header class="head-line">
        <h2>Memory peak</h2>
        <a class="tools" href={address("memory")}>
          Memory
        </a>
      </header>
      <Shown answer={answer}>
        {({ peaks }) => (
          <ul class="ov-meters">
            {peaks.map((peak) => {
              const held = peak.categories.map(({ category, bytes }) => ({
                colour: `var(--${CATEGORIES[category ?? ""] ?? "runtime"})`,
                told: `${category ?? "unknown"} ${units.bytes(bytes)}`,
                width: `${(100 * bytes) / Math.max(peak.bytes, 1)}%`,
              }));
              return (
                <li key={peak.device}>
                  <a href={address("memory", { device: peak.device, time: String(peak.time_ns) })}>
                    {peak.device}
                  </a>
                  <strong>{units.bytes(peak.bytes)}</strong>
                  {peak.attributed_bytes < peak.bytes && (
                    <span class="muted tiny">{units.bytes(peak.attributed_bytes)} of it attributed</span>
                  )}
                  <span class="ov-stacked">
                    {held.map(({ colour, told, width }) => (
                      <span key={told} style={{ background: colour, width }} title={told} />
                    ))}
                  </span>
                  <span class="legend tiny">
                    {held.slice(0, 4).map(({ colour, told }) => (
                      <span key={told}>
                        <span class="swatch" style={{ background: colour }} />
                        {told}
                      </span>
                    ))}
                  </span>
                </li>
              );
            })}
            {peaks.length === 0 && <li class="muted">No allocation was seen.</li>}
          </ul>
        )}
      </Shown>
    </section>
  );
}
