/**
 * Values over time: layers on top of each other, and lines. Values hold until the next one.
 *
 * The colours are names of the theme. The chart takes the width that there is and the height it is given, so nothing
 * moves when it comes. `cursor` and `marks` are drawn where the page says; what the pointer or the keyboard does on it
 * is told to the page, which decides.
 */

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "./chart.css";
import { highestNear, labels, marks, rowAt, stacked } from "./chart-scale";
import { colour, theme } from "./theme";

export interface Layer {
  label: string;
  /** A colour of the theme, without the dashes. */
  colour: string;
  values: ArrayLike<number | null>;
}

export interface ChartProps {
  /** What it shows, for those who cannot see it. */
  label: string;
  /** Rising times in ns. */
  time: ArrayLike<number>;
  /** From the bottom up; each is drawn on top of those before. */
  layers?: readonly Layer[];
  /** Drawn over the layers, dashed where there are layers. */
  lines?: readonly Layer[];
  /** Of the values, as tables name units. */
  unit: string;
  /** A CSS length such as `16rem`. */
  height: string;
  /** The value the scale reaches at least; 100 for shares. */
  reach?: number;
  /** A time that is marked as chosen. */
  cursor?: number | null;
  /** Times that are marked with a word. */
  marks?: readonly { time: number; label: string }[];
  /** What the chosen time reads as, for those who cannot see it. */
  told?: string;
  /** Called with the row under the pointer, null when it is gone. */
  onHover?: (row: number | null) => void;
  /** Called with the time that was clicked or reached with the arrow keys: near a peak, that of the peak. */
  onCursor?: (time: number) => void;
  /** Called with the stretch of time that was dragged over. */
  onRange?: (start: number, end: number) => void;
}

/** Pixels around the pointer in which the highest value is meant. */
const NEAR = 4;
const FONT = "12px system-ui, sans-serif";

export function Chart(props: ChartProps) {
  const { time, layers = [], lines = [], unit, height } = props;
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  // What uPlot calls back reads the newest of these.
  const latest = useRef(props);
  latest.current = props;
  const painted = theme.value;
  const kind = [...layers, ...lines].map((one) => `${one.label}:${one.colour}`).join("\n");

  useLayoutEffect(() => {
    const element = host.current;
    if (!element) return;
    const made = new uPlot(options(element, latest), data(latest.current), element);
    plot.current = made;
    const watcher = new ResizeObserver(() =>
      made.setSize({ width: element.clientWidth, height: element.clientHeight }),
    );
    watcher.observe(element);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [painted, kind, layers.length, unit, props.onRange === undefined]);

  useEffect(() => plot.current?.setData(data(latest.current)), [time, layers, lines]);
  useEffect(() => plot.current?.redraw(false), [props.cursor, props.marks]);

  const move = (event: KeyboardEvent) => {
    const by = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (!by || !props.onCursor || time.length === 0) return;
    event.preventDefault();
    const row = rowAt(time, props.cursor ?? 0) + by * (event.shiftKey ? 20 : 1);
    props.onCursor(time[Math.max(0, Math.min(time.length - 1, row))] ?? 0);
  };
  if (!props.onCursor)
    return <div class="chart" ref={host} style={{ height }} role="img" aria-label={props.label} />;
  return (
    <div
      class="chart"
      ref={host}
      style={{ height }}
      role="slider"
      aria-label={props.label}
      aria-valuemin={time[0] ?? 0}
      aria-valuemax={time[time.length - 1] ?? 0}
      aria-valuenow={props.cursor ?? 0}
      aria-valuetext={props.told}
      tabIndex={0}
      onKeyDown={move}
    />
  );
}

function data(props: ChartProps): uPlot.AlignedData {
  const { time, layers = [], lines = [] } = props;
  const length = time.length;
  const stack = stacked(
    layers.map((layer) => layer.values),
    length,
  );
  // uPlot fills each line down to zero: the highest comes first, and each one below covers it.
  return [Array.from(time), ...stack.reverse(), ...lines.map((line) => Array.from(line.values))] as never;
}

function options(element: HTMLElement, latest: { current: ChartProps }): uPlot.Options {
  const { layers = [], lines = [], unit, onRange } = latest.current;
  const paths = uPlot.paths.stepped?.({ align: 1 });
  const series: uPlot.Series[] = [{}];
  for (const layer of [...layers].reverse()) {
    const fill = colour(layer.colour);
    // The stroke keeps what is thinner than a pixel in sight.
    series.push({
      label: layer.label,
      stroke: fill,
      width: 1,
      fill,
      points: { show: false },
      ...(paths && { paths }),
    });
  }
  for (const line of lines)
    series.push({
      label: line.label,
      stroke: colour(line.colour),
      width: layers.length ? 1 : 1.5,
      points: { show: false },
      ...(layers.length && { dash: [5, 3] }),
      ...(paths && { paths }),
    });
  const axis = {
    font: FONT,
    stroke: colour("muted"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width: element.clientWidth || 300,
    height: element.clientHeight || 100,
    legend: { show: false },
    padding: [10, 14, 0, 0],
    scales: {
      x: { time: false, range: (_, low, high) => [low, high > low ? high : low + 1] },
      y: { range: (_, __, high) => [0, Math.max((high ?? 0) * 1.04, latest.current.reach ?? 0) || 1] },
    },
    series,
    axes: [
      {
        ...axis,
        size: 28,
        splits: (self, _, low, high) => marks(low, high, Math.max(2, Math.floor(self.width / 110)), "ns"),
        values: (_, values) => labels(values, "ns"),
      },
      {
        ...axis,
        size: 62,
        splits: (self, _, low, high) => marks(low, high, Math.max(2, Math.floor(self.height / 42)), unit),
        values: (_, values) => labels(values, unit),
      },
    ],
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: onRange !== undefined, y: false, setScale: false, dist: 6 },
    },
    hooks: {
      setCursor: [(self) => latest.current.onHover?.(hovered(self, latest.current))],
      setSelect: [(self) => ranged(self, latest.current)],
      draw: [(self) => overlay(self, latest.current)],
      ready: [(self) => listen(self, latest)],
    },
  };
}

/** The row whose values hold under the pointer. */
function hovered(self: uPlot, props: ChartProps): number | null {
  const left = self.cursor.left ?? -1;
  return left < 0 || props.time.length === 0 ? null : rowAt(props.time, self.posToVal(left, "x"));
}

function ranged(self: uPlot, props: ChartProps): void {
  const { left, width } = self.select;
  if (width < 6 || !props.onRange) return;
  const [start, end] = [self.posToVal(left, "x"), self.posToVal(left + width, "x")];
  self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  props.onRange(start, end);
}

function listen(self: uPlot, latest: { current: ChartProps }): void {
  let pressed = 0;
  self.over.addEventListener("pointerdown", (event) => {
    pressed = event.clientX;
  });
  self.over.addEventListener("click", (event) => {
    const { time, onCursor } = latest.current;
    if (!onCursor || time.length === 0 || Math.abs(event.clientX - pressed) > 5) return;
    const left = event.clientX - self.over.getBoundingClientRect().left;
    const at = self.posToVal(left, "x");
    const around = self.posToVal(left + NEAR, "x") - at;
    const top = (self.data[1] ?? []) as ArrayLike<number>;
    const row = highestNear(time, top, at, around);
    const found = time[row] ?? at;
    onCursor(Math.abs(found - at) <= around ? found : Math.round(at));
  });
}

/** The marks and the chosen time, over everything else. */
function overlay(self: uPlot, props: ChartProps): void {
  const { ctx } = self;
  const ratio = devicePixelRatio;
  const { left, top, width, height } = self.bbox;
  const at = (time: number) => Math.round(self.valToPos(time, "x", true));
  ctx.save();
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  for (const mark of props.marks ?? []) {
    const x = at(mark.time);
    if (x < left || x > left + width) continue;
    ctx.strokeStyle = colour("muted");
    ctx.fillStyle = colour("text");
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    stroke(ctx, x, top, height);
    const wide = ctx.measureText(mark.label).width;
    ctx.textAlign = x + wide + 8 * ratio > left + width ? "right" : "left";
    ctx.fillText(mark.label, x + (ctx.textAlign === "right" ? -5 : 5) * ratio, top + 2 * ratio);
  }
  if (typeof props.cursor === "number") {
    const x = at(props.cursor);
    if (x >= left - 1 && x <= left + width + 1) {
      ctx.strokeStyle = colour("text");
      ctx.lineWidth = 2 * ratio;
      ctx.setLineDash([]);
      stroke(ctx, x, top, height);
    }
  }
  ctx.restore();
}

function stroke(ctx: CanvasRenderingContext2D, x: number, top: number, height: number): void {
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, top + height);
  ctx.stroke();
}
