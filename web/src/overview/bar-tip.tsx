/** The tooltip of a bar of the steps: its time, its parts, and the part outside of all spans. */

import * as units from "../units";
import { type Bar, barTitle, onHost, PARTS, partTitle, placeTitle } from "./steps";

export function BarTip(props: { bar: Bar }) {
  const { bar } = props;
  const { steps, duration } = bar;
  const places = [...new Set(steps.map(placeTitle))];
  return (
    <>
      <div class="ov-tip-head">
        <strong>{barTitle(bar)}</strong>
        <strong>{units.time(duration)}</strong>
      </div>
      <div class="ov-tip-head muted">
        <span>{places.length === 1 ? places[0] : `${places.length} devices`}</span>
        {steps.length > 1 && (
          <span>
            mean of {steps.length} · {units.time(bar.least)} to {units.time(bar.most)}
          </span>
        )}
      </div>
      <dl>
        {partsOf(bar).map(({ part, title, time }) => (
          <div key={title}>
            <dt>
              <span class="swatch" style={{ background: part.color }} />
              {title}
            </dt>
            <dd>{units.time(time)}</dd>
            <dd>{units.percent((100 * time) / duration)}</dd>
          </div>
        ))}
      </dl>
      {bar.unrecorded > duration * 0.001 && (
        <p class="muted">{units.time(bar.unrecorded)} outside of operators and calls: Python, or waiting</p>
      )}
    </>
  );
}

/** The same in one sentence. */
export function sentence(bar: Bar): string {
  const parts = partsOf(bar).map(({ title, time }) => `${title} ${units.time(time)}`);
  return `${barTitle(bar)}: ${units.time(bar.duration)}. ${parts.join(", ")}.`;
}

/** The parts that a bar has something of. */
export function partsOf(bar: Bar) {
  const host = onHost(bar.steps);
  return PARTS.map((part, index) => ({
    part,
    title: partTitle(part, host),
    time: bar.parts[index] ?? 0,
  })).filter(({ time }) => time > 0);
}
