/** Keeps what the timeline draws: asks for what is in view, one question at a time, and the newest wish wins. */

import type { Source } from "../source/source";
import { lowest } from "../source/window";
import { type Boxes, type LabelOf, windowOf } from "./boxes";
import type { View } from "./view";

/** What should be there to be drawn. */
export interface Wish {
  view: View;
  /** Of the whole view, in CSS pixels. */
  pixels: number;
  /** Tracks of boxes, those to be had first in front. */
  tracks: readonly number[];
  /** Counters, each with how many values it has in all. */
  counters: readonly { id: number; values: number }[];
}

/** A counter over a stretch of time: the lowest and highest value around each time, and the one it has then. */
export interface Curve {
  readonly view: View;
  readonly pixel: number;
  /** True where every value came by itself. */
  readonly whole: boolean;
  readonly time: ArrayLike<number>;
  readonly low: ArrayLike<number>;
  readonly high: ArrayLike<number>;
  readonly last: ArrayLike<number>;
}

/** The value of a counter at a time: the last one taken until then. */
export function valueAt({ time, last }: Curve, at: number): number | undefined {
  return last[lowest(time, 0, time.length, at, true) - 1];
}

/** How much beyond each side of the view is asked for, as a share of it: so that a pan finds it there. */
const BEYOND = 0.25;
/** An answer serves as long as its pixels are at most this much wider or thinner than those of the screen. */
const COARSER = 1.25;
const FINER = 5;
/** After an answer that could not be had, nothing is asked for this long. */
const PAUSE_MS = 2000;
/** Pixels of the whole trace, kept to be drawn where nothing closer has come yet. */
const ALL_PIXELS = 800;

export class Loader {
  readonly #near = new Map<number, Boxes | Curve>();
  readonly #all = new Map<number, Boxes | Curve>();
  #wish: Wish | undefined;
  #busy = false;
  #counting = false;
  #paused = Number.NEGATIVE_INFINITY;
  #ended = false;
  readonly #source: Source;
  readonly #whole: View;
  readonly #labelOf: LabelOf;
  readonly #arrived: () => void;
  readonly #failed: (error: unknown) => void;

  constructor(
    source: Source,
    whole: View,
    labelOf: LabelOf,
    /** Called when there is more to draw. */
    arrived: () => void,
    failed: (error: unknown) => void,
  ) {
    this.#source = source;
    this.#whole = whole;
    this.#labelOf = labelOf;
    this.#arrived = arrived;
    this.#failed = failed;
  }

  want(wish: Wish): void {
    this.#wish = wish;
    this.#next();
  }

  /** What is there of a track: the coarse whole first, then what fits the view best. */
  boxes(track: number): readonly Boxes[] {
    return this.#held(track) as Boxes[];
  }

  counter(track: number): readonly Curve[] {
    return this.#held(track) as Curve[];
  }

  /** Whether nothing has come yet. */
  get empty(): boolean {
    return this.#near.size === 0;
  }

  end(): void {
    this.#ended = true;
  }

  #held(track: number): (Boxes | Curve | undefined)[] {
    const kept = new Set([this.#all.get(track), this.#near.get(track)]);
    return [...kept].filter((one) => one);
  }

  #next(): void {
    const wish = this.#wish;
    if (this.#busy || this.#ended || !wish || performance.now() < this.#paused + PAUSE_MS) return;
    const question = missing(wish, this.#whole, (track) => this.#near.get(track));
    this.#askBoxes(wish, question);
    // Counters are drawn stretched while the view moves, so boxes never wait for them.
    if (!this.#counting) this.#askCounters(wish);
  }

  #askBoxes(wish: Wish, question: Question | undefined): void {
    // The coarse whole is for when the view moves faster than answers come.
    const coarse = wish.tracks.filter((track) => !this.#all.has(track));
    const { view, width, tracks } = question ?? { view: this.#whole, width: ALL_PIXELS, tracks: coarse };
    if (!tracks.length) return;
    this.#busy = true;
    this.#follow(
      windowOf(this.#source, view, width, tracks, this.#labelOf),
      (found) => {
        for (const [track, boxes] of found) {
          if (question) this.#near.set(track, boxes);
          if (holds(view, this.#whole)) this.#all.set(track, boxes);
        }
      },
      () => {
        this.#busy = false;
      },
    );
  }

  #askCounters(wish: Wish): void {
    const lacking = wish.counters.filter(({ id }) => !serves(this.#near.get(id), wish));
    if (!lacking.length) return;
    this.#counting = true;
    const { view, width } = asked(wish, this.#whole);
    this.#follow(
      this.#source.counters({ ...view, width, tracks: lacking.map(({ id }) => id) }),
      (found) => {
        found.forEach((columns, index) => {
          const { id = -1, values = 0 } = lacking[index] ?? {};
          const whole = columns.rows >= values;
          const curve: Curve = {
            view: whole ? this.#whole : view,
            pixel: (view.end - view.start) / width,
            whole,
            time: columns.numbers("time"),
            low: columns.numbers("low"),
            high: columns.numbers("high"),
            last: columns.numbers("last"),
          };
          this.#near.set(id, curve);
          if (holds(curve.view, this.#whole)) this.#all.set(id, curve);
        });
      },
      () => {
        this.#counting = false;
      },
    );
  }

  #follow<Found>(answer: Promise<Found>, take: (found: Found) => void, done: () => void): void {
    answer
      .then((found) => {
        done();
        if (this.#ended) return;
        take(found);
        this.#arrived();
        this.#next();
      })
      .catch((error: unknown) => {
        done();
        this.#paused = performance.now();
        if (!this.#ended) this.#failed(error);
      });
  }
}

type Answered = Pick<Boxes, "view" | "pixel" | "whole">;

interface Question {
  view: View;
  width: number;
  tracks: number[];
}

/** What has to be asked for a wish, or nothing. */
export function missing(
  wish: Wish,
  whole: View,
  have: (track: number) => Answered | undefined,
): Question | undefined {
  const tracks = wish.tracks.filter((track) => !serves(have(track), wish));
  return tracks.length ? { ...asked(wish, whole), tracks } : undefined;
}

/** Whether an answer is good enough for the view. */
export function serves(have: Answered | undefined, wish: Wish): boolean {
  if (!have) return false;
  const { view } = wish;
  const pixel = (view.end - view.start) / wish.pixels;
  // A pixel of tolerance: both ends were rounded to a grid.
  if (have.view.start > view.start + pixel || have.view.end < view.end - pixel) return false;
  if (have.whole && pixel <= have.pixel * COARSER) return true;
  return have.pixel <= pixel * COARSER && have.pixel * FINER >= pixel;
}

/** The stretch around the view that is asked for. Its pixels lie on a grid, so that a pan shows the same boxes. */
export function asked(wish: Wish, whole: View): { view: View; width: number } {
  const { view, pixels } = wish;
  const pixel = (view.end - view.start) / pixels;
  const beyond = Math.ceil(pixels * BEYOND);
  const first = Math.max(Math.floor(view.start / pixel) - beyond, Math.floor(whole.start / pixel));
  const last = Math.min(Math.ceil(view.end / pixel) + beyond, Math.ceil(whole.end / pixel));
  return { view: { start: first * pixel, end: last * pixel }, width: Math.max(last - first, 1) };
}

function holds(view: View, part: View): boolean {
  return view.start <= part.start && view.end >= part.end;
}
