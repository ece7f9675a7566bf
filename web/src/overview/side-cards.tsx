/** The cards beside the steps: what ran where, how busy devices were, and who held the memory at its peak. */

import { Shown, useJson } from "../parts/answer";
import { address } from "../router";
import * as units from "../units";
import { moment, type Overview, type Peak } from "./facts";

export function RunCard(props: { overview: Overview }) {
  const { overview } = props;
  const facts = [
    { label: "Program", value: overview.program },
    { label: "Ended", value: overview.ended },
    { label: "Began", value: moment(overview.start_realtime_ns) },
    ...overview.facts,
  ].filter((fact) => fact.value);
  return (
    <section class="card" aria-label="Run">
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

export function UtilizationCard(props: { overview: Overview }) {
  return (
    <section class="card" aria-label="Utilization">
      <header class="head-line">
        <h2>Utilization</h2>
        <span class="muted">{props.overview.steps ? "of step time" : "of recorded time"}</span>
      </header>
      <ul class="ov-meters">
        {props.overview.utilization.map((one) => {
          const of = one.steps
            ? `${units.count(one.steps)} ${one.steps === 1 ? "step" : "steps"} of ${units.time(one.duration_ns)} in total`
            : `the ${units.time(one.duration_ns)} recorded of it`;
          const busy = one.on_host ? "In operators" : "Busy";
          const more = one.on_host ? (one.steps ? "in operators" : "in operators, of its recorded time") : "";
          return meter(
            one.title,
            one.percent,
            one.model ?? more,
            `${busy} for ${units.time(one.working_ns)} of ${of}.`,
          );
        })}
      </ul>
    </section>
  );
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

/** The colors of the categories of memory. */
const CATEGORIES: Readonly<Record<string, string>> = {
  parameter: "compute",
  "optimizer state": "communication",
  input: "input",
  temporary: "idle",
  activation: "activation",
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
                color: `var(--${CATEGORIES[category ?? ""] ?? "runtime"})`,
                label: `${category ?? "unknown"} ${units.bytes(bytes)}`,
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
                    {held.map(({ color, label, width }) => (
                      <span key={label} style={{ background: color, width }} title={label} />
                    ))}
                  </span>
                  <span class="legend tiny">
                    {held.slice(0, 4).map(({ color, label }) => (
                      <span key={label}>
                        <span class="swatch" style={{ background: color }} />
                        {label}
                      </span>
                    ))}
                  </span>
                </li>
              );
            })}
            {peaks.length === 0 && <li class="muted">No allocations were recorded.</li>}
          </ul>
        )}
      </Shown>
    </section>
  );
}
