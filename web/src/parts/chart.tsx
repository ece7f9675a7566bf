/**
 * Bytes over time: layers on top of each other, and lines. Values hold until the next one. Drawn by uPlot.
 *
 * The colors are names of the theme. The chart takes the width that there is and the height it is given, so nothing moves
 * when its values come. `cursor` and `marks` are drawn where the page says; the page decides what a click, a drag or a key
 * on the chart does.
 */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import "./chart.css";
import { moment, ticks } from "../timeline/ticks";
import { bytes } from "../units";
import { byteMarks, highestNear, rowAt, stacked } from "./chart-scale";
import { useSized } from "./lengths";
import { color, theme } from "./theme";

export interface Layer {
  label: string;
  /** A color of the theme, without the dashes. */
  color: string;
  values: ArrayLike<number | null>;
}

export interface ChartProps {
  /** What it shows, for those who cannot see it. */
  label: string;
  /** Rising times in ns. */
  time: ArrayLike<number>;
  /** Bytes, from the bottom up; each is drawn on top of those before. */
  layers: readonly Layer[];
  /** Drawn dashed over the layers. */
  lines: readonly Layer[];
  /** A CSS length such as `16rem`. */
  height: string;
  /** The selected time. */
  cursor: number;
  /** Times that are marked with a word. */
  marks: readonly { time: number; label: string }[];
  /** What the selected time reads as, for those who cannot see it. */
  description: string;
  /** Called with the row whose values hold under the pointer, null when it is gone. */
  onHover: (row: number | null) => void;
  /** Called with the time that was clicked or reached with the arrow keys: near a peak, that of the peak. */
  onCursor: (time: number) => void;
  /** Called with the time range that was dragged over. */
  onRange?: (start: number, end: number) => void;
}

/** Pixels around the pointer in which the highest value is meant. */
const NEAR = 4;
/** Pixels after which a press becomes a drag. */
const DRAGS = 6;
/** CSS pixels between two marks of an axis, at least. */
const APART = { x: 110, y: 40 };
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const STEPPED = uPlot.paths.stepped?.({ align: 1 });

export function Chart(props: ChartProps) {
  const { time, layers, lines, cursor, marks } = props;
  const [size, setSize] = useState({ width: 0, height: 0 });
  const host = useSized<HTMLDivElement>((element) =>
    setSize({ width: element.clientWidth, height: element.clientHeight }),
  );
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const painted = theme.value;
  const stack = useMemo(
    () =>
      stacked(
        layers.map((layer) => layer.values),
        time.length,
      ),
    [time, layers],
  );

  useEffect(() => {
    if (!host.current || size.width <= 0) return;
    const made = new uPlot(options(latest, size, stack), dataOf(latest.current, stack), host.current);
    plot.current = made;
    return () => {
      plot.current = null;
      made.destroy();
    };
  }, [painted, size, time, stack, lines]);
  useEffect(() => plot.current?.redraw(false), [cursor, marks]);

  const onKeyDown = (event: KeyboardEvent) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || time.length === 0) return;
    event.preventDefault();
    const row = rowAt(time, cursor) + by * (event.shiftKey ? 20 : 1);
    props.onCursor(Math.round(time[Math.max(0, Math.min(time.length - 1, row))] ?? 0));
  };

  return (
    <div
      role="slider"
      aria-label={props.label}
      aria-valuemin={time[0] ?? 0}
      aria-valuemax={time[time.length - 1] ?? 0}
      aria-valuenow={cursor}
      aria-valuetext={props.description}
      tabIndex={0}
      onKeyDown={onKeyDown}
      class="chart"
      ref={host}
      style={{ height: props.height }}
    />
  );
}

/** Times, then the layers from the top down, as each is filled to zero and covers those above; then the lines. */
function dataOf({ time, lines }: ChartProps, stack: readonly Float64Array[]): uPlot.AlignedData {
  const known = (value: number | null) => (value === null || Number.isNaN(value) ? null : value);
  return [
    Array.from(time),
    ...[...stack].reverse(),
    ...lines.map((line) => Array.from(line.values, known)),
  ] as uPlot.AlignedData;
}

function options(
  latest: { readonly current: ChartProps },
  { width, height }: { width: number; height: number },
  stack: readonly Float64Array[],
): uPlot.Options {
  const { time, layers, lines, onRange } = latest.current;
  const top = stack.at(-1) ?? [];
  const start = time[0] ?? 0;
  const end = Math.max(time[time.length - 1] ?? 0, start + 1);
  let highest = 0;
  for (const values of [top, ...lines.map((line) => line.values)])
    for (let row = 0; row < values.length; row++) highest = Math.max(highest, values[row] || 0);
  const step = { points: { show: false }, ...(STEPPED && { paths: STEPPED }) };
  const axis = {
    font: FONT,
    stroke: color("muted"),
    grid: { stroke: color("line"), width: 1 },
    ticks: { show: false },
  };
  const along = (plot: uPlot) => ticks({ start, end }, plot.bbox.width / devicePixelRatio, APART.x);
  const onClick = (plot: uPlot, x: number) => {
    const at = plot.posToVal(x, "x");
    const around = plot.posToVal(NEAR, "x") - plot.posToVal(0, "x");
    const found = time[highestNear(time, top, at, around)] ?? at;
    latest.current.onCursor(Math.round(Math.abs(found - at) <= around ? found : at));
  };
  return {
    width,
    height,
    padding: [10, 14, 0, 0],
    legend: { show: false },
    scales: { x: { time: false, range: [start, end] }, y: { range: [0, highest * 1.04 || 1] } },
    series: [
      {},
      // The outline keeps in sight what is thinner than a pixel.
      ...[...layers]
        .reverse()
        .map((layer) => ({ ...step, width: 1, stroke: color(layer.color), fill: color(layer.color) })),
      ...lines.map((line) => ({ ...step, width: 1, dash: [5, 3], stroke: color(line.color) })),
    ],
    axes: [
      {
        ...axis,
        size: 26,
        gap: 6,
        splits: (plot) => along(plot).major.map((mark) => mark.time),
        values: (plot) => along(plot).major.map((mark) => mark.label),
      },
      {
        ...axis,
        size: 62,
        gap: 6,
        splits: (plot, _axis, _low, high) =>
          byteMarks(high, Math.max(2, Math.floor(plot.bbox.height / devicePixelRatio / APART.y))),
        values: (_plot, splits) => splits.map((value) => bytes(value)),
      },
    ],
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: Boolean(onRange), y: false, dist: DRAGS, setScale: false },
    },
    hooks: {
      setCursor: [
        (plot) => {
          const { left = -1 } = plot.cursor;
          latest.current.onHover(left < 0 || !time.length ? null : rowAt(time, plot.posToVal(left, "x")));
        },
      ],
      setSelect: [
        (plot) => {
          const { left, width } = plot.select;
          if (width > 0) {
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            latest.current.onRange?.(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
          }
        },
      ],
      // After a drag uPlot lets no click through.
      ready: [
        (plot) => plot.over.addEventListener("click", (event) => time.length && onClick(plot, event.offsetX)),
      ],
      draw: [(plot) => paintOver(plot, latest.current, along(plot))],
    },
  };
}

/** The base of the times, the marks and the selected time. */
function paintOver(
  plot: uPlot,
  { marks, cursor }: ChartProps,
  { base, step }: ReturnType<typeof ticks>,
): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  const [top, bottom] = [bbox.top, bbox.top + bbox.height];
  const upright = (time: number, stroke: string, width: number, dash: number[]): number | undefined => {
    const x = Math.round(plot.valToPos(time, "x", true));
    if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) return;
    ctx.beginPath();
    ctx.strokeStyle = color(stroke);
    ctx.lineWidth = width * ratio;
    ctx.setLineDash(dash.map((length) => length * ratio));
    ctx.moveTo(x, top);
    ctx.lineTo(x, bottom);
    ctx.stroke();
    return x;
  };
  ctx.save();
  ctx.font = FONT.replace("12px", `${12 * ratio}px`);
  ctx.textBaseline = "top";
  if (base !== null) {
    ctx.textAlign = "left";
    ctx.fillStyle = color("muted");
    ctx.fillText(moment(base, step), 0, bottom + 8 * ratio);
  }
  for (const mark of marks) {
    const x = upright(mark.time, "muted", 1, [3, 3]);
    if (x === undefined) continue;
    ctx.setLineDash([]);
    const leftward = x + ctx.measureText(mark.label).width + 8 * ratio > bbox.left + bbox.width;
    ctx.textAlign = leftward ? "right" : "left";
    const at = x + (leftward ? -5 : 5) * ratio;
    // A rim in the color of the ground keeps the word readable over the layers.
    ctx.strokeStyle = color("surface");
    ctx.lineWidth = 3 * ratio;
    ctx.strokeText(mark.label, at, top + ratio);
    ctx.fillStyle = color("text");
    ctx.fillText(mark.label, at, top + ratio);
  }
  upright(cursor, "text", 2, []);
  ctx.restore();
}
