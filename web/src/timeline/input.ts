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

/** The time at a place of an element that is as wide as a stretch of time. */
function timeAt({ start, end }: View, element: HTMLElement, clientX: number): number {
  const box = element.getBoundingClientRect();
  return start + ((clientX - box.left) / box.width) * (end - start);
}

/** How long a CSS pixel of the tracks is. */
function pixelOf({ view, width }: Timeline): number {
  const { start, end } = view.peek();
  return (end - start) / width.peek();
}

/** Where a pointer is in an element. */
function placeIn(element: HTMLElement, event: PointerEvent): { x: number; y: number } {
  const box = element.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

/** What lies under a point of the tracks' area. */
function hit(timeline: Timeline, { x, y }: { x: number; y: number }): Hovered | null {
  const height = y + timeline.scroll.peek();
  const lane = laneAt(timeline.layout.peek(), height);
  const row = lane && rowAt(lane, height);
  if (!lane || row === undefined || lane.track.sort === "counter") return null;
  const pixel = pixelOf(timeline);
  const time = timeline.view.peek().start + x * pixel;
  const answers = timeline.loader.boxes(lane.track.id);
  const boxes = answers.findLast((one) => one.view.start <= time && one.view.end >= time);
  if (!boxes) return null;
  const found = boxAt(boxes, row, time, pixel * REACH_PX);
  if (found < 0) return null;
  return {
    track: lane.track.id,
    row,
    start: boxes.start[found] as number,
    duration: boxes.duration[found] as number,
    span: boxes.span[found] as number,
    label: boxes.label[found] as number,
    count: boxes.count[found] as number,
    busy: boxes.busy[found] as number,
    x,
    y,
  };
}

/** Find again what is under the pointer: it moved, or the view did. */
export function point(timeline: Timeline): void {
  const { hovered, reading, loader } = timeline;
  const at = timeline.pointer.peek();
  const found = at && hit(timeline, at);
  // A signal announces every new object, so an equal one is not set again.
  if (JSON.stringify(found) !== JSON.stringify(hovered.peek())) hovered.value = found;
  const time = timeline.view.peek().start + (at?.x ?? 0) * pixelOf(timeline);
  const track = at && laneAt(timeline.layout.peek(), at.y + timeline.scroll.peek())?.track;
  const curve = track?.sort === "counter" ? loader.counter(track.id).at(-1) : undefined;
  const value = curve && valueAt(curve, time);
  const before = reading.peek();
  if (value === undefined || !track) reading.value = null;
  else if (before?.track !== track.id || before.value !== value) reading.value = { track: track.id, value };
  if (at) timeline.cursor.value = time;
}

/** Listen until the end is called. */
export function listening(
  target: EventTarget,
  // biome-ignore lint/suspicious/noExplicitAny: each event has its own type
  listeners: Readonly<Record<string, (event: any) => void>>,
): () => void {
  const control = new AbortController();
  // Not passive: else the browser would zoom the page.
  const options = { passive: false, signal: control.signal };
  for (const [name, listener] of Object.entries(listeners)) target.addEventListener(name, listener, options);
  return () => control.abort();
}

/** Follow a pointer that was pressed until it is let go. */
export function drag(
  event: PointerEvent,
  element: HTMLElement,
  move: (dx: number, dy: number, now: PointerEvent) => void,
  done?: (moved: boolean) => void,
): void {
  let moved = false;
  element.setPointerCapture(event.pointerId);
  const end = listening(element, {
    pointermove: (now: PointerEvent) => {
      const dx = now.clientX - event.clientX;
      const dy = now.clientY - event.clientY;
      moved ||= Math.abs(dx) > CLICK_PX || Math.abs(dy) > CLICK_PX;
      if (moved) move(dx, dy, now);
    },
    lostpointercapture: () => {
      end();
      done?.(moved);
    },
  });
}

/** The pointer is no longer on the tracks. */
function away(timeline: Timeline): void {
  timeline.pointer.value = null;
  timeline.cursor.value = null;
}

/** The stretch between two times, whichever is first. */
function stretch(from: number, to: number): View {
  return { start: Math.min(from, to), end: Math.max(from, to) };
}

/** Choose a stretch of time by dragging. */
function dragRange(timeline: Timeline, event: PointerEvent, element: HTMLElement): void {
  const { range, view, whole } = timeline;
  const before = range.peek();
  const time = timeAt(view.peek(), element, event.clientX);
  const near = pixelOf(timeline) * EDGE_PX;
  // Who takes one end of the range holds on to the other one.
  const from =
    before && Math.abs(time - before.start) <= near
      ? before.end
      : before && Math.abs(time - before.end) <= near
        ? before.start
        : time;
  away(timeline);
  drag(
    event,
    element,
    (_dx, _dy, now) => {
      const to = timeAt(view.peek(), element, now.clientX);
      range.value = stretch(from, Math.min(Math.max(to, whole.start), whole.end));
    },
    (moved) => {
      const chosen = range.peek();
      if (moved && chosen && chosen.end - chosen.start >= 1) timeline.chooseRange(chosen);
      else if (before) timeline.chooseRange(null);
    },
  );
}

/** What the axis and the tracks have in common. */
function onTime(
  timeline: Timeline,
  element: HTMLElement,
  down: (event: PointerEvent) => void,
  move: (event: PointerEvent) => void,
  zooms: boolean,
): () => void {
  return listening(element, {
    pointerdown: (event: PointerEvent) => {
      if (event.button === 0) down(event);
    },
    pointermove: (event: PointerEvent) => {
      if (event.buttons === 0) move(event);
    },
    pointerleave: () => away(timeline),
    dblclick: () => timeline.fit(),
    wheel: (event: WheelEvent) => onWheel(timeline, element, event, zooms),
  });
}

/** Pan, zoom, choose and point on the area of the tracks; `scroller` is what scrolls them. */
export function onTracks(timeline: Timeline, element: HTMLElement, scroller: HTMLElement): () => void {
  const down = (event: PointerEvent) => {
    timeline.motion.stop();
    if (event.shiftKey) {
      event.preventDefault();
      dragRange(timeline, event, element);
      return;
    }
    const view = timeline.view.peek();
    const scroll = scroller.scrollTop;
    const pixel = pixelOf(timeline);
    drag(
      event,
      element,
      (dx, dy) => {
        element.dataset["dragged"] = "yes";
        away(timeline);
        timeline.show(panned(view, -dx * pixel, timeline.whole));
        scroller.scrollTop = scroll - dy;
      },
      (moved) => {
        delete element.dataset["dragged"];
        if (!moved) timeline.chooseBox(hit(timeline, placeIn(element, event)));
      },
    );
  };
  const move = (event: PointerEvent) => {
    timeline.pointer.value = placeIn(element, event);
  };
  return onTime(timeline, element, down, move, false);
}

/** Choose a range on the axis; its wheel zooms. */
export function onAxis(timeline: Timeline, element: HTMLElement): () => void {
  const move = (event: PointerEvent) => {
    timeline.cursor.value = timeAt(timeline.view.peek(), element, event.clientX);
  };
  return onTime(timeline, element, (event) => dragRange(timeline, event, element), move, true);
}

/** Move the window over the whole trace, or draw a new one. */
export function onWhole(timeline: Timeline, element: HTMLElement): () => void {
  const { whole, motion } = timeline;
  return listening(element, {
    pointerdown: (event: PointerEvent) => {
      if (event.button !== 0) return;
      motion.stop();
      const from = timeAt(whole, element, event.clientX);
      const view = timeline.view.peek();
      const inside = from >= view.start && from <= view.end && !same(view, whole);
      drag(
        event,
        element,
        (_dx, _dy, now) => {
          const to = timeAt(whole, element, now.clientX);
          timeline.show(inside ? panned(view, to - from, whole) : clamped(stretch(from, to), whole));
        },
        (moved) => {
          const half = (view.end - view.start) / 2;
          if (!moved) timeline.glide({ start: from - half, end: from + half });
        },
      );
    },
    wheel: (event: WheelEvent) => {
      event.preventDefault();
      const at = timeAt(whole, element, event.clientX);
      const view = timeline.view.peek();
      const around = at >= view.start && at <= view.end ? at : (view.start + view.end) / 2;
      timeline.show(zoomed(view, zoomOf(event), around, whole));
    },
  });
}

function onWheel(timeline: Timeline, element: HTMLElement, event: WheelEvent, zooms: boolean): void {
  const { deltaX, deltaY, shiftKey } = event;
  const closer = event.ctrlKey || event.metaKey || event.altKey || (zooms && !shiftKey);
  if (!closer && !shiftKey && Math.abs(deltaX) <= Math.abs(deltaY)) return; // the browser scrolls
  event.preventDefault();
  timeline.motion.stop();
  const view = timeline.view.peek();
  const { whole } = timeline;
  const by = pixelsOf(event, shiftKey && deltaX === 0 ? deltaY : deltaX) * pixelOf(timeline);
  timeline.show(
    closer
      ? zoomed(view, zoomOf(event), timeAt(view, element, event.clientX), whole)
      : panned(view, by, whole),
  );
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
