/** A few steps, each as a row with a bar. */

import { useWidth } from "../parts/lengths";
import { address, route } from "../router";
import * as units from "../units";
import { partsOf, sentence } from "./bar-tip";
import { type Bar, barOf, barTitle, placeTitle, rowsTop, type Step } from "./steps";

export function StepRows(props: {
  steps: readonly Step[];
  /** The times that are compared: a bar far beyond them is cut. */
  times: readonly number[];
  onPoint: (bar: Bar | null, event?: MouseEvent) => void;
}) {
  const several = new Set(props.steps.map(placeTitle)).size > 1;
  const [list, width] = useWidth<HTMLOListElement>();
  const track = width - (several ? 270 : 200);
  const bars = props.steps.map((step) => ({ ...barOf([step]), place: placeTitle(step) }));
  const top = rowsTop(bars, props.times);
  const oneStep = new Set(props.steps.map((step) => step.number)).size === 1;
  return (
    <ol ref={list} class={several ? "ov-rows wide" : "ov-rows"}>
      {bars.map((bar, index) => {
        const title = [!(several && oneStep) && barTitle(bar), several && bar.place]
          .filter(Boolean)
          .join(" · ");
        return (
          <li key={index}>
            <a
              href={leadsTo(bar)}
              aria-label={`${title}: ${sentence(bar)}`}
              onMouseMove={(event) => props.onPoint(bar, event)}
              onMouseLeave={() => props.onPoint(null)}
            >
              <span class="muted name">{title}</span>
              <Stacked bar={bar} top={top} track={track} />
              <strong>{units.time(bar.duration)}</strong>
            </a>
          </li>
        );
      })}
    </ol>
  );
}

/** A step is compared with the others; what is no step is shown on the timeline. */
function leadsTo(bar: Bar): string {
  const number = bar.steps[0]?.number ?? null;
  return number === null
    ? address("timeline", { start: String(bar.start), end: String(bar.end) })
    : address("overview", { ...route.value.query, step: String(number) });
}

/** The parts of a step one behind the other, up to where the axis ends. */
function Stacked(props: { bar: Bar; top: number; track: number }) {
  const { bar, top, track } = props;
  const end = Math.min(bar.duration, top);
  let from = 0;
  return (
    <span
      class={bar.duration > top ? "ov-stacked cut" : "ov-stacked"}
      style={{ width: `${(100 * end) / top}%` }}
    >
      {partsOf(bar).map(({ part, title, time }) => {
        const seen = Math.max(Math.min(time, end - from), 0);
        from += time;
        return (
          <span
            key={title}
            class={part.column}
            style={{ width: `${(100 * seen) / end}%`, background: part.color }}
          >
            {fitting([`${title} ${units.time(time)}`, units.time(time)], (track * seen) / top)}
          </span>
        );
      })}
    </span>
  );
}

/** The first of some texts that a place of a width has room for. */
function fitting(texts: readonly string[], pixels: number): string {
  return texts.find((text) => text.length * 6.6 + 10 <= pixels) ?? "";
}
