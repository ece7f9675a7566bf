/** How long the calls of one name took: bars on a logarithmic axis, each of which can be chosen. */

import { useState } from "preact/hooks";
import { Button } from "../parts/button";
import { useWidth } from "../parts/lengths";
import * as units from "../units";
import { type Bar, bars, type Durations, described, marks, nameOf, place } from "./bars";

const HEIGHT = 92;
const AXIS = 18;
const TOP = 14;
const LABEL_ROOM = 58;
const WORD_ROOM = 46;

export function Histogram(props: {
  durations: Durations;
  chosen: string | undefined;
  onBar: (bar: Bar | undefined) => void;
}) {
  const { durations, chosen, onBar } = props;
  const [frame, measured] = useWidth<HTMLDivElement>();
  const width = Math.max(160, measured);
  const found = bars(durations);
  const filled = found.filter((bar) => bar.count > 0);
  const current = filled.find((bar) => nameOf(bar) === chosen);
  const [pointed, setPointed] = useState<Bar | undefined>();
  const shown = pointed ?? current;
  const ground = TOP + HEIGHT;
  const x = (share: number) => share * (width - 2) + 1;
  // One call, or all of one length: a bar in the middle.
  const wide = (bar: Bar) => (found.length === 1 ? 24 : Math.max(2, x(bar.right) - x(bar.left) - 1));
  const left = (bar: Bar) => (found.length === 1 ? x(0.5) - 12 : x(bar.left));
  const under = (event: MouseEvent) => {
    const at = event.clientX - (event.currentTarget as HTMLElement).getBoundingClientRect().left;
    return filled.find((bar) => at >= left(bar) && at <= left(bar) + wide(bar) + 1);
  };
  const onKey = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape" && current) {
      event.stopPropagation();
      onBar(undefined);
    }
    if (!by) return;
    event.preventDefault();
    const at = current ? filled.indexOf(current) + by : by > 0 ? 0 : filled.length - 1;
    onBar(filled[at] ?? current);
  };
  const labels =
    found.length === 1
      ? [{ at: 0.5, text: units.time(durations.min_ns) }]
      : marks(durations, LABEL_ROOM / width);
  return (
    <div class="op-histogram" ref={frame}>
      <p class="muted small" aria-live="polite">
        {shown
          ? `${described(shown)} · ${units.percent((100 * shown.count) / Math.max(1, durations.calls))} of them`
          : "Select a bar to list its calls"}
        {current && (
          <Button class="plain" onClick={() => onBar(undefined)}>
            All calls
          </Button>
        )}
      </p>
      <div
        role="slider"
        aria-label="Durations of the calls; select a bar with the arrow keys"
        aria-valuenow={current ? filled.indexOf(current) + 1 : 0}
        aria-valuemin={0}
        aria-valuemax={filled.length}
        aria-valuetext={current ? described(current) : "no bar selected"}
        tabIndex={0}
        onKeyDown={onKey}
        onPointerMove={(event) => setPointed(under(event))}
        onPointerLeave={() => setPointed(undefined)}
        onClick={(event) => {
          const bar = under(event);
          onBar(bar === current ? undefined : bar);
        }}
      >
        <svg width={width} height={ground + AXIS} aria-hidden="true">
          <path d={`M0 ${ground + 0.5}H${width}`} />
          {pointed && <rect class="op-pointed" x={left(pointed)} width={wide(pointed) + 1} height={ground} />}
          {filled.map((bar) => {
            const height = Math.max(1.5, bar.height * HEIGHT);
            return (
              <rect
                key={bar.low}
                class={bar === current ? "op-chosen" : undefined}
                x={left(bar)}
                y={ground - height}
                width={wide(bar)}
                height={height}
              />
            );
          })}
          {lines(durations, width).map((line) => (
            <g key={line.text}>
              <title>{line.title}</title>
              <path class="op-line" d={`M${line.x} 2V${ground}`} />
              {line.side !== 0 && (
                <text x={line.x + 3 * line.side} y={10} text-anchor={line.side < 0 ? "end" : "start"}>
                  {line.text}
                </text>
              )}
            </g>
          ))}
          {labels.map((mark) => (
            <text
              key={mark.text}
              x={x(mark.at)}
              y={ground + 13}
              text-anchor={mark.at < 0.06 ? "start" : mark.at > 0.94 ? "end" : "middle"}
            >
              {mark.text}
            </text>
          ))}
        </svg>
      </div>
    </div>
  );
}

/** The lines of the median and of the longest twentieth, and on which side of them their words have room: 0 for none. */
function lines(durations: Durations, width: number) {
  const { median_ns, p95_ns } = durations;
  if (median_ns === null || p95_ns === null || durations.counts.length < 3) return [];
  const at = (ns: number) => place(durations, ns) * (width - 2) + 1;
  const [median, most] = [at(median_ns), at(p95_ns)];
  const before = median > WORD_ROOM;
  const after = width - most > WORD_ROOM;
  const between = most - median;
  const side = before ? -1 : between > WORD_ROOM ? 1 : 0;
  const free = between > WORD_ROOM * (side > 0 ? 2 : 1);
  return [
    { text: "median", x: median, side, title: `median: ${units.time(median_ns)}` },
    {
      text: "p95",
      x: most,
      side: after ? 1 : free ? -1 : 0,
      title: `95th percentile: ${units.time(p95_ns)}`,
    },
  ];
}
