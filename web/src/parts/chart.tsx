/**
 * Bytes over time: layers on top of each other, and lines. Values hold until the next one.
 *
 * The colours are names of the theme. The chart takes the width that there is and the height it is given, so nothing
 * moves when its values come. `cursor` and `marks` are drawn where the page says; what the pointer or the keyboard does
 * on it is told to the page, which decides. It is drawn here rather than by a library because a chart of steps is most
 * of what the pages need, and a library for all kinds of charts would be a quarter of the app.
 */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import "./chart.css";
import { paint } from "./chart-paint";
import { extent, highestNear, room, rowAt, stacked, timeAt } from "./chart-scale";
import { useSized } from "./lengths";
import { theme } from "./theme";

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
  /** Bytes, from the bottom up; each is drawn on top of those before. */
  layers: readonly Layer[];
  /** Drawn dashed over the layers. */
  lines: readonly Layer[];
  /** A CSS length such as `16rem`. */
  height: string;
  /** The time that is chosen. */
  cursor: number;
  /** Times that are marked with a word. */
  marks: readonly { time: number; label: string }[];
  /** What the chosen time reads as, for those who cannot see it. */
  told: string;
  /** Called with the row whose values hold under the pointer, null when it is gone. */
  onHover: (row: number | null) => void;
  /** Called with the time that was clicked or reached with the arrow keys: near a peak, that of the peak. */
  onCursor: (time: number) => void;
  /** Called with the stretch of time that was dragged over. */
  onRange?: (start: number, end: number) => void;
}

/** Pixels around the pointer in which the highest value is meant. */
const NEAR = 4;
/** Pixels after which a press becomes a drag. */
const DRAGS = 6;

export function Chart(props: ChartProps) {
  const { time, layers, lines, cursor, onHover, onCursor, onRange } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const pointer = useRef<HTMLSpanElement>(null);
  const pressed = useRef<number | null>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  const host = useSized<HTMLDivElement>((element) =>
    setSize({ width: element.clientWidth, height: element.clientHeight }),
  );
  const painted = theme.value;
  const stack = useMemo(
    () =>
      stacked(
        layers.map((layer) => layer.values),
        time.length,
      ),
    [time, layers],
  );
  const all = useMemo(() => [...stack.slice(-1), ...lines.map((line) => line.values)], [stack, lines]);
  const shown = useMemo(() => extent(time, all), [time, all]);
  const inside = room(size.width, size.height);

  useEffect(() => {
    if (canvas.current && size.width > 0) paint(canvas.current, props, stack, inside, shown);
  }, [painted, size, stack, lines, shown, cursor, props.marks]);

  const xIn = (event: PointerEvent) => event.clientX - (host.current?.getBoundingClientRect().left ?? 0);
  /** The line under the pointer or, while something is dragged over, all from there on. */
  const follow = (x: number | null) => {
    const element = pointer.current;
    if (!element) return;
    element.hidden = x === null;
    if (x === null) return;
    const other = onRange && pressed.current !== null ? pressed.current : x;
    const left = Math.max(inside.left, Math.min(x, other));
    const right = Math.max(left, Math.min(inside.right, Math.max(x, other)));
    Object.assign(element.style, { left: `${left}px`, width: `${right - left}px` });
  };
  const onPointerMove = (event: PointerEvent) => {
    const x = xIn(event);
    const within = x >= inside.left && x <= inside.right && time.length > 0;
    follow(within || pressed.current !== null ? x : null);
    onHover(within ? rowAt(time, timeAt(x, inside, shown)) : null);
  };
  const onPointerLeave = () => {
    if (pressed.current !== null) return;
    follow(null);
    onHover(null);
  };
  const onPointerDown = (event: PointerEvent) => {
    if (event.button !== 0) return;
    pressed.current = xIn(event);
    host.current?.setPointerCapture(event.pointerId);
  };
  const onPointerUp = (event: PointerEvent) => {
    if (pressed.current === null) return;
    const [from, to] = [pressed.current, xIn(event)];
    pressed.current = null;
    follow(to);
    if (Math.abs(to - from) >= DRAGS && onRange) {
      const [start = 0, end = 0] = [from, to].sort((a, b) => a - b).map((x) => timeAt(x, inside, shown));
      if (end > start) onRange(start, end);
    } else if (time.length > 0) {
      const at = timeAt(to, inside, shown);
      const around = timeAt(inside.left + NEAR, inside, shown) - shown.start;
      const found = time[highestNear(time, all[0] ?? [], at, around)] ?? at;
      onCursor(Math.round(Math.abs(found - at) <= around ? found : at));
    }
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || time.length === 0) return;
    event.preventDefault();
    const row = rowAt(time, cursor) + by * (event.shiftKey ? 20 : 1);
    onCursor(Math.round(time[Math.max(0, Math.min(time.length - 1, row))] ?? 0));
  };

  return (
    <div
      role="slider"
      aria-label={props.label}
      aria-valuemin={shown.start}
      aria-valuemax={shown.end}
      aria-valuenow={cursor}
      aria-valuetext={props.told}
      tabIndex={0}
      onKeyDown={onKeyDown}
      class="chart"
      ref={host}
      style={{ height: props.height }}
      onPointerMove={onPointerMove}
      onPointerLeave={onPointerLeave}
      onPointerDown={onPointerDown}
      onPointerUp={onPointerUp}
    >
      <canvas ref={canvas} />
      <span
        class="pointer"
        ref={pointer}
        hidden
        style={{ top: `${inside.top}px`, bottom: `${inside.height - inside.bottom}px` }}
      />
    </div>
  );
}
