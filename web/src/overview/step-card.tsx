/** How long the steps took, and where their time went. */

import { useMemo, useRef, useState } from "preact/hooks";
import { Shown, useColumns } from "../parts/answer";
import { Table } from "../parts/table";
import { change, go, route } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { StepChart } from "./step-chart";
import { StepRows } from "./step-rows";
import {
  type Bar,
  PARTS,
  type Place,
  placesOf,
  placeTitle,
  quantile,
  type Step,
  stepsOf,
  summed,
} from "./steps";
import { partTitle, Told } from "./told";

/** Up to so many steps each has a row, with words in it; more are drawn side by side. */
const MOST_ROWS = 12;
/** With more than so many in all, one device is shown before all of them. */
const MOST_OF_ALL = 64;

export function StepCard(props: { foundByOptimizer: boolean }) {
  const answer = useColumns("table/breakdown");
  return (
    <section class="card ov-steps" aria-label="Steps">
      <Shown answer={answer}>
        {(table) => <Steps table={table} foundByOptimizer={props.foundByOptimizer} />}
      </Shown>
    </section>
  );
}

function Steps(props: { table: Columns; foundByOptimizer: boolean }) {
  const { table } = props;
  const steps = useMemo(() => stepsOf(table), [table]);
  const places = useMemo(() => placesOf(steps), [steps]);
  const [told, setTold] = useState<{ bar: Bar; x: number; y: number } | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const wanted = route.value.query["of"];
  const place =
    places.find((one) => one.key === wanted) ??
    (places.length === 1 || (wanted !== "all" && steps.length > MOST_OF_ALL) ? places[0] : undefined);
  const shown = place?.steps ?? steps;
  const asTable = route.value.query["steps"] === "table";
  const noSteps = shown.every((step) => step.number === null);
  const times = useMemo(() => timed(shown, props.foundByOptimizer), [shown, props.foundByOptimizer]);

  const point = (bar: Bar | null, event?: MouseEvent) => {
    const box = frame.current?.getBoundingClientRect();
    if (!bar || !box) setTold(null);
    else
      setTold({
        bar,
        x: event ? event.clientX - box.left : box.width / 3,
        y: event ? event.clientY - box.top : 40,
      });
  };
  return (
    <>
      <header class="ov-head">
        <h2>{noSteps ? "Where the time went" : "Step time"}</h2>
        {!noSteps && <Statistics times={times} left={shown.length - times.length} />}
        <div class="tools">
          {places.length > 1 && <Choice places={places} chosen={place?.key ?? "all"} all={steps.length} />}
          <button
            type="button"
            aria-pressed={asTable}
            onClick={() => change({ steps: asTable ? undefined : "table" })}
          >
            Table
          </button>
        </div>
      </header>
      <Legend steps={shown} />
      {asTable ? (
        <AsTable table={table} />
      ) : (
        // The pointer only shows here what the rows and the chart also say to a keyboard.
        <div class="ov-plot" ref={frame}>
          {shown.length <= MOST_ROWS ? (
            <StepRows steps={shown} onPoint={point} />
          ) : (
            <StepChart steps={shown} times={times} onPoint={point} />
          )}
          {told && (
            <div
              class="ov-told"
              style={{
                top: `${told.y + 16}px`,
                ...(told.x > (frame.current?.clientWidth ?? 0) / 2
                  ? { right: `${(frame.current?.clientWidth ?? 0) - told.x + 12}px` }
                  : { left: `${told.x + 12}px` }),
              }}
            >
              <Told bar={told.bar} />
            </div>
          )}
        </div>
      )}
      {noSteps && (
        <p class="muted ov-note">
          The trace has no steps. Call <code>prof.step()</code> in the loop, or use an optimizer of torch.
        </p>
      )}
      {table.total > table.rows && (
        <p class="muted ov-note">
          The first {units.count(table.rows)} of {units.count(table.total)} rows.
        </p>
      )}
    </>
  );
}

/** The times that are compared: without first steps that hold all that came before the loop. */
function timed(steps: readonly Step[], foundByOptimizer: boolean): number[] {
  if (!foundByOptimizer) return steps.map((step) => step.duration);
  const seen = new Map<string, number>();
  for (const step of steps) seen.set(placeTitle(step), (seen.get(placeTitle(step)) ?? 0) + 1);
  const begun = new Set<string>();
  return steps
    .filter((step) => {
      const title = placeTitle(step);
      const first = !begun.has(title);
      begun.add(title);
      return !first || (seen.get(title) ?? 0) < 3;
    })
    .map((step) => step.duration);
}

function Statistics(props: { times: readonly number[]; left: number }) {
  const sorted = useMemo(() => [...props.times].sort((a, b) => a - b), [props.times]);
  if (sorted.length < 2) return null;
  const numbers = [
    ["min", sorted[0]],
    ["median", quantile(sorted, 0.5)],
    ["95 %", quantile(sorted, 0.95)],
    ["max", sorted[sorted.length - 1]],
  ] as const;
  return (
    <dl
      class="ov-statistics"
      title={
        props.left ? "The first step holds all that came before the loop and is not counted." : undefined
      }
    >
      {numbers.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{units.time(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

function Choice(props: { places: readonly Place[]; chosen: string; all: number }) {
  return (
    <select
      aria-label="Device"
      value={props.chosen}
      onChange={(event) => change({ of: event.currentTarget.value })}
    >
      <option value="all">all {props.places.length} devices</option>
      {props.places.map((place) => (
        <option key={place.key} value={place.key}>
          {place.title}
        </option>
      ))}
    </select>
  );
}

/** What each colour is, and what it comes to. */
function Legend(props: { steps: readonly Step[] }) {
  const sum = useMemo(() => summed(props.steps), [props.steps]);
  const onHost = props.steps.every((step) => step.device === "cpu");
  return (
    <ul class="ov-legend">
      {PARTS.map((part, index) => {
        const value = sum.parts[index] ?? 0;
        return (
          <li key={part.column} class={value ? "" : "none"}>
            <span class={`swatch ov-${part.colour}`} />
            <span>{partTitle(index, onHost)}</span>
            <strong>{units.percent(sum.duration > 0 ? (100 * value) / sum.duration : null)}</strong>
          </li>
        );
      })}
    </ul>
  );
}

function AsTable(props: { table: Columns }) {
  const { table } = props;
  return (
    <Table
      table={table}
      id="breakdown"
      order="start_ns"
      height="22rem"
      columns={[
        { name: "step", width: "5rem" },
        { name: "rank", width: "5rem" },
        { name: "device", width: "6rem" },
        { name: "duration_ns", bar: true },
        ...PARTS.map((part) => ({ name: part.column })),
        { name: "unrecorded_ns" },
      ]}
      onRow={(row) => {
        const start = table.numbers("start_ns")[row] ?? 0;
        const end = start + (table.numbers("duration_ns")[row] ?? 0);
        go("timeline", { start: String(start), end: String(end) });
      }}
    />
  );
}
