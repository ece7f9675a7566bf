/** A step of each trace, one above the other on one axis of time. */

import { useState } from "preact/hooks";
import { useJson } from "../parts/answer";
import { useSized } from "../parts/lengths";
import { address } from "../router";
import { plain } from "../timeline/names";
import { ticks } from "../timeline/ticks";
import * as units from "../units";
import type { About, TypicalStep } from "./compare";

const LANE = 26;
const GAP = 6;
/** Room for the label of a tick. */
const LABEL = 40;
const LEAST_PIXELS = 0.4;
const COLORS: Readonly<Record<string, string>> = {
  backward: "var(--backward)",
  user_annotation: "var(--annotation)",
  runtime: "var(--runtime)",
};

export function Steps(props: { about: About; query: Record<string, string | undefined> }) {
  const [base, other] = useJson<readonly TypicalStep[]>("compare/steps", props.query).value ?? [];
  if (!base || !other || base.step === null || other.step === null) return null;
  return <Drawn about={props.about} base={base} other={other} />;
}

function Drawn(props: { about: About; base: TypicalStep; other: TypicalStep }) {
  const { about, base, other } = props;
  const [width, setWidth] = useState(0);
  const around = useSized<HTMLDivElement>((element) => setWidth(element.clientWidth));
  const whole = Math.max(base.duration_ns, other.duration_ns, 1);
  const lanes = [
    { title: "base", step: base, trace: about.base },
    { title: "new", step: other, trace: about.new },
  ];
  return (
    <section class="card cmp-steps" aria-label="A step of each">
      <h2>A step of each, of the lower quartile of lengths</h2>
      <div class="cmp-lanes" ref={around}>
        {lanes.map(({ title, step, trace }) => (
          <div key={title} class="cmp-lane">
            <span class="muted">
              {title}, step {step.step}: <strong>{units.time(step.duration_ns)}</strong>
              {step.left_out > 0 && ` (${units.count(step.left_out)} short operators are not drawn)`}
            </span>
            <svg
              width={width}
              height={LANE}
              role="img"
              aria-label={`${title}: ${step.spans.length} operators`}
            >
              <rect class="cmp-step" x={0} y={0} width={(width * step.duration_ns) / whole} height={LANE} />
              {step.spans.map((one) => {
                const size = (width * one.duration_ns) / whole;
                if (size < LEAST_PIXELS) return null;
                const box = (
                  <rect
                    x={(width * one.start_ns) / whole}
                    y={GAP / 2}
                    width={Math.max(size - 0.3, 0.5)}
                    height={LANE - GAP}
                    style={{ fill: COLORS[one.kind] ?? "var(--operator)" }}
                  >
                    <title>
                      {`${plain(one.name)} ${units.time(one.duration_ns)}${one.module ? ` in ${plain(one.module)}` : ""}`}
                    </title>
                  </rect>
                );
                return about.traces.length > 0 ? (
                  <a
                    key={one.span}
                    href={address("timeline", {
                      trace: String(trace),
                      part: undefined,
                      span: String(one.span),
                    })}
                    tabIndex={-1}
                  >
                    {box}
                  </a>
                ) : (
                  box
                );
              })}
            </svg>
          </div>
        ))}
        <svg class="cmp-axis" width={width} height={16} aria-hidden="true">
          {ticks({ start: 0, end: whole }, width)
            .major.filter((tick) => (width * tick.time) / whole < width - LABEL)
            .map((tick) => (
              <text key={tick.time} x={(width * tick.time) / whole} y={12}>
                {tick.label}
              </text>
            ))}
        </svg>
      </div>
    </section>
  );
}
