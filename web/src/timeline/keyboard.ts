/** The keys of the timeline, wherever on the page the focus is, except in a field. */

import { isTyping } from "../parts/keyboard";
import { change } from "../router";
import { listening, MOVES } from "./input";
import type { Side } from "./neighbors";
import type { Timeline } from "./timeline";
import { panned } from "./view";

const SCROLL_PX = 54;

export function onKeys(timeline: Timeline): () => void {
  return listening(window, {
    keydown: (event: KeyboardEvent) => {
      if (isTyping(event) || document.querySelector("dialog[open], :popover-open") || inTable(event)) return;
      const move = MOVES[event.key.toLowerCase()];
      if (move) {
        if (!event.repeat) timeline.motion.hold(move, performance.now());
        timeline.arrived.value += 1;
      } else if (!done(timeline, event)) return;
      event.preventDefault();
    },
    keyup: (event: KeyboardEvent) => {
      const move = MOVES[event.key.toLowerCase()];
      if (move) timeline.motion.release(move);
    },
    blur: () => timeline.motion.stop(),
  });
}

/** A list of rows has its own arrow keys. */
function inTable(event: KeyboardEvent): boolean {
  return event.key.startsWith("Arrow") && event.target instanceof Element && !!event.target.closest(".table");
}

/** Do what a key stands for; false where it stands for nothing. */
function done(timeline: Timeline, event: KeyboardEvent): boolean {
  const { scroll, layout, height, view, motion, details, range, anchor, pinned } = timeline;
  const chosen = timeline.chosen.peek();
  const beside = (side: Side, otherwise: () => void) => {
    if (chosen) void timeline.chooseBeside(side);
    else otherwise();
  };
  const step = (share: number) => () => {
    const from = motion.aim ?? view.peek();
    timeline.glide(panned(from, (from.end - from.start) * share, timeline.whole));
  };
  const scrollBy = (by: number) => () => {
    const most = Math.max(layout.peek().height - height.peek(), 0);
    scroll.value = Math.min(Math.max(scroll.peek() + by, 0), most);
  };
  const find = (by: 1 | -1) => () => timeline.search.step(by, chosen?.span, view.peek().start);
  const showAll = () => timeline.showAll();
  const keys: Readonly<Record<string, () => unknown>> = {
    ArrowLeft: () => beside("before", step(-0.2)),
    ArrowRight: () => beside("after", step(0.2)),
    ArrowUp: () => beside("outer", scrollBy(-SCROLL_PX)),
    ArrowDown: () => beside("inner", scrollBy(SCROLL_PX)),
    f: () => timeline.fit(),
    0: showAll,
    Home: showAll,
    n: find(1),
    N: find(-1),
    m: () => timeline.measure(),
    r: () => {
      if (!chosen) return false;
      return timeline.chooseRange({ start: chosen.start, end: chosen.start + Math.max(chosen.duration, 1) });
    },
    Escape: () => {
      if (details.peek()) return timeline.choose(null, false);
      if (range.peek()) return timeline.chooseRange(null);
      if (anchor.peek()) return change({ from: undefined }, true);
      return pinned.peek() !== null && change({ time: undefined }, true);
    },
  };
  const wanted = keys[event.key];
  return wanted !== undefined && wanted() !== false;
}
