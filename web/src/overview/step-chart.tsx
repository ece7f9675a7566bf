/** Many steps: a bar each, split into parts, with the distribution of their times at the same axis. */

import { useMemo, useState } from "preact/hooks";
import { rem, useWidth } from "../parts/lengths";
import { change, go } from "../router";
import * as units from "../units";
import { sentence } from "./bar-tip";
import { axisTop, type Bar, barsOf, counted, marks, PARTS, roundUp, type Step, spread } from "./steps";

/** Lengths in the chart, in the pixels of a page of 14 pixels to the letter. */
const HEIGHT = 236;
const LEFT = 62;
const TOP = 16;
const BOTTOM = 24;
const SPREAD = 92;
const LEAST_PITCH = 3;
const WIDEST_BAR = 40;
const PLOT = HEIGHT - TOP - BOTTOM;
const BINS = 60;

export function StepChart(props: {
  steps: readonly Step[];
  /** The times of which the distribution is shown. */
  times: readonly number[];
  onPoint: (bar: Bar | null, event?: MouseEvent) => void;
}) {
  const [element, wide] = useWidth<HTMLDivElement>();
  // On a large screen all is drawn larger, as the text of the page is.
  const scale = rem() / 14;
  const width = wide / scale;
  const [chosen, choose] = useState<number | null>(null);
  const room = Math.max(width - LEFT - SPREAD - 10, 10);
  const bars = useMemo(() => barsOf(props.steps, room / LEAST_PITCH), [props.steps, room]);
  const top = useMemo(() => axisTop(bars), [bars]);
  const pitch = room / Math.max(bars.length, 1);
  // Thin bars touch, so that they read as one shape.
  const thick = Math.min(pitch - (pitch > 9 ? 3 : pitch > 5 ? 1 : 0), WIDEST_BAR);
  const paths = useMemo(() => drawn(bars, top, pitch, thick), [bars, top, pitch, thick]);
  const { mean } = spread(props.times);
  const current = chosen === null ? undefined : bars[chosen];

  const at = (event: MouseEvent): number | null => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / scale - LEFT) / pitch);
    return index >= 0 && index < bars.length ? index : null;
  };
  const point = (index: number | null, event?: MouseEvent) => {
    choose(index);
    props.onPoint(index === null ? null : (bars[index] ?? null), event);
  };
  const open = (bar: Bar | undefined) => {
    const [only, ...others] = bar?.steps ?? [];
    if (only && only.number !== null && !others.length) change({ step: String(only.number) });
    else if (bar) go("timeline", { start: String(bar.start), end: String(bar.end) });
  };
  const onKey = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
    if (step !== undefined) {
      const next = (chosen ?? (step > 0 ? -1 : bars.length)) + step;
      point(Math.min(Math.max(next, 0), bars.length - 1));
    } else if (event.key === "Escape") point(null);
    else if (event.key === "Enter" || event.key === " ") open(current);
    else return;
    event.preventDefault();
  };

  return (
    <div
      class="ov-chart"
      ref={element}
      style={{ height: `${HEIGHT * scale}px` }}
      role="slider"
      aria-label="Steps. Arrows choose one, Enter compares it with the others."
      aria-valuemin={0}
      aria-valuemax={bars.length - 1}
      aria-valuenow={chosen ?? 0}
      aria-valuetext={current ? sentence(current) : "none chosen"}
      tabIndex={0}
      onKeyDown={onKey}
      onBlur={() => point(null)}
      onMouseMove={(event) => point(at(event), event)}
      onMouseLeave={() => point(null)}
      onClick={(event) => open(bars[at(event) ?? -1])}
    >
      {width > 0 && (
        <svg width={wide} height={HEIGHT * scale} viewBox={`0 0 ${width} ${HEIGHT}`} aria-hidden="true">
          {marks(top, PLOT).map((value) => {
            const y = TOP + PLOT * (1 - value / top);
            return (
              <g key={value}>
                <path class="ov-grid" d={`M${LEFT} ${y}H${width - 4}`} />
                <text x={LEFT - 8} y={y + 4} text-anchor="end">
                  {units.time(value)}
                </text>
              </g>
            );
          })}
          <g transform={`translate(${LEFT} ${TOP})`}>
            {PARTS.map((part, index) => (
              <path key={part.column} fill={part.color} d={paths[index]} />
            ))}
            <Ranges bars={bars} top={top} pitch={pitch} />
            <Cut bars={bars} top={top} pitch={pitch} thick={thick} />
            {chosen !== null && (
              <rect class="ov-chosen" x={chosen * pitch} y={0} width={pitch} height={PLOT} />
            )}
            <Numbers bars={bars} pitch={pitch} />
          </g>
          <g transform={`translate(${LEFT + room + 10} ${TOP})`}>
            <Spread times={props.times} top={top} />
            {(bars[0]?.steps.length ?? 0) > 1 && (
              <text x={SPREAD - 4} y={PLOT + 17} text-anchor="end">
                means of {bars[0]?.steps.length}
              </text>
            )}
          </g>
          {props.times.length > 1 && mean <= top && (
            <path class="ov-mean" d={`M${LEFT} ${TOP + PLOT * (1 - mean / top)}H${width - 4}`} />
          )}
        </svg>
      )}
    </div>
  );
}

/** A path for each part, through all bars. */
function drawn(bars: readonly Bar[], top: number, pitch: number, thick: number): string[] {
  const wide = thick.toFixed(2);
  return PARTS.map((_, part) =>
    bars
      .map((bar, index) => {
        const below = bar.parts.slice(0, part).reduce((a, b) => a + b, 0);
        const [low, high] = [y(below, top), y(below + (bar.parts[part] ?? 0), top)];
        const x = (index * pitch + (pitch - thick) / 2).toFixed(2);
        return low === high ? "" : `M${x} ${high}h${wide}V${low}h-${wide}z`;
      })
      .join(""),
  );
}

/** From the mean up to the longest step of each bar that stands for several. */
function Ranges(props: { bars: readonly Bar[]; top: number; pitch: number }) {
  const { bars, top, pitch } = props;
  const lines = bars.map((bar, index) => {
    if (bar.steps.length < 2 || bar.most - bar.duration < top * 0.01) return "";
    const x = ((index + 0.5) * pitch).toFixed(2);
    return `M${x} ${y(bar.duration, top)}V${y(bar.most, top)}`;
  });
  return <path class="ov-range" d={lines.join("")} />;
}

function y(value: number, top: number): string {
  return (PLOT * (1 - Math.min(value / (top || 1), 1))).toFixed(2);
}

/** A gap through bars that reach beyond the axis, and what they come to where there is room to say it. */
function Cut(props: { bars: readonly Bar[]; top: number; pitch: number; thick: number }) {
  const { bars, top, pitch, thick } = props;
  let free = Number.NEGATIVE_INFINITY;
  return (
    <>
      {bars.map((bar, index) => {
        if (bar.duration <= top) return null;
        const middle = (index + 0.5) * pitch;
        const shown = middle >= free;
        if (shown) free = middle + 56;
        const [left, right] = [middle - thick / 2 - 2, middle + thick / 2 + 2];
        const start = index * pitch < 24;
        return (
          <g key={index}>
            <path class="ov-gap" d={`M${left} 15L${right} 11v4L${left} 19z`} />
            {shown && (
              <text x={start ? left : middle} y={-4} text-anchor={start ? "start" : "middle"}>
                {units.time(bar.duration)}
              </text>
            )}
          </g>
        );
      })}
    </>
  );
}

/** The numbers of some steps below their bars, round ones where there are such. */
function Numbers(props: { bars: readonly Bar[]; pitch: number }) {
  const { bars, pitch } = props;
  const numbers = bars.map((bar) => bar.steps[0]?.number ?? null);
  const widest = 20 + 7 * String(numbers[numbers.length - 1] ?? "").length;
  const each = roundUp(widest / pitch);
  const between = each * (bars[0]?.steps.length ?? 1);
  const first = Math.max(
    numbers.findIndex((number) => number !== null && number % between === 0),
    0,
  );
  return (
    <>
      {numbers.map((number, index) =>
        number !== null &&
        index >= first &&
        (index - first) % each === 0 &&
        number !== numbers[index - each] ? (
          <text key={index} x={(index + 0.5) * pitch} y={PLOT + 17} text-anchor="middle">
            {number}
          </text>
        ) : null,
      )}
      <text x={-8} y={PLOT + 17} text-anchor="end">
        step
      </text>
    </>
  );
}

/** How many steps took how long, from the axis to the right. */
function Spread(props: { times: readonly number[]; top: number }) {
  const counts = counted(props.times, props.top, BINS);
  const most = Math.max(1, ...counts);
  const tall = PLOT / BINS;
  const path = counts.map((count, bin) =>
    count
      ? `M0 ${(PLOT - (bin + 1) * tall).toFixed(2)}h${Math.max(1.5, (count / most) * (SPREAD - 12)).toFixed(1)}v${tall.toFixed(2)}H0z`
      : "",
  );
  return <path class="ov-spread" d={path.join("")} />;
}
