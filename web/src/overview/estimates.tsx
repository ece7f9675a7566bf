/** The average step of a job of which only some steps were recorded: each bar with the interval that has the true average. */

import { useState } from "preact/hooks";
import { Shown, useJson } from "../parts/answer";
import { Choice } from "../parts/choice";
import { Middle } from "../parts/middle";
import * as units from "../units";
import type { Estimated, EstimatedKind, Overview } from "./facts";

const BY = [
  ["operator", "Operators"],
  ["module", "Modules"],
] as const;

export function EstimatesCard(props: { overview: Overview }) {
  const { overview } = props;
  const [by, setBy] = useState<string>("operator");
  const answer = useJson<{ kinds: EstimatedKind[] }>("overview/estimates", { by });
  return (
    <section class="card" aria-label="Average step">
      <header class="head-line">
        <h2>Average step</h2>
        <span class="muted ov-sampling">estimated from {overview.sampling}, with 95 % intervals</span>
        {overview.modules > 0 && (
          <span class="tools">
            <Choice label="Rows" options={BY} chosen={by} onChoice={setBy} />
          </span>
        )}
      </header>
      <Shown answer={answer}>
        {({ kinds }) => kinds.map((one) => <Kind key={one.kind} one={one} several={kinds.length > 1} />)}
      </Shown>
    </section>
  );
}

function Kind(props: { one: EstimatedKind; several: boolean }) {
  const { one, several } = props;
  const kind = several ? `Kind ${one.kind}: ` : "";
  const about = `${kind}${units.counted(one.steps, "recorded step")} of about ${units.count(Math.round(one.of_steps))}`;
  if (one.per_step_ns === null) return <p class="muted small">{about}, too few for an estimate.</p>;
  const end = Math.max(...one.rows.map((row) => row.high_ns ?? 0), 1);
  return (
    <>
      <p class="muted small">{about}</p>
      <ol class="ov-estimates">
        {one.rows.map((row) => (
          <Row key={row.name ?? ""} row={row} end={end} />
        ))}
      </ol>
    </>
  );
}

function Row(props: { row: Estimated; end: number }) {
  const { row, end } = props;
  const [low, high] = [Math.max(row.low_ns ?? 0, 0), row.high_ns ?? 0];
  const interval = `${units.time(low)} to ${units.time(high)}`;
  return (
    <li title={`${row.name ?? "The whole step"}: ${interval}`}>
      <span class={row.name === null ? "name" : "name mono"}>
        <Middle>{row.name ?? "whole step"}</Middle>
      </span>
      <span class="ov-interval">
        <span style={{ width: `${(100 * (row.per_step_ns ?? 0)) / end}%` }} />
        <i style={{ left: `${(100 * low) / end}%`, width: `${(100 * (high - low)) / end}%` }} />
      </span>
      <strong>{units.time(row.per_step_ns)}</strong>
      <span class="muted">{interval}</span>
    </li>
  );
}
