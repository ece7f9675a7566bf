/** The cards beside the steps: what ran where, how busy devices were, and who held the memory at its peak. */

import { type Answer, Shown, useColumns } from "../parts/answer";
import { address } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { moment, type Overview, type Peak } from "./facts";

export function RunCard(props: { overview: Overview }) {
  const { overview } = props;
  const facts = [
    { label: "Program", value: overview.program ?? "" },
    { label: "Ended", value: overview.ended ?? "" },
    { label: "Began", value: moment(overview.start_realtime_ns) },
    ...overview.facts,
  ].filter((fact) => fact.value);
  return (
    <section class="card" aria-label="What ran where">
      <h2>Run</h2>
      <dl class="ov-facts">
        {facts.map((fact) => (
          <div key={fact.label}>
            <dt>{fact.label}</dt>
            <dd class={fact.label === "Program" ? "mono" : ""}>
              <bdi>{fact.value}</bdi>
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
      <header class="ov-head">
        <h2>Utilisation</h2>
        <span class="muted">of the whole trace</span>
      </header>
      <Shown answer={devices}>
        {(table) => (
          <ul class="ov-meters">
            {Array.from({ length: table.rows }, (_, row) => (
              <Device key={row} table={table} row={row} />
            ))}
            {host && (
              <Meter
                title={host.thread || "thread"}
                share={host.busy_percent}
                more={`busiest of ${host.threads === 1 ? "one thread" : `${units.count(host.threads)} threads`}`}
                hint={`Operators, ranges and calls of a runtime ran for ${units.time(host.busy_ns)} on this thread.`}
              />
            )}
          </ul>
        )}
      </Shown>
    </section>
  );
}

function Device(props: { table: Columns; row: number }) {
  const { table, row } = props;
  const rank = table.values("rank")[row];
  const number = (name: string) => table.numbers(name)[row] ?? null;
  return (
    <Meter
      title={`${table.texts("device")[row] ?? ""}${rank === null || rank === undefined ? "" : ` · rank ${rank}`}`}
      share={number("busy_percent")}
      more={table.texts("model")[row] ?? ""}
      hint={[
        `busy for ${units.time(number("busy_ns"))}`,
        `${units.percent(number("utilisation_percent"))} from its first to its last work`,
        `${units.count(number("kernels"))} kernels and ${units.count(number("copies"))} copies in ${units.count(number("streams"))} streams`,
      ].join("\n")}
    />
  );
}

function Meter(props: { title: string; share: number | null; more: string; hint: string }) {
  return (
    <li title={props.hint}>
      <span class="name">{props.title}</span>
      <strong>{units.percent(props.share)}</strong>
      <span class="ov-meter">
        <span style={{ width: `${Math.min(props.share ?? 0, 100)}%` }} />
      </span>
      <span class="muted name">{props.more}</span>
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

export function MemoryCard(props: { peaks: Answer<{ peaks: Peak[] }> }) {
  return (
    <section class="card" aria-label="Memory peak">
      <header class="ov-head">
        <h2>Memory peak</h2>
        <a href={address("memory")}>Memory</a>
      </header>
      <Shown answer={props.peaks}>
        {({ peaks }) => (
          <ul class="ov-peaks">
            {peaks.map((peak) => (
              <li key={peak.device}>
                <a href={address("memory", { device: peak.device, time: String(peak.time_ns) })}>
                  <span>{peak.device}</span>
                  <strong>{units.bytes(peak.bytes)}</strong>
                </a>
                <span class="ov-stacked">
                  {peak.categories.map((held) => (
                    <span
                      key={held.category}
                      class={`ov-${CATEGORIES[held.category ?? ""] ?? "runtime"}`}
                      style={{ width: `${(100 * held.bytes) / Math.max(peak.bytes, 1)}%` }}
                      title={`${held.category ?? "unknown"}: ${units.bytes(held.bytes)}`}
                    />
                  ))}
                </span>
                <span class="legend">
                  {peak.categories.slice(0, 4).map((held) => (
                    <span key={held.category}>
                      <span class={`swatch ov-${CATEGORIES[held.category ?? ""] ?? "runtime"}`} />
                      {held.category ?? "unknown"} {units.bytes(held.bytes)}
                    </span>
                  ))}
                </span>
              </li>
            ))}
            {peaks.length === 0 && <li class="muted">No allocation was seen.</li>}
          </ul>
        )}
      </Shown>
    </section>
  );
}
