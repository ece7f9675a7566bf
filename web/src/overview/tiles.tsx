/** The numbers at the head of the overview. */

import { useMemo } from "preact/hooks";
import { type Answer, useColumns, useJson } from "../parts/answer";
import * as units from "../units";
import type { Overview, Peak, Work } from "./facts";
import { placesOf, stepsOf, summed, working } from "./steps";

export function Tiles(props: { overview: Overview; peaks: Answer<{ peaks: Peak[] }> }) {
  const { overview } = props;
  return (
    <div class="ov-tiles">
      <Tile
        title="Recorded"
        value={units.time(overview.duration_ns)}
        more={
          overview.processes > 1
            ? `${units.count(overview.processes)} processes`
            : plural(overview.threads, "thread")
        }
      />
      <StepTile overview={overview} />
      <BusyTile overview={overview} />
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
        one
          ? "one step"
          : steps.numbers < steps.count
            ? `${plural(steps.numbers, "step")} · ${steps.count} over all ranks`
            : `${plural(steps.count, "step")} · 95 % within ${units.time(steps.p95_ns)}`
      }
      hint={
        steps.counted < steps.count
          ? "The first step of each process holds all that came before the loop and is not counted here."
          : undefined
      }
    />
  );
}

function BusyTile(props: { overview: Overview }) {
  const table = useColumns("table/breakdown").value;
  const places = useMemo(() => (table ? placesOf(stepsOf(table)) : []), [table]);
  const onHost = props.overview.device_work === 0;
  const shares = places.map((place) => working(summed(place.steps))).filter((share) => share !== null);
  const all = working(summed(places.flatMap((place) => place.steps)));
  const whole = places.every((place) => place.steps.every((step) => step.number === null));
  const of = whole ? "of the whole trace" : "of step time";
  const more =
    shares.length > 1
      ? `${of} · ${shares.length} ${onHost ? "ranks" : "devices"}, ${Math.min(...shares).toFixed(0)} to ${Math.max(...shares).toFixed(0)} %`
      : `${of}${places[0] && !onHost ? ` · ${places[0].device}` : ""}`;
  return (
    <Tile
      title={onHost ? "In operators" : "Device busy"}
      value={table ? units.percent(all) : " "}
      more={table ? more : undefined}
      hint={
        onHost
          ? "The share of time in which an operator or backward function ran."
          : "The share of time in which the device computed, communicated or copied."
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
      value={value ? units.bytes(peak?.bytes ?? null) : " "}
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
            ? fine(value.mfu_percent)
            : units.scaled(speed, "FLOP/s")
          : error
            ? "–"
            : " "
      }
      more={
        value
          ? value.mfu_percent != null
            ? `${units.scaled(speed, "FLOP/s")}${value.of_steps ? " in the median step" : ""}`
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

/** A share that may be far below a percent. */
function fine(value: number): string {
  return value > 0 && value < 0.1 ? "< 0.1 %" : units.percent(value);
}

export function plural(value: number, noun: string): string {
  return `${units.count(value)} ${noun}${value === 1 ? "" : "s"}`;
}
