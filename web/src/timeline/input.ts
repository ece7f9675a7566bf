/** The mouse and the keyboard on the timeline. */

import { boxAt } from "./boxes";
import { laneAt, rowAt } from "./layout";
import { valueAt } from "./loader";
import type { Move } from "./motion";
import type { Hovered, Timeline } from "./timeline";
import { clamped, panned, same, type View, zoomed } from "./view";

/** What is moved less than this was a click. */
const CLICK_PX = 4;
const REACH_PX = 3;
const EDGE_PX = 6;
const ZOOM_PER_PX = 0.003;

export const MOVES: Readonly<Record<string, Move>> = { w: "closer", s: "farther", a: "earlier", d: "later" };

/** The time at a place of an element that is as wide as the view. */
function timeAt(timeline: Timeline, element: HTMLElement, clientX: number): number {
  const box = element.getBoundingClientRect();
  const view = timeline.view.peek();
  return view.start + ((clientX - box.left) / box.width) * (view.end - view.start);
}

/** What lies under a point of the tracks' area. */
export function hit(timeline: Timeline, x: number, y: number): Hovered | null {
  const lane = laneAt(timeline.layout.peek(), y + timeline.scroll.peek());
  const row = lane && rowAt(lane, y + timeline.scroll.peek());
  if (!lane || row === undefined || lane.track.sort === "counter") return null;
  const view = timeline.view.peek();
  const pixel = (view.end - view.start) / timeline.width.peek();
  const time = view.start + x * pixel;
  const answers = timeline.loader.boxes(lane.track.id);
  const boxes = answers.findLast((one) => one.view.start <= time && one.view.end >= time);
  if (!boxes) return null;
  const found = boxAt(boxes, row, time, pixel * REACH_PX);
  if (found < 0) return null;
  return {
    track: lane.track.id,
    row,
    start: boxes.start[found] ?? 0,
    duration: boxes.duration[found] ?? 0,
    span: boxes.span[found] ?? -1,
    label: boxes.label[found] ?? 0,
    count: boxes.count[found] ?? 1,
    busy: boxes.busy[found] ?? 0,
    x,
    y,
  };
}

function within(whole: View, time: number): number {
  return Math.min(Math.max(time, whole.start), whole.end);
}

/** Find again what is under the pointer: it moved, or the view did. */
export function point(timeline: Timeline): void {
  const at = timeline.pointer.peek();
  const found = at && hit(timeline, at.x, at.y);
  const before = timeline.hovered.peek();
  const keys = ["track", "row", "start", "label", "count", "x", "y"] as const;
  if (found ? keys.some((key) => found[key] !== before?.[key]) : before) timeline.hovered.value = found;
  const { start, end } = timeline.view.peek();
  const time = start + ((at?.x ?? 0) / timeline.width.peek()) * (end - start);
  const track = at && laneAt(timeline.layout.peek(), at.y + timeline.scroll.peek())?.track;
  const curve = track?.sort === "counter" ? timeline.loader.counter(track.id).at(-1) : undefined;
  const value = curve && valueAt(curve, time);
  const reading = timeline.reading.peek();
  if (value === undefined || !track) timeline.reading.value = null;
  else if (reading?.track !== track.id || reading.value !== value)
    timeline.reading.value = { track: track.id, value };
  if (at) timeline.cursor.value = time;
}

/** Follow a pointer that was pressed until it is let go. */
function drag(
  event: PointerEvent,
  element: HTMLElement,
  move: (dx: number, dy: number, now: PointerEvent) => void,
  done: (moved: boolean) => void,
): void {
  const from = { x: event.clientX, y: event.clientY };
  let moved = false;
  const onMove = (now: PointerEvent) => {
    const dx = now.clientX - from.x;
    const dy = now.clientY - from.y;
    moved ||= Math.abs(dx) > CLICK_PX || Math.abs(dy) > CLICK_PX;
    if (moved) move(dx, dy, now);
  };
  const onEnd = () => {
    element.removeEventListener("pointermove", onMove);
    element.removeEventListener("pointerup", onEnd);
    element.removeEventListener("pointercancel", onEnd);
    done(moved);
  };
  element.setPointerCapture(event.pointerId);
  element.addEventListener("pointermove", onMove);
  element.addEventListener("pointerup", onEnd);
  element.addEventListener("pointercancel", onEnd);
}

/** Choose a stretch of time by dragging. */
function dragRange(timeline: Timeline, event: PointerEvent, element: HTMLElement): void {
  const before = timeline.range.peek();
  const from = otherEnd(timeline, before, timeAt(timeline, element, event.clientX));
  timeline.pointer.value = null;
  timeline.cursor.value = null;
  drag(
    event,
    element,
    (_dx, _dy, now) => {
      const to = within(timeline.whole, timeAt(timeline, element, now.clientX));
      timeline.range.value = to < from ? { start: to, end: from } : { start: from, end: to };
    },
    (moved) => {
      const range = timeline.range.peek();
      if (moved && range && range.end - range.start >= 1) timeline.chooseRange(range);
      else if (before) timeline.chooseRange(null);
    },
  );
}

/** Where a drag that begins at a time holds on: at that time, or at the far end of the range whose end it takes. */
function otherEnd(timeline: Timeline, range: View | null, time: number): number {
  const { start, end } = timeline.view.peek();
  const near = ((end - start) / timeline.width.peek()) * EDGE_PX;
  if (range && Math.abs(time - range.start) <= near) return range.end;
  if (range && Math.abs(time - range.end) <= near) return range.start;
  return time;
}

/** Pan, zoom, choose and point on the area of the tracks; `scroller` is what scrolls them. */
export function onTracks(timeline: Timeline, element: HTMLElement, scroller: HTMLElement): () => void {
  const down = (event: PointerEvent) => {
    if (event.button !== 0) return;
    timeline.motion.stop();
    if (event.shiftKey) {
      event.preventDefault();
      dragRange(timeline, event, element);
      return;
    }
    const view = timeline.view.peek();
    const scroll = scroller.scrollTop;
    const pixel = (view.end - view.start) / timeline.width.peek();
    drag(
      event,
      element,
      (dx, dy) => {
        element.dataset["dragged"] = "yes";
        timeline.pointer.value = null;
        timeline.cursor.value = null;
        timeline.show(panned(view, -dx * pixel, timeline.whole));
        scroller.scrollTop = scroll - dy;
      },
      (moved) => {
        delete element.dataset["dragged"];
        if (moved) return;
        const box = element.getBoundingClientRect();
        timeline.chooseBox(hit(timeline, event.clientX - box.left, event.clientY - box.top));
      },
    );
  };
  const move = (event: PointerEvent) => {
    if (event.buttons !== 0) return;
    const box = element.getBoundingClientRect();
    timeline.pointer.value = { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const leave = () => {
    timeline.pointer.value = null;
    timeline.cursor.value = null;
  };
  const twice = () => timeline.fit();
  return listening(
    element,
    { pointerdown: down, pointermove: move, pointerleave: leave, dblclick: twice },
    (event) => onWheel(timeline, element, event, false),
  );
}

/** Choose a range on the axis; its wheel zooms. */
export function onAxis(timeline: Timeline, element: HTMLElement): () => void {
  const down = (event: PointerEvent) => {
    if (event.button === 0) dragRange(timeline, event, element);
  };
  const move = (event: PointerEvent) => {
    if (event.buttons === 0) timeline.cursor.value = timeAt(timeline, element, event.clientX);
  };
  const leave = () => {
    timeline.cursor.value = null;
  };
  const twice = () => timeline.fit();
  return listening(
    element,
    { pointerdown: down, pointermove: move, pointerleave: leave, dblclick: twice },
    (event) => onWheel(timeline, element, event, true),
  );
}

/** Move the window over the whole trace, or draw a new one. */
export function onWhole(timeline: Timeline, element: HTMLElement): () => void {
  const down = (event: PointerEvent) => {
    if (event.button !== 0) return;
    timeline.motion.stop();
    const box = element.getBoundingClientRect();
    const scale = (timeline.whole.end - timeline.whole.start) / box.width;
    const from = timeline.whole.start + (event.clientX - box.left) * scale;
    const view = timeline.view.peek();
    const inside = from >= view.start && from <= view.end && !same(view, timeline.whole);
    drag(
      event,
      element,
      (dx) => {
        const to = from + dx * scale;
        const drawn: View = to < from ? { start: to, end: from } : { start: from, end: to };
        timeline.show(inside ? panned(view, dx * scale, timeline.whole) : clamped(drawn, timeline.whole));
      },
      (moved) => {
        const half = (view.end - view.start) / 2;
        if (!moved) timeline.glide({ start: from - half, end: from + half });
      },
    );
  };
  const wheel = (event: WheelEvent) => {
    event.preventDefault();
    const box = element.getBoundingClientRect();
    const { start, end } = timeline.whole;
    const at = start + ((event.clientX - box.left) / box.width) * (end - start);
    const view = timeline.view.peek();
    const around = at >= view.start && at <= view.end ? at : (view.start + view.end) / 2;
    timeline.show(zoomed(view, zoomOf(event), around, timeline.whole));
  };
  return listening(element, { pointerdown: down }, wheel);
}

function onWheel(timeline: Timeline, element: HTMLElement, event: WheelEvent, zooms: boolean): void {
  const view = timeline.view.peek();
  if (event.ctrlKey || event.metaKey || event.altKey || (zooms && !event.shiftKey)) {
    event.preventDefault();
    timeline.motion.stop();
    const factor = zoomOf(event);
    timeline.show(zoomed(view, factor, timeAt(timeline, element, event.clientX), timeline.whole));
    return;
  }
  const sideways = event.shiftKey && event.deltaX === 0 ? event.deltaY : event.deltaX;
  if (!event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the browser scrolls
  event.preventDefault();
  timeline.motion.stop();
  const by = (pixelsOf(event, sideways) * (view.end - view.start)) / timeline.width.peek();
  timeline.show(panned(view, by, timeline.whole));
}

/** By how much a turn of the wheel zooms. Two fingers on a touchpad turn it in small steps. */
function zoomOf(event: WheelEvent): number {
  const turned = pixelsOf(event, event.deltaY);
  return Math.exp(turned * ZOOM_PER_PX * (event.ctrlKey && Math.abs(turned) < 30 ? 4 : 1));
}

/** Some browsers count wheels in lines. */
function pixelsOf(event: WheelEvent, delta: number): number {
  return event.deltaMode === WheelEvent.DOM_DELTA_LINE ? delta * 33 : delta;
}

function listening(
  element: HTMLElement,
  pointers: Readonly<Record<string, (event: PointerEvent) => void>>,
  wheel: (event: WheelEvent) => void,
): () => void {
  for (const [name, listen] of Object.entries(pointers))
    element.addEventListener(name, listen as EventListener);
  // Not passive: else the browser would zoom the page.
  element.addEventListener("wheel", wheel, { passive: false });
  return () => {
    for (const [name, listen] of Object.entries(pointers))
      element.removeEventListener(name, listen as EventListener);
    element.removeEventListener("wheel", wheel);
  };
}
