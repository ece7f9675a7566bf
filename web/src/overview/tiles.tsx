/** The numbers at the head of the overview. */

import { useMemo } from "preact/hooks";
import { type Answer, useJson } from "../parts/answer";
import type { Columns } from "../source/source";
import * as units from "../units";
import type { Overview, Peak, Work } from "./facts";
import { compared, placesOf, stepsOf, summed, working } from "./steps";
import { share } from "./told";

/** Keeps the place of a number that is on its way. */
const NOT_YET = "\u2007";

export function Tiles(props: {
  overview: Overview;
  breakdown: Answer<Columns>;
  peaks: Answer<{ peaks: Peak[] }>;
}) {
  const { overview } = props;
  return (
    <div class="ov-tiles">
      <Tile
        title="Recorded"
        value={units.time(overview.duration_ns)}
        more={
          overview.processes > 1 ? plural(overview.processes, "process") : plural(overview.threads, "thread")
        }
      />
      <StepTile overview={overview} />
      <BusyTile overview={overview} breakdown={props.breakdown} />
      {overview.memory && <MemoryTile peaks={props.peaks} />}
      <Tile
        title={overview.kernels ? "Kernels" : "Operators"}
        value={units.count(overview.kernels || overview.operators)}
        more={
          overview.kernels
            ? `${units.count(overview.operators)} operators`
            : `${units.count(overview.spans)} spans`
        }
      />
      {overview.shapes > 0 && <WorkTile />}
    </div>
  );
}

function Tile(props: { title: string; value: string; more?: string | undefined; hint?: string | undefined }) {
  return (
    <div class="card ov-tile" title={props.hint}>
      <h2>{props.title}</h2>
      <p class="number">{props.value}</p>
      <p class="muted name">{props.more ?? "\u00a0"}</p>
    </div>
  );
}

function StepTile(props: { overview: Overview }) {
  const { steps } = props.overview;
  if (!steps) return null;
  const one = steps.count === 1;
  return (
    <Tile
      title={one ? "Step" : "Median step"}
      value={units.time(steps.median_ns)}
      more={
        steps.numbers < steps.count
          ? `${plural(steps.numbers, "step")} on ${plural(steps.processes, "process")}`
          : one
            ? "the only one"
            : `${plural(steps.count, "step")}, 95 % ≤ ${units.time(steps.p95_ns)}`
      }
      hint={
        steps.left_out.length
          ? "The first step holds what came before the loop and is not counted here."
          : undefined
      }
    />
  );
}

function BusyTile(props: { overview: Overview; breakdown: Answer<Columns> }) {
  const table = props.breakdown.value;
  const leftOut = props.overview.steps?.left_out ?? [];
  const places = useMemo(() => (table ? placesOf(stepsOf(table)) : []), [table]);
  const sums = places.map((place) => summed(compared(place.steps, leftOut)));
  const shares = sums.map(working).filter((share) => share !== null);
  const whole = sums.reduce((sum, one) => sum + one.duration, 0);
  const all = whole
    ? sums.reduce((sum, one, place) => sum + one.duration * (shares[place] ?? 0), 0) / whole
    : null;
  const onHost = props.overview.device_work === 0;
  const of = props.overview.steps ? "of step time" : "of the trace";
  const range = `${shares.length} ${onHost ? "ranks" : "devices"}, ${Math.min(...shares).toFixed(0)} to ${Math.max(...shares).toFixed(0)} %`;
  return (
    <Tile
      title={onHost ? "In operators" : "Device busy"}
      value={table ? share(all) : NOT_YET}
      more={table ? (shares.length > 1 ? range : of) : undefined}
      hint={
        onHost
          ? `The share ${of} in which an operator or backward function ran.`
          : `The share ${of} in which the device computed, communicated or copied.`
      }
    />
  );
}

function MemoryTile(props: { peaks: Answer<{ peaks: Peak[] }> }) {
  const { value } = props.peaks;
  const peak = value?.peaks[0];
  return (
    <Tile
      title="Memory peak"
      value={value ? units.bytes(peak?.bytes ?? null) : NOT_YET}
      more={
        peak
          ? peak.size_bytes
            ? `${peak.device} · ${units.percent((100 * peak.bytes) / peak.size_bytes)} of ${units.bytes(peak.size_bytes)}`
            : `${peak.device} · after ${units.time(peak.time_ns)}`
          : value
            ? "no allocation was seen"
            : undefined
      }
      hint="The most bytes of tensors that were live at once, as far as the trace saw them allocated."
    />
  );
}

function WorkTile() {
  const { value, error } = useJson<Work>("overview/work");
  const speed = value?.flops_per_s ?? null;
  return (
    <Tile
      title={value?.mfu_percent != null ? "MFU" : "Arithmetic"}
      value={
        value
          ? value.mfu_percent != null
            ? share(value.mfu_percent)
            : units.scaled(speed, "FLOP/s")
          : error
            ? "–"
            : NOT_YET
      }
      more={
        value
          ? value.mfu_percent != null
            ? units.scaled(speed, "FLOP/s")
            : `${units.scaled(value.flops, "FLOP")} in all`
          : undefined
      }
      hint={
        value
          ? `${units.scaled(value.flops, "FLOP")} counted in all; known for ${units.percent(value.covered_percent)} of the operators' time.${
              value.mfu_percent != null
                ? " Model FLOP utilisation: the time that the matrix work takes at the peak of the devices, as a part of the step."
                : ""
            }`
          : undefined
      }
    />
  );
}

export function plural(value: number, noun: string): string {
  return `${units.count(value)} ${noun}${value === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
}
