/** A few steps, each as a row with a bar. */

import { address } from "../router";
import * as units from "../units";
import { type Bar, barOf, barTitle, PARTS, placeTitle, type Step } from "./steps";
import { partTitle, sentence } from "./told";
import { useWidth } from "./width";

export function StepRows(props: {
  steps: readonly Step[];
  onPoint: (bar: Bar | null, event?: MouseEvent) => void;
}) {
  const several = new Set(props.steps.map(placeTitle)).size > 1;
  const [list, width] = useWidth<HTMLOListElement>();
  const track = width - (several ? 270 : 200);
  const bars = props.steps.map((step) => barOf([step]));
  const longest = Math.max(1, ...bars.map((bar) => bar.duration));
  const oneStep = new Set(props.steps.map((step) => step.number)).size === 1;
  return (
    <ol ref={list} class={several ? "ov-rows wide" : "ov-rows"}>
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
                        {fitting(
                          [
                            `${partTitle(place, onHost)} ${units.time(bar.parts[place])}`,
                            units.time(bar.parts[place]),
                          ],
                          (track * ofTrack) / 100,
                        )}
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

/** The first of some texts that a place of a width has room for. */
function fitting(texts: readonly string[], pixels: number): string {
  return texts.find((text) => text.length * 6.6 + 10 <= pixels) ?? "";
}
