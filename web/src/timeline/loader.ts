/** Keeps what the timeline draws: asks for what is in view, one question at a time, and the newest wish wins. */

import type { Columns, Source } from "../source/source";
import { type Boxes, type LabelOf, split } from "./boxes";
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
export function valueAt(curve: Curve, time: number): number | undefined {
  let low = 0;
  let high = curve.time.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((curve.time[middle] ?? 0) <= time) low = middle + 1;
    else high = middle;
  }
  return low ? curve.last[low - 1] : undefined;
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
  private readonly near = new Map<number, Boxes>();
  private readonly all = new Map<number, Boxes>();
  private readonly curves = new Map<number, Curve>();
  private readonly allCurves = new Map<number, Curve>();
  private wish: Wish | undefined;
  private busy = false;
  private counting = false;
  private paused = Number.NEGATIVE_INFINITY;
  private ended = false;

  constructor(
    private readonly source: Source,
    private readonly whole: View,
    private readonly labelOf: LabelOf,
    /** Called when there is more to draw. */
    private readonly arrived: () => void,
    private readonly failed: (error: unknown) => void,
  ) {}

  want(wish: Wish): void {
    this.wish = wish;
    this.next();
  }

  /** What is there of a track: the coarse whole first, then what fits the view best. */
  boxes(track: number): readonly Boxes[] {
    return kept(this.all.get(track), this.near.get(track));
  }

  counter(track: number): readonly Curve[] {
    return kept(this.allCurves.get(track), this.curves.get(track));
  }

  /** Whether nothing has come yet. */
  get empty(): boolean {
    return this.near.size === 0 && this.curves.size === 0;
  }

  end(): void {
    this.ended = true;
  }

  private next(): void {
    if (this.busy || this.ended || !this.wish || performance.now() < this.paused + PAUSE_MS) return;
    const question = missing(this.wish, this.whole, (track) => this.near.get(track)) ?? null;
    if (question) this.ask(question);
    else {
      this.askCounters(this.wish);
      this.askAll(this.wish);
    }
  }

  private ask(question: Question): void {
    const { view, width, tracks } = question;
    const answer = this.source.columns("window", {
      start: view.start,
      end: view.end,
      width,
      tracks: tracks.join(),
    });
    this.follow(answer, (columns) => {
      const pixel = (view.end - view.start) / width;
      for (const [track, boxes] of split(columns, tracks, view, pixel, this.labelOf)) {
        this.near.set(track, boxes);
        if (holds(view, this.whole)) this.all.set(track, boxes);
      }
    });
  }

  /** The coarse whole of what is in view, for when the view moves faster than answers come. */
  private askAll(wish: Wish): void {
    const tracks = wish.tracks.filter((track) => !this.all.has(track));
    if (!tracks.length) return;
    const view = this.whole;
    const query = { start: view.start, end: view.end, width: ALL_PIXELS, tracks: tracks.join() };
    this.follow(this.source.columns("window", query), (columns) => {
      const pixel = (view.end - view.start) / ALL_PIXELS;
      for (const [track, boxes] of split(columns, tracks, view, pixel, this.labelOf))
        this.all.set(track, boxes);
    });
  }

  /** Counters are drawn stretched while the view moves, so boxes never wait for them. */
  private askCounters(wish: Wish): void {
    const lacking = wish.counters.filter(({ id }) => !serves(this.curves.get(id), wish));
    if (this.counting || !lacking.length) return;
    this.counting = true;
    const { view, width } = asked(wish, this.whole);
    const answers = lacking.map(async ({ id, values }) => {
      const columns = await this.source.columns("counter", {
        track: id,
        start: view.start,
        end: view.end,
        width,
      });
      if (this.ended) return;
      const whole = columns.rows >= values;
      const curve: Curve = {
        view: whole ? this.whole : view,
        pixel: (view.end - view.start) / width,
        whole,
        time: columns.numbers("time"),
        low: columns.numbers("low"),
        high: columns.numbers("high"),
        last: columns.numbers("last"),
      };
      this.curves.set(id, curve);
      if (holds(curve.view, this.whole)) this.allCurves.set(id, curve);
    });
    Promise.all(answers)
      .then(() => {
        this.counting = false;
        if (this.ended) return;
        this.arrived();
        this.next();
      })
      .catch((error: unknown) => {
        this.counting = false;
        this.fail(error);
      });
  }

  private follow(answer: Promise<Columns>, take: (columns: Columns) => void): void {
    this.busy = true;
    answer
      .then((columns) => {
        if (this.ended) return;
        take(columns);
        this.busy = false;
        this.arrived();
        this.next();
      })
      .catch((error: unknown) => {
        this.busy = false;
        this.fail(error);
      });
  }

  private fail(error: unknown): void {
    this.paused = performance.now();
    if (!this.ended) this.failed(error);
  }
}

interface Question {
  view: View;
  width: number;
  tracks: number[];
}

/** What has to be asked for a wish, or nothing. */
export function missing(
  wish: Wish,
  whole: View,
  have: (track: number) => Boxes | undefined,
): Question | undefined {
  const tracks = wish.tracks.filter((track) => !serves(have(track), wish));
  return tracks.length ? { ...asked(wish, whole), tracks } : undefined;
}

/** Whether an answer is good enough for the view. */
export function serves(
  have: { view: View; pixel: number; whole?: boolean } | undefined,
  wish: Wish | undefined,
): boolean {
  if (!have || !wish) return false;
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

function kept<Kind>(...values: (Kind | undefined)[]): Kind[] {
  const [all, near] = values;
  if (all === near) return all === undefined ? [] : [all];
  return [all, near].filter((value): value is Kind => value !== undefined);
}
