/** How long the steps took, and where their time went. */

import { useMemo, useRef, useState } from "preact/hooks";
import { Shown, useColumns } from "../parts/answer";
import { Button } from "../parts/button";
import { Select } from "../parts/choice";
import { beside } from "../parts/lengths";
import { Ranked } from "../parts/ranked";
import { Table } from "../parts/table";
import { address, change, go, route } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { BarTip } from "./bar-tip";
import type { Overview } from "./facts";
import { StepChart } from "./step-chart";
import { StepDifference } from "./step-difference";
import { StepRows } from "./step-rows";
import {
  type Bar,
  compared,
  kindsOf,
  onHost,
  PARTS,
  partTitle,
  placesOf,
  type Step,
  type StepKind,
  spread,
  stepsOf,
  summed,
} from "./steps";

/** Up to so many steps each has a row, with words in it; more are drawn side by side. */
const MOST_ROWS = 12;
/** With more than so many in all, one device is shown before all of them. */
const MOST_OF_ALL = 64;

export function StepCard(props: { overview: Overview }) {
  const answer = useColumns("table/breakdown");
  // About as high as it will be, so that nothing moves when the steps come.
  const expected = props.overview.steps?.count ?? 1;
  const minHeight = expected > MOST_ROWS ? "24.4rem" : `${6.4 + 1.79 * expected}rem`;
  return (
    <section class="card ov-steps" aria-label="Steps" style={{ minHeight }}>
      <Shown answer={answer}>{(table) => <Steps table={table} overview={props.overview} />}</Shown>
    </section>
  );
}

function Steps(props: { table: Columns; overview: Overview }) {
  const { table, overview } = props;
  const names = overview.process_names;
  const places = useMemo(() => placesOf(stepsOf(table, names)), [table, names]);
  const stepping = places.filter((one) => one.steps.some((step) => step.number !== null));
  const ofAll = stepping.length ? stepping : places;
  const wanted = route.value.query["of"];
  const place =
    places.find((one) => one.key === wanted) ??
    (ofAll.length === 1 || (wanted !== "all" && table.rows > MOST_OF_ALL) ? ofAll[0] : undefined);
  // Of all devices, the steps of one number stand beside each other.
  const shown = useMemo(
    () => place?.steps ?? ofAll.flatMap((one) => one.steps).sort((a, b) => (a.number ?? 0) - (b.number ?? 0)),
    [place, places],
  );
  const judged = useMemo(() => compared(shown), [shown]);
  const times = useMemo(() => judged.map((step) => step.duration), [judged]);
  const sum = summed(judged);
  const kinds = useMemo(() => kindsOf(judged), [judged]);
  const asTable = route.value.query["steps"] === "table";
  const noSteps = shown.every((step) => step.number === null);
  const leftOut = shown.filter((step) => step.startUp);
  const first = leftOut[0];
  const wantedStep = route.value.query["step"];
  const compare =
    wantedStep === undefined ? undefined : shown.find((step) => String(step.number) === wantedStep);
  return (
    <>
      <header class="head-line">
        <h2>{noSteps ? "Time breakdown" : "Step time"}</h2>
        {!noSteps && times.length > 1 && (
          <span class="legend">
            {Object.entries(spread(times)).map(
              ([name, time]) =>
                // The mean of training and evaluation is that of neither.
                (name !== "mean" || kinds.length === 0) && (
                  <span key={name}>
                    {name} <strong>{units.time(time)}</strong>
                  </span>
                ),
            )}
          </span>
        )}
        <div class="tools">
          {places.length > 1 && (
            <Select
              label="Process and device"
              options={[
                ...(ofAll.length > 1 ? [["all", `all ${ofAll.length} with steps`] as const] : []),
                ...places.map((one) => [one.key, one.title] as const),
              ]}
              chosen={place?.key ?? "all"}
              onChoice={(of) => change({ of })}
            />
          )}
          <Button aria-pressed={asTable} onClick={() => change({ steps: asTable ? undefined : "table" })}>
            Table
          </Button>
        </div>
      </header>
      <ul class="legend">
        {PARTS.map(
          (part, index) =>
            Boolean(sum.parts[index]) && (
              <li key={part.column}>
                <span class="swatch" style={{ background: part.color }} />
                {partTitle(part, onHost(judged))}
                <strong>{units.percent((100 * (sum.parts[index] ?? 0)) / sum.duration)}</strong>
              </li>
            ),
        )}
      </ul>
      {kinds.length > 0 && <Kinds kinds={kinds} overview={overview} />}
      {asTable ? <AsTable table={table} /> : <Plot steps={shown} times={times} />}
      {compare && <StepDifference step={compare} others={times.length - 1} />}
      <p class="muted small">
        {first && leftOut.length === 1
          ? `Step ${first.number} (${units.time(first.duration)}) includes what ran before the loop; it is excluded from these numbers. `
          : first &&
            `${units.count(leftOut.length)} steps include what ran before the loop; they are excluded from these numbers. `}
        {noSteps && stepping.length > 0 && "This process has no steps: the whole recording is shown. "}
        {noSteps && stepping.length === 0 && overview.requests.length === 0 && (
          <>
            The trace has no steps: loop over <code>kinetoscope.steps(loader)</code>, or pass a{" "}
            <code>schedule</code> and call <code>prof.step()</code>.{" "}
          </>
        )}
        {table.total > table.rows &&
          `The first ${units.count(table.rows)} of ${units.count(table.total)} rows.`}
      </p>
    </>
  );
}

/** A row or a bar for each step, and the tooltip of the one under the pointer. */
function Plot(props: { steps: readonly Step[]; times: readonly number[] }) {
  const [tip, setTip] = useState<{ bar: Bar; x: number; y: number } | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const point = (bar: Bar | null, event?: MouseEvent) => {
    const box = frame.current?.getBoundingClientRect();
    const { clientX, clientY } = event ?? { clientX: (box?.left ?? 0) + 200, clientY: (box?.top ?? 0) + 40 };
    setTip(bar && box ? { bar, x: clientX - box.left, y: clientY - box.top } : null);
  };
  return (
    <div class="ov-plot" ref={frame}>
      {props.steps.length <= MOST_ROWS ? (
        <StepRows steps={props.steps} times={props.times} onPoint={point} />
      ) : (
        <StepChart steps={props.steps} times={props.times} onPoint={point} />
      )}
      {tip && (
        <div class="tip ov-tip" style={beside(tip.x, tip.y, frame.current?.clientWidth ?? 0)}>
          <BarTip bar={tip.bar} />
        </div>
      )}
    </div>
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
        { name: "step", width: 5 },
        { name: "process", width: 5, optional: true },
        { name: "rank", width: 5 },
        { name: "device", width: 6 },
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

/** How many steps of each kind there are, and what one of them takes; a click shows what is special about it. */
function Kinds(props: { kinds: readonly StepKind[]; overview: Overview }) {
  const known = props.overview.steps?.kinds ?? [];
  return (
    <section class="ov-kinds" aria-label="Kinds of steps">
      <h3>{units.counted(props.kinds.length, "kind")} of steps</h3>
      <Ranked
        rows={props.kinds.map(({ kind, count, mean, share, middle }) => {
          const most = known.find((one) => one.kind === kind)?.most_of;
          return {
            name: (
              <>
                Kind {kind}
                {most && <span class="muted"> with more {most}</span>}
              </>
            ),
            title: "Compare a step of this kind with the others of its kind",
            count: `${units.counted(count, "step")} of`,
            time: units.time(mean),
            percent: units.percent(share),
            fill: share,
            href:
              middle === null
                ? undefined
                : address("overview", { ...route.value.query, step: String(middle) }),
          };
        })}
      />
    </section>
  );
}
