/** A job of many ranks by their summaries: all steps as a map, one of them with its collectives, and who arrived late there. */

import { useMemo, useState } from "preact/hooks";
import { FindingsCard } from "../overview/findings";
import { PARTS } from "../overview/steps";
import { Nothing, Problem, Shown, useColumns, useJson, useSource, words } from "../parts/answer";
import { Button } from "../parts/button";
import { Select } from "../parts/choice";
import { type ShownColumn, Table } from "../parts/table";
import { says } from "../parts/table-columns";
import { theme } from "../parts/theme";
import { Arrivals } from "../ranks/arrivals";
import { type Cell, HeatMap } from "../ranks/heat-map";
import { type About, limits, ordered, rampGradient, type StepFacts } from "../ranks/ranks";
import { change, go, route } from "../router";
import { lookAgain } from "../source/server";
import { type Columns, made } from "../source/source";
import * as units from "../units";
import "../ranks/ranks.css";

export function RanksPage() {
  const answer = useJson<About>("ranks");
  const table = useColumns("ranks/table");
  return (
    <>
      <header class="title">
        <h1>Ranks</h1>
        {answer.value && (
          <span class="about">
            {units.counted(answer.value.ranks, "rank")}, {units.counted(answer.value.steps.length, "step")}
          </span>
        )}
      </header>
      <Shown answer={answer}>
        {(about) => <Shown answer={table}>{(ranks) => <Whole about={about} ranks={ranks} />}</Shown>}
      </Shown>
    </>
  );
}

function Whole(props: { about: About; ranks: Columns }) {
  const { about, ranks } = props;
  return (
    <div class="ranks">
      {about.notes.map((note) => (
        <p key={note} class="warn">
          {note}
        </p>
      ))}
      <FindingsCard path="ranks/findings" />
      {about.steps.length > 0 ? (
        <MapCard about={about} ranks={ranks} />
      ) : (
        <Nothing>No steps were recorded.</Nothing>
      )}
      <section aria-label="All ranks">
        <h2>All ranks</h2>
        <p class="muted small">Times are medians over the steps.</p>
        <Table
          table={ranks}
          id="ranks"
          columns={shownColumns(about, ranks)}
          height="24rem"
          onRow={(row) => change({ rank: String(ranks.numbers("rank")[row]) })}
          selected={(row) => String(ranks.numbers("rank")[row]) === route.value.query["rank"]}
        />
      </section>
    </div>
  );
}

function shownColumns(about: About, ranks: Columns): ShownColumn[] {
  return [
    { name: "rank", width: 5 },
    ...about.dimensions.map((name) => ({ name, title: name, width: 4 })),
    { name: "host", width: 8 },
    { name: "step_ns", title: "Step", bar: true },
    { name: "late_ns", title: "Late", bar: true },
    ...PARTS.map(({ column, title }) => ({ name: column, title, width: [8.5, 1] as [number, number] })),
    { name: "memory_bytes", title: "Memory peak", width: [7.5, 1], optional: !says(ranks, "memory_bytes") },
  ];
}

function MapCard(props: { about: About; ranks: Columns }) {
  const { about, ranks } = props;
  const { query } = route.value;
  const by = about.measures.find(([name]) => name === query["by"])?.[0] ?? about.measures[0]?.[0] ?? "";
  const title = about.measures.find(([name]) => name === by)?.[1] ?? "";
  const column = query["order"] ?? "rank";
  const order = useMemo(() => ordered(ranks, column, about.dimensions), [ranks, column]);
  const numbers = ranks.numbers("rank");
  const row = Array.from(numbers).findIndex((rank) => String(rank) === query["rank"]);
  const step = about.steps.findIndex((number) => String(number) === query["step"]);
  const chosen = row >= 0 && step >= 0 ? { row, step } : null;
  const cells = useColumns("ranks/cells", { by });
  const orders = useMemo(
    () =>
      ranks.facts
        .filter(
          ({ name, numeric }) => name === "host" || (numeric && name !== "losses" && name !== "findings"),
        )
        .map(
          ({ name, unit }) =>
            [name, about.dimensions.includes(name) ? name : units.heading(name, unit)] as const,
        ),
    [ranks],
  );
  return (
    <>
      <section class="card" aria-label="Map">
        <div class="head-line">
          <h2>Ranks by steps</h2>
          <span>
            color{" "}
            <Select
              label="Color"
              options={about.measures}
              chosen={by}
              onChoice={(name) => change({ by: name === about.measures[0]?.[0] ? undefined : name })}
            />
          </span>
          <span>
            order{" "}
            <Select
              label="Order"
              options={orders}
              chosen={column}
              onChoice={(name) => change({ order: name === "rank" ? undefined : name })}
            />
          </span>
          {cells.value && <Scale values={cells.value.numbers("value")} />}
        </div>
        <Shown answer={cells}>
          {(table) => (
            <Cells about={about} ranks={ranks} order={order} table={table} title={title} chosen={chosen} />
          )}
        </Shown>
      </section>
      {chosen && <Step rank={Number(numbers[chosen.row])} step={about.steps[chosen.step] ?? 0} />}
      {!chosen && <p class="muted">Click a cell to see the collectives of that step.</p>}
    </>
  );
}

/** The legend: what the colors begin and end with. */
function Scale(props: { values: ArrayLike<number> }) {
  const [low, high] = useMemo(() => limits(props.values), [props.values]);
  return (
    <span class="heat-scale muted small">
      <span>{units.time(low)}</span>
      <span style={{ background: rampGradient(theme.value) }} />
      <span>{units.time(high)} or more</span>
    </span>
  );
}

function Cells(props: {
  about: About;
  ranks: Columns;
  order: Int32Array;
  table: Columns;
  title: string;
  chosen: Cell | null;
}) {
  const { about, ranks, table, title } = props;
  const { steps } = about;
  const values = table.numbers("value");
  const [low, high] = useMemo(() => limits(values), [table]);
  const numbers = ranks.numbers("rank");
  const said = ({ row, step }: Cell) =>
    `Rank ${numbers[row]}, step ${steps[step]}: ${title} ${units.time(values[row * steps.length + step])}`;
  return (
    <HeatMap
      values={values}
      ranks={numbers}
      steps={steps}
      order={props.order}
      low={low}
      high={high}
      chosen={props.chosen}
      label={`${title} of ${units.counted(about.ranks, "rank")} in ${units.counted(steps.length, "step")}`}
      said={said}
      tip={(cell) => (
        <>
          <strong>{said(cell)}</strong>
          <div class="muted">
            {ranks.texts("host")[cell.row]}
            {about.dimensions.map((name) => ` · ${name} ${ranks.numbers(name)[cell.row] ?? "–"}`)}
          </div>
          <div class="muted">median of its steps: {units.time(ranks.numbers("step_ns")[cell.row])}</div>
        </>
      )}
      onChoose={(cell) =>
        change(
          {
            rank: cell ? String(numbers[cell.row]) : undefined,
            step: cell ? String(steps[cell.step]) : undefined,
            collective: undefined,
          },
          true,
        )
      }
    />
  );
}

/** A cell of the map: the parts of the step, its collectives, and the way to the traces. */
function Step(props: { rank: number; step: number }) {
  const answer = useJson<StepFacts>("ranks/step", props);
  return (
    <Shown answer={answer}>
      {(facts) => (
        <>
          <div class="ranks-step">
            <section class="card" aria-label="Step">
              <h2>
                Rank {facts.rank}, step {facts.step}
              </h2>
              <table class="ranks-parts">
                <thead>
                  <tr>
                    <th scope="col">part</th>
                    <th scope="col">this rank</th>
                    <th scope="col">median of all</th>
                  </tr>
                </thead>
                <tbody>
                  {facts.parts.map(([title, own, middle]) => (
                    <tr key={title}>
                      <th scope="row">{title}</th>
                      <td>{units.time(own)}</td>
                      <td>{units.time(middle)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
              <Timelines facts={facts} />
            </section>
            <Collectives facts={facts} />
          </div>
          <Chosen facts={facts} />
        </>
      )}
    </Shown>
  );
}

/** Opens the traces of this rank and of a median one, and shows both on one axis. */
function Timelines(props: { facts: StepFacts }) {
  const { facts } = props;
  const source = useSource();
  const [problem, setProblem] = useState("");
  const [working, setWorking] = useState(false);
  if (!source.served) return null;
  const open = async () => {
    setProblem("");
    setWorking(true);
    try {
      const pair = await source.info<{ base: number; new: number }>("ranks/pair", { rank: facts.rank });
      await lookAgain();
      go("compare", {
        trace: String(pair.new),
        base: String(pair.base),
        new: String(pair.new),
        step: String(facts.step),
      });
    } catch (error) {
      setProblem(words(error));
    }
    setWorking(false);
  };
  return (
    <div class="ranks-open">
      <Button disabled={working} onClick={open} title={facts.source || undefined}>
        {working ? "Opening…" : "Timelines of this and a median rank"}
      </Button>
      {problem && <Problem>{problem}</Problem>}
    </div>
  );
}

function Collectives(props: { facts: StepFacts }) {
  const { collectives } = props.facts;
  const table = useMemo(
    () =>
      made({
        name: coded(collectives.map(({ name }) => name)),
        group: coded(collectives.map(({ group }) => group)),
        ranks: collectives.map(({ ranks }) => ranks),
        bytes: collectives.map(({ bytes }) => bytes),
        late_ns: collectives.map(({ late_ns }) => late_ns),
        last_rank: collectives.map(({ last_rank }) => last_rank),
        last_ns: collectives.map(({ last_ns }) => last_ns),
      }),
    [collectives],
  );
  if (collectives.length === 0)
    return <Nothing>No collective of this step was recorded by several ranks.</Nothing>;
  const at = (row: number) => collectives[row];
  return (
    <section aria-label="Collectives">
      <Table
        table={table}
        id="collectives"
        columns={[
          { name: "name", title: "Collective", width: [8, 2] },
          { name: "group", title: "Group", width: [5, 1] },
          { name: "ranks", title: "Ranks", width: 5 },
          { name: "bytes", title: "Size", width: 6, cell: (row) => units.bytes(at(row)?.bytes) },
          {
            name: "late_ns",
            title: "Late",
            width: [8, 1],
            bar: true,
            cell: (row) => units.time(at(row)?.late_ns),
          },
          { name: "last_rank", title: "Last rank", width: 7 },
          { name: "last_ns", title: "Last late", cell: (row) => units.time(at(row)?.last_ns) },
        ]}
        order=""
        height="16rem"
        onRow={(row) => change({ collective: String(at(row)?.collective) })}
        selected={(row) => at(row)?.collective === chosenOf(props.facts)?.collective}
      />
    </section>
  );
}

function coded(texts: readonly string[]) {
  return { codes: texts.map((_, row) => row), texts };
}

/** The collective that is chosen or, without one, that to which somebody came latest. */
function chosenOf(facts: StepFacts) {
  const wanted = route.value.query["collective"];
  return (
    facts.collectives.find(({ collective }) => String(collective) === wanted) ??
    [...facts.collectives].sort((one, other) => other.last_ns - one.last_ns)[0]
  );
}

function Chosen(props: { facts: StepFacts }) {
  const one = chosenOf(props.facts);
  if (!one) return null;
  const title = `${one.name} of group ${one.group}, step ${props.facts.step}`;
  return <Arrivals collective={one.collective} title={title} rank={props.facts.rank} />;
}
