/** A few steps, each as a row with a bar. */

import { useWidth } from "../parts/lengths";
import { address } from "../router";
import * as units from "../units";
import { type Bar, barOf, barTitle, placeTitle, type Step } from "./steps";
import { partsOf, sentence } from "./told";

export function StepRows(props: {
  steps: readonly Step[];
  onPoint: (bar: Bar | null, event?: MouseEvent) => void;
}) {
  const several = new Set(props.steps.map(placeTitle)).size > 1;
  const [list, width] = useWidth<HTMLOListElement>();
  const track = width - (several ? 270 : 200);
  const bars = props.steps.map((step) => ({ ...barOf([step]), place: placeTitle(step) }));
  const longest = Math.max(1, ...bars.map((bar) => bar.duration));
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
              href={address("timeline", { start: String(bar.start), end: String(bar.end) })}
              aria-label={`${title}: ${sentence(bar)} Show it on the timeline.`}
              onMouseMove={(event) => props.onPoint(bar, event)}
              onMouseLeave={() => props.onPoint(null)}
            >
              <span class="muted name">{title}</span>
              <span class="ov-stacked" style={{ width: `${(100 * bar.duration) / longest}%` }}>
                {partsOf(bar).map(({ part, title, time }) => (
                  <span
                    key={title}
                    class={part.column}
                    style={{ width: `${(100 * time) / bar.duration}%`, background: part.colour }}
                  >
                    {fitting([`${title} ${units.time(time)}`, units.time(time)], (track * time) / longest)}
                  </span>
                ))}
              </span>
              <strong>{units.time(bar.duration)}</strong>
            </a>
          </li>
        );
      })}
    </ol>
  );
}

/** The first of some texts that a place of a width has room for. */
function fitting(texts: readonly string[], pixels: number): string {
  return texts.find((text) => text.length * 6.6 + 10 <= pixels) ?? "";
}
