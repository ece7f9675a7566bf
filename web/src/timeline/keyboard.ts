/** The keys of the timeline, wherever on the page the focus is, except in a field. */

import { change } from "../router";
import { MOVES } from "./input";
import type { Timeline } from "./timeline";
import { isTyping } from "./toolbar";
import { panned } from "./view";

const SCROLL_PX = 54;

export function onKeys(timeline: Timeline, help: () => void): () => void {
  const down = (event: KeyboardEvent) => {
    if (isTyping(event) || document.querySelector("dialog[open], :popover-open") || inTable(event)) return;
    const move = MOVES[event.key.toLowerCase()];
    if (move) {
      if (!event.repeat) timeline.motion.hold(move, performance.now());
      timeline.arrived.value += 1;
    } else if (!done(timeline, event, help)) return;
    event.preventDefault();
  };
  const up = (event: KeyboardEvent) => {
    const move = MOVES[event.key.toLowerCase()];
    if (move) timeline.motion.release(move);
  };
  const blur = () => timeline.motion.stop();
  addEventListener("keydown", down);
  addEventListener("keyup", up);
  addEventListener("blur", blur);
  return () => {
    removeEventListener("keydown", down);
    removeEventListener("keyup", up);
    removeEventListener("blur", blur);
  };
}

/** A list of rows has its own arrow keys. */
function inTable(event: KeyboardEvent): boolean {
  return event.key.startsWith("Arrow") && event.target instanceof Element && !!event.target.closest(".table");
}

/** Do what a key stands for; false where it stands for nothing. */
function done(timeline: Timeline, event: KeyboardEvent, help: () => void): boolean {
  const chosen = timeline.chosen.peek();
  switch (event.key) {
    case "ArrowLeft":
    case "ArrowRight": {
      const later = event.key === "ArrowRight";
      if (chosen) void timeline.chooseBeside(later ? "after" : "before");
      else step(timeline, later ? 0.2 : -0.2);
      return true;
    }
    case "ArrowUp":
    case "ArrowDown": {
      const lower = event.key === "ArrowDown";
      if (chosen) void timeline.chooseBeside(lower ? "inner" : "outer");
      else timeline.scroll.value = scrolled(timeline, lower ? SCROLL_PX : -SCROLL_PX);
      return true;
    }
    case "f":
      timeline.fit();
      return true;
    case "0":
    case "Home":
      timeline.showAll();
      return true;
    case "n":
    case "N":
      timeline.search.step(event.key === "n" ? 1 : -1, chosen?.span, timeline.view.peek().start);
      return true;
    case "r":
      if (chosen)
        timeline.chooseRange({ start: chosen.start, end: chosen.start + Math.max(chosen.duration, 1) });
      return chosen !== null;
    case "?":
      help();
      return true;
    case "Escape":
      if (timeline.details.peek()) timeline.choose(null, false);
      else if (timeline.range.peek()) timeline.chooseRange(null);
      else if (timeline.pinned.peek() !== null) change({ time: undefined }, true);
      else return false;
      return true;
    default:
      return false;
  }
}

function step(timeline: Timeline, share: number): void {
  const view = timeline.motion.aim ?? timeline.view.peek();
  timeline.glide(panned(view, (view.end - view.start) * share, timeline.whole));
}

function scrolled(timeline: Timeline, by: number): number {
  const most = timeline.layout.peek().height - timeline.height.peek();
  return Math.min(Math.max(timeline.scroll.peek() + by, 0), Math.max(most, 0));
}
