/** What is told of a bar of the steps: its time, its parts, and what of it nothing was recorded in. */

import * as units from "../units";
import { type Bar, barTitle, PARTS, placeTitle } from "./steps";

/** What a part is called where it is shown: the host has no CPU to wait for. */
export function partTitle(part: number, onHost: boolean): string {
  const found = PARTS[part];
  return (onHost ? found?.onHost : found?.title) ?? "";
}

export function Told(props: { bar: Bar }) {
  const { bar } = props;
  const [first] = bar.steps;
  const places = new Set(bar.steps.map(placeTitle));
  const onHost = bar.steps.every((step) => step.device === "cpu");
  const several = bar.steps.length > 1;
  return (
    <>
      <div class="ov-told-head">
        <strong>{barTitle(bar)}</strong>
        <strong>{units.time(bar.duration)}</strong>
      </div>
      <div class="ov-told-sub">
        <span>{first && places.size === 1 ? placeTitle(first) : `${places.size} devices`}</span>
        {several && (
          <span>
            mean of {bar.steps.length} · {units.time(bar.least)} to {units.time(bar.most)}
          </span>
        )}
      </div>
      <dl>
        {PARTS.map((part, index) =>
          bar.parts[index] ? (
            <div key={part.column}>
              <dt>
                <span class={`swatch ov-${part.colour}`} />
                {partTitle(index, onHost)}
              </dt>
              <dd>{units.time(bar.parts[index])}</dd>
              <dd>{units.percent((100 * (bar.parts[index] ?? 0)) / bar.duration)}</dd>
            </div>
          ) : null,
        )}
      </dl>
      {bar.unrecorded > bar.duration * 0.001 && (
        <p class="muted">{units.time(bar.unrecorded)} of it between operators and calls: Python, or a wait</p>
      )}
    </>
  );
}

/** The same in one sentence. */
export function sentence(bar: Bar): string {
  const onHost = bar.steps.every((step) => step.device === "cpu");
  const parts = PARTS.map((_, index) => index)
    .filter((index) => bar.parts[index])
    .map((index) => `${partTitle(index, onHost)} ${units.time(bar.parts[index])}`);
  return `${barTitle(bar)}: ${units.time(bar.duration)}. ${parts.join(", ")}.`;
}
