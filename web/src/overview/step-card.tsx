/** How long the steps took, and where their time went. */

import { useMemo, useRef, useState } from "preact/hooks";
import { type Answer, Shown } from "../parts/answer";
import { Table } from "../parts/table";
import { change, go, route } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { StepChart } from "./step-chart";
import { StepRows } from "./step-rows";
import {
  type Bar,
  compared,
  type LeftOut,
  PARTS,
  type Place,
  placesOf,
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

export function StepCard(props: {
  answer: Answer<Columns>;
  leftOut: readonly LeftOut[];
  /** About how many rows there will be. */
  expected: number;
}) {
  return (
    <section
      class="card ov-steps"
      aria-label="Steps"
      style={{ minHeight: props.expected > MOST_ROWS ? "24.4rem" : `${6.4 + 1.79 * props.expected}rem` }}
    >
      <Shown answer={props.answer}>{(table) => <Steps table={table} leftOut={props.leftOut} />}</Shown>
    </section>
  );
}

function Steps(props: { table: Columns; leftOut: readonly LeftOut[] }) {
  const { table } = props;
  const places = useMemo(() => placesOf(stepsOf(table)), [table]);
  const wanted = route.value.query["of"];
  const place =
    places.find((one) => one.key === wanted) ??
    (places.length === 1 || (wanted !== "all" && table.rows > MOST_OF_ALL) ? places[0] : undefined);
  const shown = useMemo(() => place?.steps ?? together(places), [place, places]);
  const judged = useMemo(() => compared(shown, props.leftOut), [shown, props.leftOut]);
  const times = useMemo(() => judged.map((step) => step.duration), [judged]);
  const asTable = route.value.query["steps"] === "table";
  const noSteps = shown.every((step) => step.number === null);
  const [first] = props.leftOut.length && judged.length < shown.length ? shown : [];
  return (
    <>
      <header class="ov-head">
        <h2>{noSteps ? "Where the time went" : "Step time"}</h2>
        {!noSteps && <Statistics times={times} />}
        <div class="tools">
          {places.length > 1 && <Choice places={places} chosen={place?.key ?? "all"} />}
          <button
            type="button"
            aria-pressed={asTable}
            onClick={() => change({ steps: asTable ? undefined : "table" })}
          >
            Table
          </button>
        </div>
      </header>
      <Legend steps={judged} />
      {asTable ? <AsTable table={table} /> : <Plot steps={shown} times={times} />}
      {first && (
        <p class="muted ov-note">
          Step {first.number} ({units.time(first.duration)}) holds what came before the loop: no number here
          counts it.
        </p>
      )}
      {noSteps && (
        <p class="muted ov-note">
          The trace has no steps: call <code>prof.step()</code> in the loop to have them.
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

/** The steps of all devices, those of one number beside each other. */
function together(places: readonly Place[]): Step[] {
  return places.flatMap((place) => place.steps).sort((a, b) => (a.number ?? 0) - (b.number ?? 0));
}

/** A row or a bar for each step, and what is told of the one under the pointer. */
function Plot(props: { steps: readonly Step[]; times: readonly number[] }) {
  const [told, setTold] = useState<{ bar: Bar; x: number; y: number } | null>(null);
  const frame = useRef<HTMLDivElement>(null);
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
  const width = frame.current?.clientWidth ?? 0;
  return (
    <div class="ov-plot" ref={frame}>
      {props.steps.length <= MOST_ROWS ? (
        <StepRows steps={props.steps} onPoint={point} />
      ) : (
        <StepChart steps={props.steps} times={props.times} onPoint={point} />
      )}
      {told && (
        <div
          class="ov-told"
          style={{
            top: `${told.y + 16}px`,
            left: told.x > width / 2 ? "auto" : `${told.x + 12}px`,
            right: told.x > width / 2 ? `${width - told.x + 12}px` : "auto",
          }}
        >
          <Told bar={told.bar} />
        </div>
      )}
    </div>
  );
}

function Statistics(props: { times: readonly number[] }) {
  const sorted = useMemo(() => [...props.times].sort((a, b) => a - b), [props.times]);
  if (sorted.length < 2) return null;
  const numbers = [
    ["min", sorted[0]],
    ["median", quantile(sorted, 0.5)],
    ["max", sorted[sorted.length - 1]],
  ] as const;
  return (
    <dl class="ov-statistics">
      {numbers.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{units.time(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

function Choice(props: { places: readonly Place[]; chosen: string }) {
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
        return value === 0 ? null : (
          <li key={part.column}>
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
