/** Boxes within boxes on a canvas: a flame graph, a tree of modules. Arrow keys walk, Enter goes into a box. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { IciclePainter, type Look, type Picture, type Sight } from "./icicle-paint";
import { type Boxes, boxAt, forkRow, neighbor } from "./icicle-rows";
import { beside, rem, reveal, useSized } from "./lengths";
import { theme } from "./theme";
import "./icicle.css";

export interface IcicleProps {
  boxes: Boxes;
  looks: readonly Look[];
  /** What is shown, for those who cannot see it. */
  label: string;
  /** The box that fills the width, -1 for all. */
  zoom: number;
  /** What fills the width instead of that box, for pictures on one axis. */
  sight?: Sight;
  /** The box that is chosen, -1 for none. */
  chosen: number;
  /** Which boxes are searched for; the others are faded. */
  found?: Uint8Array | null;
  /** It is as high as its rows, but no higher than this many; all the room there is where left out. */
  mostRows?: number;
  /** It is as high as its rows where there is room for all of them. */
  fits?: boolean;
  /** What is said of a box beside the pointer. */
  tip: (index: number) => ComponentChildren;
  /** A box in one line of plain text. */
  said: (index: number) => string;
  /** `byKey` is true while arrow keys walk: then the back button need not stop at each box. */
  onChoose: (index: number, byKey: boolean) => void;
  onZoom: (index: number) => void;
}

const ROW_REM = 1.45;
/** The frame around the boxes. */
const MARGINS_REM = 0.7;
const GLIDE_MS = 160;

export function Icicle(props: IcicleProps) {
  const { boxes, looks, found = null, zoom, chosen } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hovered, setHovered] = useState<{ index: number; x: number; y: number } | null>(null);
  const drawing = useMemo(() => new Drawing(), []);
  const scroller = useSized<HTMLDivElement>(() => drawing.draw());
  const rowHeight = Math.round(ROW_REM * rem());
  const shade = theme.value;
  const zoomed = props.sight && props.sight.end - props.sight.start < boxes.whole;

  useLayoutEffect(() => {
    drawing.begin(canvas.current, scroller.current);
    return () => drawing.end();
  }, [drawing]);
  // The attribute with the theme is set by an effect of its own, which runs first.
  useEffect(() => drawing.renew(), [drawing, shade]);
  useLayoutEffect(() => {
    const sight =
      props.sight ??
      (zoom < 0
        ? { start: 0, end: boxes.whole }
        : { start: boxes.start[zoom] ?? 0, end: boxes.end[zoom] ?? 0 });
    drawing.show({ boxes, looks, found, zoom, chosen, hovered: hovered?.index ?? -1, rowHeight, sight });
  }, [drawing, boxes, looks, found, zoom, props.sight, chosen, hovered?.index, rowHeight]);
  // What was under the pointer is elsewhere now.
  useEffect(() => setHovered(null), [boxes, zoom]);
  // What all has in common is scrolled away where the picture is too high.
  useEffect(() => {
    const around = scroller.current;
    if (around && zoom < 0 && chosen < 0 && boxes.rows * rowHeight > around.clientHeight)
      around.scrollTop = Math.max(forkRow(boxes) - 3, 0) * rowHeight;
  }, [boxes, rowHeight]);
  // A box that keys lead to is scrolled into sight.
  useEffect(() => {
    if (chosen >= 0) reveal(scroller.current, (boxes.row[chosen] ?? 0) * rowHeight, rowHeight);
  }, [boxes, chosen, rowHeight]);

  const at = (event: MouseEvent & { currentTarget: HTMLElement }) => {
    const element = event.currentTarget;
    const place = element.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left, event.clientY - place.top];
    const row = Math.floor((y + element.scrollTop) / rowHeight);
    const { start, end } = drawing.sight;
    const index = boxAt(boxes, row, start + (x / Math.max(element.clientWidth, 1)) * (end - start));
    return index < 0 ? null : { index, x, y };
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) props.onChoose(neighbor(boxes, chosen, event.key), true);
    else if (event.key === "Enter" && chosen >= 0) props.onZoom(chosen);
    else if (event.key === "Backspace" && zoom >= 0) props.onZoom(boxes.parent[zoom] ?? -1);
    else if (event.key === "Escape" && (zoom >= 0 || zoomed)) props.onZoom(-1);
    else if (event.key === "Escape" && chosen >= 0) props.onChoose(-1, true);
    else return;
    event.preventDefault();
  };

  const height = `calc(${Math.min(boxes.rows, props.mostRows ?? boxes.rows) * rowHeight}px + ${MARGINS_REM}rem)`;
  const style = props.mostRows ? { flex: "none", height } : props.fits ? { flex: `0 1 ${height}` } : {};
  return (
    <div class="icicle" style={style}>
      <div
        class="icicle-scroll"
        ref={scroller}
        role="application"
        aria-roledescription="boxes within boxes"
        aria-label={`${props.label}. Arrow keys walk, Enter goes into a box, Backspace out of it.`}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: keys walk through it
        tabIndex={0}
        onScroll={() => drawing.draw()}
        onKeyDown={onKeyDown}
        onPointerMove={(event) => setHovered(at(event))}
        onPointerLeave={() => setHovered(null)}
        onClick={(event) => event.detail < 2 && props.onChoose(at(event)?.index ?? -1, false)}
        onDblClick={(event) => {
          const box = at(event);
          if (box) props.onZoom(box.index);
        }}
      >
        <canvas ref={canvas} />
        <div style={{ height: `${boxes.rows * rowHeight}px` }} />
      </div>
      {hovered && hovered.index < boxes.row.length && (
        <div
          class="tip"
          style={beside(hovered.x, hovered.y, scroller.current?.clientWidth ?? 0)}
          role="presentation"
        >
          {props.tip(hovered.index)}
        </div>
      )}
      <p class="icicle-said" aria-live="polite">
        {chosen >= 0 ? props.said(chosen) : ""}
      </p>
    </div>
  );
}

type Shown = Omit<Picture, "scroll" | "width" | "height" | "ratio">;

/** The canvas: it fills what is in sight of the scroller, and glides where another part is to be shown. */
class Drawing {
  sight: Sight = { start: 0, end: 1 };

  private scroller: HTMLElement | null = null;
  private painter: IciclePainter | null = null;
  private shown: Shown | null = null;
  private from: Sight = this.sight;
  private since = 0;
  private frame = 0;

  begin(canvas: HTMLCanvasElement | null, scroller: HTMLElement | null): void {
    const context = canvas?.getContext("2d");
    this.painter = context ? new IciclePainter(context) : null;
    this.scroller = scroller;
  }

  end(): void {
    cancelAnimationFrame(this.frame);
    this.painter = null;
  }

  renew(): void {
    this.painter?.renew();
    this.draw();
  }

  show(next: Shown): void {
    const same = this.shown?.boxes === next.boxes;
    if (!same || matchMedia("(prefers-reduced-motion: reduce)").matches) this.sight = this.from = next.sight;
    else if (this.shown?.sight.start !== next.sight.start || this.shown.sight.end !== next.sight.end) {
      this.from = this.sight;
      this.since = performance.now();
    }
    this.shown = next;
    this.draw();
  }

  draw(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame((now) => {
      this.frame = 0;
      this.paint(now);
    });
  }

  private paint(now: number): void {
    const { scroller, painter, shown, from } = this;
    if (!scroller || !painter || !shown) return;
    const past = Math.min(Math.max((now - this.since) / GLIDE_MS, 0), 1);
    const way = past * (2 - past);
    this.sight = {
      start: from.start + (shown.sight.start - from.start) * way,
      end: from.end + (shown.sight.end - from.end) * way,
    };
    if (past < 1) this.draw();
    else this.from = this.sight;
    painter.paint({
      ...shown,
      sight: this.sight,
      scroll: scroller.scrollTop,
      width: scroller.clientWidth,
      height: scroller.clientHeight,
      ratio: devicePixelRatio || 1,
    });
  }
}
