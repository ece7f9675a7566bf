/** Beside the table: all about the row that is chosen in it. */

import { Nothing, Shown, useJson, useSource } from "../parts/answer";
import { Button } from "../parts/button";
import { FrameCode } from "../parts/source-text";
import { address, change, route } from "../router";
import type { Query } from "../source/source";
import * as units from "../units";
import { barOf, bars, type Durations, nameOf } from "./bars";
import { Calls } from "./calls";
import type { Fact } from "./find";
import { Histogram } from "./histogram";
import { frameLine, lineName } from "./kinds";
import { type Chosen, type Part, Parts } from "./parts";

const MOST_ASKED = 8000;

export function Panel(props: {
  name: string;
  kind: string;
  /** What it is called beside the name. */
  what: string;
  /** The place in common, where rows are grouped by one. */
  place?: { by: string; value: string | null } | undefined;
  facts: readonly Fact[];
}) {
  const { name, kind, place } = props;
  const source = useSource();
  const whole: Query = { name, kind };
  // Options that are left out say that there is no place, which is what the server takes it for.
  const asked: Query = place ? { ...whole, by: place.by, place: place.value ?? undefined } : whole;
  // An address has an end: a name as long as a page does not fit in it.
  const askable = name.length + (place?.value?.length ?? 0) <= MOST_ASKED;
  const stack = place?.by === "line" || place?.by === "stack" ? (place.value?.split(" ← ") ?? []) : [];
  const has = (path: string) => askable && source.has(path, asked);
  const about = useJson<Chosen>(has("chosen") ? "chosen" : null, asked);
  const durations = useJson<Durations>(has("histogram") ? "histogram" : null, asked);
  const found = durations.value ? bars(durations.value) : [];
  const bar = barOf(found, route.value.query["bar"]);
  return (
    <aside class="panel op-panel" aria-label={`About ${name.slice(0, 100)}`}>
      <header>
        <h2 class="clamp" title={name.slice(0, 2000)}>
          {lineName(kind, name)}
        </h2>
        <span class="muted">{props.what}</span>
        <Button class="plain" aria-label="Close" title="Close (Esc)" onClick={close}>
          ✕
        </Button>
      </header>
      <div class="op-inside">
        {place && (
          <p class="op-place" title={place.value?.slice(0, 2000)}>
            {place.value === null
              ? "not recorded"
              : (stack.length ? stack.map(frameLine) : [place.value]).map((frame, index) => (
                  <span key={index} class="name">
                    {frame}
                  </span>
                ))}
          </p>
        )}
        <FrameCode stack={stack.slice(0, 1)} index={0} />
        <dl class="op-facts">
          {props.facts.map((fact) => (
            <div key={fact.label} title={fact.title}>
              <dt>{fact.label}</dt>
              <dd>{fact.value}</dd>
            </div>
          ))}
        </dl>
        {has("chosen") && (
          <div class="op-parts">
            <Shown answer={about}>{(value) => <Parts of={value} to={leadsTo} />}</Shown>
          </div>
        )}
        {has("histogram") && (
          <>
            <h3>Call durations</h3>
            <div class="op-room">
              <Shown answer={durations}>
                {(value) => (
                  <Histogram
                    durations={value}
                    chosen={bar && nameOf(bar)}
                    onBar={(next) => change({ bar: next && nameOf(next) }, true)}
                  />
                )}
              </Shown>
            </div>
          </>
        )}
        <h3>{bar ? `Calls of ${units.time(bar.low)} to ${units.time(bar.high)}` : "Calls"}</h3>
        {askable ? (
          <Calls asked={asked} bar={bar} />
        ) : (
          <Nothing>The name is too long to request its calls.</Nothing>
        )}
      </div>
    </aside>
  );
}

/** The page that tells more of a part, if any. */
function leadsTo({ name, kind }: Part): string | undefined {
  if (name === undefined || kind === undefined) return;
  if (kind === "kernel") return address("kernels", { name });
  return kind.startsWith("mem")
    ? address("kernels", { tab: "copies" })
    : address("operators", { name, kind });
}

export const nothingChosen = {
  name: undefined,
  kind: undefined,
  place: undefined,
  bar: undefined,
  part: undefined,
};

export function close(): void {
  change(nothingChosen);
}

/** Esc closes the panel, unless it is meant for a field or a list that is open. */
export function closeOnEscape(): () => void {
  const onKey = (event: KeyboardEvent) => {
    const elsewhere =
      event.target instanceof HTMLInputElement || document.querySelector(":popover-open, dialog[open]");
    if (event.key === "Escape" && !elsewhere) close();
  };
  addEventListener("keydown", onKey);
  return () => removeEventListener("keydown", onKey);
}
