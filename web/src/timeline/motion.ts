/** How the view moves: glides to a wanted place, and goes on for as long as a key is held. */

import { between, panned, same, type View, zoomed } from "./view";

export type Move = "closer" | "farther" | "earlier" | "later";

const GLIDE_MS = 190;
/** A tap moves as far as holding a key this long. */
const LEAST_HOLD_MS = 120;
/** In e-folds of the width, and in widths, for each second. */
const ZOOM_PER_S = 2.6;
const PAN_PER_S = 1.3;

export class Motion {
  #glide: { from: View; to: View; since: number } | undefined;
  readonly #held = new Map<Move, { since: number; until: number }>();
  #last = 0;

  readonly #whole: View;
  readonly #still: () => boolean;

  constructor(
    whole: View,
    /** Where no motion is wished for, the view jumps. */
    still: () => boolean,
  ) {
    this.#whole = whole;
    this.#still = still;
  }

  get moving(): boolean {
    return this.#glide !== undefined || this.#held.size > 0;
  }

  /** Where the view is going, if it glides. */
  get aim(): View | undefined {
    return this.#glide?.to;
  }

  glideTo(from: View, to: View, now: number): View {
    this.#held.clear();
    if (this.#still() || same(from, to)) {
      this.#glide = undefined;
      return to;
    }
    this.#glide = { from, to, since: now };
    return from;
  }

  hold(move: Move, now: number): void {
    this.#glide = undefined;
    if (this.#held.size === 0) this.#last = now;
    const before = this.#held.get(move);
    this.#held.set(move, { since: before?.since ?? now, until: Number.POSITIVE_INFINITY });
  }

  release(move: Move): void {
    const held = this.#held.get(move);
    if (held) held.until = held.since + LEAST_HOLD_MS;
  }

  stop(): void {
    this.#glide = undefined;
    this.#held.clear();
  }

  /** The view at a time; `at` is the time on the screen around which keys zoom. */
  step(view: View, at: number, now: number): View {
    if (this.#glide) {
      const share = Math.min((now - this.#glide.since) / GLIDE_MS, 1);
      const { from, to } = this.#glide;
      if (share >= 1) this.#glide = undefined;
      return between(from, to, 1 - (1 - share) ** 3);
    }
    const before = this.#last;
    this.#last = now;
    let next = view;
    for (const [move, { until }] of [...this.#held]) {
      const seconds = Math.max(Math.min(now, until) - before, 0) / 1000;
      // A page that was not drawn for a while does not leap.
      next = moved(next, move, Math.min(seconds, 0.1), at, this.#whole);
      if (now >= until) this.#held.delete(move);
    }
    return next;
  }
}

function moved(view: View, move: Move, seconds: number, at: number, whole: View): View {
  if (move === "closer") return zoomed(view, Math.exp(-ZOOM_PER_S * seconds), at, whole);
  if (move === "farther") return zoomed(view, Math.exp(ZOOM_PER_S * seconds), at, whole);
  const by = (view.end - view.start) * PAN_PER_S * seconds;
  return panned(view, move === "earlier" ? -by : by, whole);
}
