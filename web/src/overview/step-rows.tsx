/** A few steps, each as a row with a bar. */

import { address } from "../router";
import * as units from "../units";
import { type Bar, barOf, barTitle, PARTS, placeTitle, type Step } from "./steps";
import { partTitle, sentence } from "./told";

export function StepRows(props: {
  steps: readonly Step[];
  onPoint: (bar: Bar | null, event?: MouseEvent) => void;
}) {
  const bars = props.steps.map((step) => barOf([step]));
  const longest = Math.max(1, ...bars.map((bar) => bar.duration));
  const several = new Set(props.steps.map(placeTitle)).size > 1;
  const oneStep = new Set(props.steps.map((step) => step.number)).size === 1;
  return (
    <ol class={several && !oneStep ? "ov-rows wide" : "ov-rows"}>
      {bars.map((bar, index) => {
        const step = props.steps[index];
        const title = step
          ? [several && oneStep ? "" : barTitle(bar), several ? placeTitle(step) : ""]
              .filter(Boolean)
              .join(" · ")
          : "";
        const onHost = step?.device === "cpu";
        return (
          <li key={index}>
            <a
              href={address("timeline", { start: String(bar.start), end: String(bar.end) })}
              aria-label={`${title}: ${sentence(bar)} Show it on the timeline.`}
              onMouseMove={(event) => props.onPoint(bar, event)}
              onMouseLeave={() => props.onPoint(null)}
            >
              <span class="ov-row-title">{title}</span>
              <span class="ov-row-track">
                <span class="ov-row-bar" style={{ width: `${(100 * bar.duration) / longest}%` }}>
                  {PARTS.map((part, place) => {
                    const share = bar.duration > 0 ? (100 * (bar.parts[place] ?? 0)) / bar.duration : 0;
                    const ofTrack = (share * bar.duration) / longest;
                    return share > 0 ? (
                      <span key={part.column} class={`ov-${part.colour}`} style={{ width: `${share}%` }}>
                        {ofTrack > 22
                          ? `${partTitle(place, onHost)} ${units.time(bar.parts[place])}`
                          : ofTrack > 9
                            ? units.time(bar.parts[place])
                            : ""}
                      </span>
                    ) : null;
                  })}
                </span>
              </span>
              <span class="ov-row-time">{units.time(bar.duration)}</span>
            </a>
          </li>
        );
      })}
    </ol>
  );
}
