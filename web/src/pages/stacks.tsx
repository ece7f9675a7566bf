/** Flame graphs of the Python stacks: where time went, on the host and on devices, and where memory was allocated. */

import { useMemo } from "preact/hooks";
import { Nothing, Shown, useColumns, useJson, useSource } from "../parts/answer";
import { Button } from "../parts/button";
import { Choice, Select } from "../parts/choice";
import { change, route } from "../router";
import type { Columns } from "../source/source";
import { Flame } from "../stacks/flame";
import { FlameView } from "../stacks/flame-view";
import { HideTorch } from "../stacks/hide-torch";
import { Operators } from "../stacks/operators";
import * as units from "../units";
import "../stacks/stacks.css";

interface Measure {
  by: string;
  unit: string;
  /** What weighs in all and, after it, in each process. */
  total: number[];
  /** The part of it that has a stack. */
  known: number[];
}

interface Choices {
  stacks: number;
  /** Whether there are frames of torch, and of the program. */
  library: boolean;
  own: boolean;
  measures: Measure[];
  processes: string[];
}

const MEASURES: Readonly<Record<string, { title: string; none: string; of: string }>> = {
  cpu: {
    title: "Host time",
    none: "No operators have a stack.",
    of: "the time of operators, ranges and the Python between them",
  },
  device: {
    title: "Device time",
    none: "No device work has a stack: record a device with with_stack=True.",
    of: "the device time launched from the host",
  },
  bytes: {
    title: "Allocated",
    none: "No allocations have a stack: use profile_memory=True and with_stack=True.",
    of: "the memory allocated",
  },
};

const ORDERS = [
  ["callees", "Flame graph", "From the program down: each frame in the one that called it"],
  ["callers", "Callers", "From where it was spent up: each frame in the one that it called"],
] as const;

export function Stacks() {
  const choices = useJson<Choices>("flame_choices");
  return (
    <Shown answer={choices}>
      {(value) =>
        value.measures.some((measure) => (measure.known[0] ?? 0) > 0) ? (
          <Graph choices={value} />
        ) : (
          <>
            <header class="title">
              <h1>Stacks</h1>
            </header>
            <Nothing>
              {value.stacks > 0 ? (
                "Stacks were recorded, but nothing was spent in any of them."
              ) : (
                <>
                  No Python stacks were recorded. Record with <code>with_stack=True</code>; with{" "}
                  <code>kinetoscope run</code> they are recorded unless you say <code>--no-stack</code>.
                </>
              )}
            </Nothing>
          </>
        )
      }
    </Shown>
  );
}

function Graph(props: { choices: Choices }) {
  const { choices } = props;
  const source = useSource();
  const asked = route.value.query;
  const process = Number(asked["process"] ?? -1);
  const at = process >= 0 && process < choices.processes.length ? process + 1 : 0;
  const measure =
    choices.measures.find((one) => one.by === asked["by"] && (one.known[at] ?? 0) > 0) ??
    choices.measures.find((one) => (one.known[at] ?? 0) > 0) ??
    choices.measures[0];
  const order = asked["order"] === "callers" ? "callers" : "callees";
  const hide = choices.library && choices.own && asked["library"] !== "show";
  const query = {
    by: measure?.by,
    order,
    library: hide ? "hide" : undefined,
    process: at > 0 ? at - 1 : undefined,
  };
  const can = (changed: Record<string, string | number | undefined>) =>
    source.has("flame", { ...query, ...changed });
  const answer = useColumns("flame", query);
  const known = measure?.known[at] ?? 0;
  const total = measure?.total[at] ?? 0;
  const shown = (value: number) => units.shown(value, measure?.unit ?? "");
  const words = MEASURES[measure?.by ?? ""];
  const processes = choices.processes.filter((_, row) => can({ process: row }));

  return (
    <>
      <header class="title stacks-title">
        <h1>Stacks</h1>
        <div class="choice" role="group" aria-label="Metric">
          {choices.measures.map((one) => {
            const there = (one.known[at] ?? 0) > 0 && can({ by: one.by });
            return (
              <Button
                key={one.by}
                aria-pressed={one === measure}
                disabled={!there}
                title={there ? undefined : MEASURES[one.by]?.none}
                onClick={() => change({ by: one.by })}
              >
                {MEASURES[one.by]?.title ?? one.by}
              </Button>
            );
          })}
        </div>
        <Choice
          label="Direction"
          options={ORDERS.filter(([one]) => can({ order: one }))}
          chosen={order}
          onChoice={(one) => change({ order: one, at: undefined, zoom: undefined })}
        />
        {choices.library && choices.own && can({ library: hide ? undefined : "hide" }) && (
          <HideTorch hide={hide} />
        )}
        {processes.length > 0 && (
          <Select
            label="Process"
            chosen={at > 0 ? String(at - 1) : ""}
            options={[
              ["", "all processes"],
              ...choices.processes.map((label, row) => [String(row), label.slice(0, 200)] as const),
            ]}
            onChoice={(row) => change({ process: row || undefined })}
          />
        )}
        <div class="tools about" title="The rest ran where no stack was recorded">
          {shown(known)}
          {known >= 0.9995 * total
            ? `, all of ${words?.of ?? ""}`
            : ` of ${shown(total)} (${units.percent((100 * known) / total)}) has a stack`}
        </div>
      </header>
      <Shown answer={answer}>
        {(table) => <Drawn table={table} query={query} title={words?.title ?? ""} />}
      </Shown>
    </>
  );
}

function Drawn(props: { table: Columns; query: Record<string, string | number | undefined>; title: string }) {
  const callers = props.query["order"] === "callers";
  const flame = useMemo(() => new Flame(props.table, callers), [props.table, callers]);
  return (
    <>
      <FlameView flame={flame} title={props.title} />
      <Operators flame={flame} query={props.query} title={props.title} />
    </>
  );
}
