/** A step of each trace as on the timeline, one above the other on one axis of time. */

import { useMemo, useState } from "preact/hooks";
import { useColumns, useJson } from "../parts/answer";
import { Button } from "../parts/button";
import { Icicle } from "../parts/icicle";
import type { Sight } from "../parts/icicle-paint";
import { useWidth } from "../parts/lengths";
import { address, change, route } from "../router";
import { plain } from "../timeline/names";
import { ticks } from "../timeline/ticks";
import * as units from "../units";
import type { About } from "./compare";
import { type DrawnStep, type StepBox, stepBoxes } from "./step-boxes";

/** Room for the label of a tick. */
const LABEL = 40;
const SIDES = ["base", "new"] as const;
type Side = (typeof SIDES)[number];
type Query = Record<string, string | undefined>;

export function Steps(props: { about: About; query: Query }) {
  const { about } = props;
  const number = route.value.query["step"];
  const query = { ...props.query, step: number };
  const { value, error } = useJson<Record<Side, DrawnStep>>("compare/steps", query);
  if (!error && (!value || value.base.step === null || value.new.step === null)) return null;
  return (
    <section class="card cmp-steps" aria-label="A step of each">
      <header class="head-line">
        <h2>
          {number === undefined ? "A step of each, of the lower quartile of lengths" : `Step ${number}`}
        </h2>
        {about.traces.length > 0 && (
          <label>
            step{" "}
            <input
              type="number"
              min="0"
              placeholder="usual"
              value={number ?? ""}
              onChange={(event) => change({ step: event.currentTarget.value || undefined })}
            />
          </label>
        )}
      </header>
      {error ? <p class="warn">{error}</p> : value && <Both about={about} query={query} steps={value} />}
    </section>
  );
}

function Both(props: { about: About; query: Query; steps: Record<Side, DrawnStep> }) {
  const { about, steps } = props;
  const whole = Math.max(steps.base.duration_ns, steps.new.duration_ns, 1);
  const [sight, setSight] = useState<Sight | null>(null);
  const seen = sight ?? { start: 0, end: whole };
  const [axis, width] = useWidth<HTMLDivElement>();
  return (
    <div class="cmp-lanes">
      {SIDES.map((side) => (
        <Lane
          key={side}
          side={side}
          trace={about.traces.length > 0 ? about[side] : null}
          query={props.query}
          step={steps[side]}
          whole={whole}
          sight={seen}
          onSight={setSight}
        />
      ))}
      <div ref={axis}>
        <svg class="cmp-axis" width={width} height={16} aria-hidden="true">
          {ticks(seen, width)
            .major.map((tick) => ({
              ...tick,
              x: (width * (tick.time - seen.start)) / (seen.end - seen.start),
            }))
            .filter((tick) => tick.x >= 0 && tick.x < width - LABEL)
            .map((tick) => (
              <text key={tick.time} x={tick.x} y={12}>
                {tick.label}
              </text>
            ))}
        </svg>
      </div>
      {sight && (
        <p class="small">
          <Button onClick={() => setSight(null)}>Show the whole step</Button>
        </p>
      )}
    </div>
  );
}

function Lane(props: {
  side: Side;
  /** The number of the open trace; null in a report. */
  trace: number | null;
  query: Query;
  step: DrawnStep;
  whole: number;
  sight: Sight;
  onSight: (sight: Sight | null) => void;
}) {
  const { side, trace, step, whole, sight, onSight } = props;
  const { value } = useColumns(`compare/steps/${side}`, props.query);
  const drawn = useMemo(() => (value ? stepBoxes(value, step, whole) : null), [value, step, whole]);
  const [place, setPlace] = useState(-1);
  const chosen = drawn?.all[place];
  const said = (index: number) => (drawn?.all[index] ? inWords(drawn.all[index]) : "");
  const zoom = (index: number) => onSight(drawn?.all[index] ?? null);
  return (
    <div class="cmp-lane">
      <p class="muted small">
        {side}, step {step.step}: <strong>{units.time(step.duration_ns)}</strong>
        {chosen && ` · ${inWords(chosen)}`}
        {chosen && chosen.span >= 0 && trace !== null && (
          <>
            {" · "}
            <a
              href={address("timeline", {
                trace: String(trace),
                part: undefined,
                step: undefined,
                span: String(chosen.span),
              })}
            >
              open in its timeline
            </a>
          </>
        )}
      </p>
      {drawn && (
        <Icicle
          boxes={drawn.boxes}
          looks={drawn.looks}
          label={`${side}: what ran in step ${step.step}`}
          mostRows={12}
          zoom={-1}
          sight={sight}
          chosen={chosen ? place : -1}
          onChoose={setPlace}
          onZoom={zoom}
          said={said}
          tip={said}
        />
      )}
    </div>
  );
}

/** A box in words. */
function inWords(box: StepBox): string {
  const many = box.count > 1 ? `${units.count(box.count)} spans, the first one ` : "";
  return `${many}${plain(box.name)} ${units.time(box.duration)}`;
}
