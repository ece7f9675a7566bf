/** Ranks by steps as a map on a canvas: each cell has the color of its value. Arrow keys walk, Escape clears. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { FONT } from "../parts/icicle-paint";
import { beside, rem, useSized } from "../parts/lengths";
import { color, theme } from "../parts/theme";
import { pixels, rampColor } from "./ranks";

export interface Cell {
  row: number;
  step: number;
}

/** In rem. */
const MARGINS = { left: 5.2, bottom: 1.6 };
const LABEL = { x: 4.6, y: 1.9 };
/** The height of a row where there are few. */
const ROW = 14;
const LEAST = 90;
/** In rem: no higher, so that what a cell leads to stays in reach. */
const MOST = 42;

export function HeatMap(props: {
  /** For each row one value for each step; not a number where there is none. */
  values: ArrayLike<number>;
  ranks: ArrayLike<number>;
  steps: readonly number[];
  order: Int32Array;
  low: number;
  high: number;
  chosen: Cell | null;
  label: string;
  said: (cell: Cell) => string;
  tip: (cell: Cell) => ComponentChildren;
  onChoose: (cell: Cell | null) => void;
}) {
  const { values, steps, order, chosen } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hovered, setHovered] = useState<(Cell & { x: number; y: number }) | null>(null);
  const around = useSized<HTMLDivElement>((element) => setWidth(element.clientWidth));
  const ratio = devicePixelRatio || 1;
  const height = Math.max(
    LEAST,
    Math.min(order.length * ROW, Math.round(Math.min(innerHeight * 0.55, MOST * rem()))),
  );
  const shade = theme.value;
  const size = rem();
  const margin = { left: Math.round(MARGINS.left * size), bottom: Math.round(MARGINS.bottom * size) };
  const picture = useMemo(
    () =>
      pixels(
        values,
        steps.length,
        order,
        Math.round((width - margin.left) * ratio),
        Math.round(height * ratio),
      ),
    [values, steps, order, width, height, ratio],
  );
  const placeOf = useMemo(() => {
    const places = new Int32Array(order.length);
    order.forEach((row, place) => {
      places[row] = place;
    });
    return places;
  }, [order]);
  const inner = { width: Math.max(width - margin.left, 1), height };
  const box = (cell: Cell) => ({
    x: margin.left + (cell.step * inner.width) / steps.length,
    y: ((placeOf[cell.row] ?? 0) * height) / order.length,
    width: inner.width / steps.length,
    height: height / order.length,
  });

  // The theme is set by an effect of its own, which runs first.
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context || width <= margin.left) return;
    context.canvas.width = Math.round(width * ratio);
    context.canvas.height = Math.round((height + margin.bottom) * ratio);
    const { columns, rows, cell } = picture;
    const image = new ImageData(columns, rows);
    const scale = 255 / (props.high - props.low);
    const ramp = Array.from({ length: 256 }, (_, at) => rampColor(shade, at / 255));
    for (let at = 0; at < cell.length; at++) {
      const which = cell[at] ?? -1;
      if (which < 0) continue;
      const share = Math.round(((values[which] ?? 0) - props.low) * scale);
      image.data.set(ramp[Math.min(Math.max(share, 0), 255)] ?? [0, 0, 0], at * 4);
      image.data[at * 4 + 3] = 255;
    }
    const small = document.createElement("canvas");
    [small.width, small.height] = [columns, rows];
    small.getContext("2d")?.putImageData(image, 0, 0);
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.fillStyle = color("sunken");
    context.fillRect(margin.left, 0, inner.width, height);
    context.drawImage(small, margin.left, 0, inner.width, height);
    context.font = `${Math.round(0.86 * size)}px ${FONT}`;
    context.fillStyle = color("muted");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.ceil((LABEL.y * size * order.length) / height);
    for (let place = 0; place < order.length; place += every)
      context.fillText(
        `rank ${props.ranks[order[place] ?? 0]}`,
        margin.left - 6,
        Math.max(((place + 0.5) * height) / order.length, 7),
      );
    context.textBaseline = "top";
    context.textAlign = "left";
    const apart = Math.ceil((LABEL.x * size * steps.length) / inner.width);
    for (let step = 0; step < steps.length; step += apart) {
      const x = margin.left + (step * inner.width) / steps.length;
      if (x < width - (LABEL.x * size) / 2)
        context.fillText(`${step === 0 ? "step " : ""}${steps[step]}`, x, height + 6);
    }
    for (const [one, line] of [
      [hovered, 1],
      [chosen, 2],
    ] as const) {
      if (!one) continue;
      const { x, y, ...large } = box(one);
      // Two lines, one of which can be seen on any color.
      for (const [name, wide] of [
        ["surface", line + 2],
        ["text", line],
      ] as const) {
        context.strokeStyle = color(name);
        context.lineWidth = wide;
        context.strokeRect(x - 1, y - 1, Math.max(large.width, 3) + 2, Math.max(large.height, 3) + 2);
      }
    }
  }, [
    picture,
    props.low,
    props.high,
    shade,
    hovered?.row,
    hovered?.step,
    chosen?.row,
    chosen?.step,
    width,
    props.ranks,
  ]);

  const at = (
    event: MouseEvent & { currentTarget: HTMLElement },
  ): (Cell & { x: number; y: number }) | null => {
    const place = event.currentTarget.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left, event.clientY - place.top];
    const column = Math.floor(((x - margin.left) / inner.width) * picture.columns);
    const row = Math.floor((y / height) * picture.rows);
    if (column < 0 || column >= picture.columns || row < 0 || row >= picture.rows) return null;
    const cell = picture.cell[row * picture.columns + column] ?? -1;
    return cell < 0 ? null : { row: Math.floor(cell / steps.length), step: cell % steps.length, x, y };
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [down, right] =
      { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
    if (event.key === "Escape" && chosen) props.onChoose(null);
    else if (down === undefined || right === undefined) return;
    else {
      const place = chosen ? (placeOf[chosen.row] ?? 0) + down : 0;
      const step = chosen ? chosen.step + right : 0;
      props.onChoose({
        row: order[Math.min(Math.max(place, 0), order.length - 1)] ?? 0,
        step: Math.min(Math.max(step, 0), steps.length - 1),
      });
    }
    event.preventDefault();
  };

  return (
    <div
      class="heat"
      ref={around}
      role="application"
      aria-roledescription="map of ranks and steps"
      aria-label={`${props.label}. Arrow keys walk through the cells.`}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: keys walk through it
      tabIndex={0}
      onKeyDown={onKeyDown}
      onPointerMove={(event) => setHovered(at(event))}
      onPointerLeave={() => setHovered(null)}
      onClick={(event) => props.onChoose(at(event))}
    >
      <canvas ref={canvas} style={{ width: `${width}px`, height: `${height + margin.bottom}px` }} />
      {hovered && (
        <div class="tip" style={beside(hovered.x, hovered.y, width)} role="presentation">
          {props.tip(hovered)}
        </div>
      )}
      <p class="icicle-said" aria-live="polite">
        {chosen ? props.said(chosen) : ""}
      </p>
    </div>
  );
}
