/** The state of the timeline: what is shown, chosen and looked for. The address holds what of it is worth keeping. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals";
import { words } from "../parts/answer";
import { change, route } from "../router";
import type { Source } from "../source/source";
import { rowsWithin } from "./boxes";
import { type Details, placeOf } from "./details";
import { type Group, groupKey, type Layout, laneOf, layout, matches, type Tracks, trackKey } from "./layout";
import { Loader } from "./loader";
import { Motion } from "./motion";
import { type Known, neighbor, type Side } from "./neighbors";
import type { Arrow, Place } from "./paint-frame";
import { Palette } from "./palette";
import { Search } from "./search";
import { clamped, fitted, parsedView, revealed, same, type View } from "./view";

const REST_MS = 250;
/** Around a moment that is pointed to, this part of the trace is shown. */
const PINNED_PART = 40;
const MOST_ARROWS = 400;

/** A box under the pointer. */
export interface Hovered extends Place {
  span: number;
  label: number;
  count: number;
  busy: number;
  /** Where the pointer is, in CSS pixels of the tracks' area. */
  x: number;
  y: number;
}

/** A span from which times are measured. */
export interface Anchor extends Known {
  name: string;
}

export class Timeline {
  readonly view;
  /** CSS pixels of the tracks that are scrolled out of sight, and the size of what is in sight. */
  readonly scroll = signal(0);
  readonly width = signal(900);
  readonly height = signal(400);
  /** Where the pointer is on the tracks, in CSS pixels; null elsewhere and while something is dragged. */
  readonly pointer = signal<{ x: number; y: number } | null>(null);
  /** The time under the pointer. */
  readonly cursor = signal<number | null>(null);
  readonly hovered = signal<Hovered | null>(null);
  /** The value of the counter under the pointer. */
  readonly reading = signal<{ track: number; value: number } | null>(null);
  readonly chosen = signal<Known | null>(null);
  readonly details = signal<Details | null>(null);
  readonly problem = signal("");
  readonly range = signal<View | null>(null);
  /** A moment that another page points to. */
  readonly pinned = signal<number | null>(null);
  readonly turned = signal<ReadonlySet<string>>(new Set());
  /** Tracks that stay at the top, and those that are hidden. */
  readonly atTop = signal<readonly number[]>([]);
  readonly hidden = signal<ReadonlySet<number>>(new Set());
  /** Only tracks whose names have this text are shown. */
  readonly filter = signal("");
  /** The span from which times are measured. */
  readonly anchor = signal<Anchor | null>(null);
  /** How many rows of each track had spans in sight since the view last jumped. */
  readonly seen = signal<ReadonlyMap<number, number>>(new Map());
  readonly layout: ReadonlySignal<Layout>;
  readonly allArrows = signal(false);
  readonly arrows = signal<readonly Arrow[]>([]);
  /** Counts up when there is something new to be drawn. */
  readonly arrived = signal(0);
  readonly palette: Palette;
  readonly loader: Loader;
  readonly motion: Motion;
  readonly search: Search;
  readonly whole: View;
  /** What is shown at first: a median step, else all. */
  readonly home: View;
  readonly #unbind: () => void;
  #resting: ReturnType<typeof setTimeout> | undefined;
  #written: string | undefined;
  #arrowsOf = "";
  /** A span that was chosen where it is in sight already. */
  #clicked = -1;
  #jumped = false;

  constructor(
    readonly source: Source,
    readonly tracks: Tracks,
    color: (name: string) => string,
    still: () => boolean,
    /** The one shown so far, where a live trace has grown: what was chosen and looked at stays. */
    before?: Timeline,
  ) {
    const first = tracks.start_ns ?? 0;
    this.whole = { start: first, end: Math.max(tracks.duration_ns, first + 1) };
    this.home = homeOf(tracks, this.whole);
    this.palette = new Palette(color);
    this.motion = new Motion(this.whole, still);
    this.layout = computed(() => {
      const [turned, pinned, hidden] = [this.turned.value, this.atTop.value, this.hidden.value];
      const filter = this.filter.value;
      // Only pinned tracks depend on what is scrolled.
      const scroll = pinned.length ? this.scroll.value : 0;
      const [seen, room] = [this.seen.value, this.height.value];
      return layout(tracks.groups, { turned, pinned, hidden, filter, seen, room, scroll });
    });
    const query = route.peek().query;
    this.view = signal<View>(clamped(parsedView(query["start"], query["end"]) ?? this.home, this.whole));
    this.#written = `${query["start"]}-${query["end"]}`;
    const arrived = () => {
      this.problem.value = "";
      this.arrived.value += 1;
    };
    this.loader = new Loader(source, this.whole, this.palette.label, arrived, this.fail);
    this.search = new Search(source, (span) => this.choose(span, true));
    if (before) this.#goOnFrom(before);
    this.#unbind = effect(() => this.#follow(route.value.page === "timeline" ? route.value.query : {}));
  }

  /** Tell what went wrong. */
  readonly fail = (error: unknown): void => {
    this.problem.value = words(error);
  };

  end(): void {
    clearTimeout(this.#resting);
    this.loader.end();
    this.search.end();
    this.#unbind();
  }

  #goOnFrom(before: Timeline): void {
    const view = before.view.peek();
    this.view.value = same(view, before.whole) ? this.whole : clamped(view, this.whole);
    this.scroll.value = before.scroll.peek();
    this.chosen.value = before.chosen.peek();
    this.anchor.value = before.anchor.peek();
    this.pinned.value = before.pinned.peek();
  }

  // The view

  /** Show a stretch of time; the address follows when the view rests. */
  show(view: View): void {
    if (same(view, this.view.peek())) return;
    this.view.value = clamped(view, this.whole);
    this.problem.value = "";
    clearTimeout(this.#resting);
    this.#resting = setTimeout(() => this.#rest(), REST_MS);
  }

  glide(view: View): void {
    const next = this.motion.glideTo(this.view.peek(), clamped(view, this.whole), performance.now());
    this.#jumped = true;
    this.show(next);
    this.arrived.value += 1;
  }

  /** Make room for the rows that have come into sight. What lies deeper only elsewhere takes none, so after a jump rows may go. */
  makeRoom(jumped = false): void {
    const before = this.seen.peek();
    const view = this.view.peek();
    const now = new Map(before);
    for (const { track } of this.layout.peek().lanes) {
      if (track.sort === "counter") continue;
      const answers = this.loader.boxes(track.id);
      const rows = Math.max(...answers.slice(-1).map((boxes) => rowsWithin(boxes, view)), 1);
      const kept = jumped ? 1 : (before.get(track.id) ?? 1);
      if (answers.length) now.set(track.id, Math.max(rows, kept));
    }
    if (now.size !== before.size || [...now].some(([track, rows]) => before.get(track) !== rows))
      this.seen.value = now;
  }

  showAll(): void {
    this.glide(this.whole);
  }

  /** Fit the chosen range or span into the view. */
  fit(): void {
    const range = this.range.peek();
    const chosen = this.chosen.peek();
    if (chosen) this.glide(fitted(chosen.start, chosen.start + chosen.duration, this.whole));
    else if (range) this.glide(fitted(range.start, range.end, this.whole));
  }

  // What is chosen

  /** Choose a span, or none. `anew` makes it an entry of the history. */
  choose(span: number | null, anew: boolean): void {
    change({ span: span === null ? undefined : String(span) }, !anew);
  }

  /** Choose the box under the pointer, which is known already; of what is no span, the time it takes. */
  chooseBox(box: Hovered | null): void {
    if (box && box.span >= 0) {
      const { span, track, row, start, duration } = box;
      if (box.count === 1) this.chosen.value = { span, track, row, start, duration };
      this.#clicked = span;
      this.choose(span, true);
    } else if (box) this.chooseRange({ start: box.start, end: box.start + Math.max(box.duration, 1) });
    else if (this.details.peek()) this.choose(null, false);
    else this.chooseRange(null);
  }

  async chooseBeside(side: Side): Promise<void> {
    const chosen = this.chosen.peek();
    if (!chosen) return;
    try {
      const found = await neighbor(this.source, chosen, side, this.whole);
      if (found !== null && this.chosen.peek()?.span === chosen.span) this.choose(found, false);
    } catch (error) {
      this.fail(error);
    }
  }

  chooseRange(range: View | null): void {
    this.range.value = range;
    const written = range && `${Math.round(range.start)}-${Math.round(range.end)}`;
    change({ range: written ?? undefined, ...(range ? { span: undefined } : {}) }, range === null);
  }

  /** Close all processes, each to one row, or open them all. */
  foldAll(fold: boolean): void {
    const turned = new Set(this.turned.peek());
    for (const index of this.tracks.groups.keys()) {
      if (fold) turned.add(groupKey(index));
      else turned.delete(groupKey(index));
    }
    change({ turned: [...turned].join(".") || undefined }, true);
  }

  turn(key: string): void {
    const turned = new Set(this.turned.peek());
    if (!turned.delete(key)) turned.add(key);
    change({ turned: [...turned].join(".") || undefined }, true);
  }

  /** Keep a track at the top, or no longer. */
  pin(id: number): void {
    const pinned = this.atTop.peek();
    const next = pinned.includes(id) ? pinned.filter((one) => one !== id) : [...pinned, id];
    change({ pins: next.join(".") || undefined }, true);
  }

  /** Hide a track, or show all again. */
  hide(id: number | null): void {
    const next = id === null ? [] : [...this.hidden.peek(), id];
    change({ hidden: next.join(".") || undefined }, true);
  }

  /** Measure from the chosen span on; if it is measured from that one already, no longer. */
  measure(): boolean {
    const span = this.chosen.peek()?.span;
    if (span === undefined) return false;
    change({ from: span === this.anchor.peek()?.span ? undefined : String(span) }, true);
    return true;
  }

  /** Bring a row into sight. */
  #scrollTo(place: Place): void {
    const layout = this.layout.peek();
    const lane = laneOf(layout, place.track);
    const scroll = this.scroll.peek();
    const height = this.height.peek();
    if (!lane) return;
    const top = lane.top + place.row * lane.rowHeight;
    if (lane.pinned) return;
    if (top >= scroll + layout.held + 10 && top + lane.rowHeight + 10 <= scroll + height) return;
    const free = height - layout.held;
    this.scroll.value = Math.max(0, Math.min(top - layout.held - free / 3, layout.height - height));
  }

  /** Make room for the row of a place. */
  #deepen({ track, row }: Place): void {
    const seen = this.seen.peek();
    if ((seen.get(track) ?? 0) <= row) this.seen.value = new Map(seen).set(track, row + 1);
  }

  // Following the address

  #follow(query: Readonly<Record<string, string>>): void {
    const written = `${query["start"]}-${query["end"]}`;
    if (written !== this.#written) {
      this.#written = written;
      // Not to be bound to the view: only the address matters here.
      queueMicrotask(() => this.glide(parsedView(query["start"], query["end"]) ?? this.home));
    }
    const [from, to] = (query["range"] ?? "").split("-");
    const range = parsedView(from || undefined, to || undefined) ?? null;
    const before = this.range.peek();
    if (range?.start !== before?.start || range?.end !== before?.end) this.range.value = range;
    const turned = query["turned"] ?? "";
    if ([...this.turned.peek()].join(".") !== turned)
      this.turned.value = new Set(turned.split(".").filter(Boolean));
    const pins = query["pins"] ?? "";
    if (this.atTop.peek().join(".") !== pins) this.atTop.value = numbered(pins);
    const hidden = query["hidden"] ?? "";
    if ([...this.hidden.peek()].join(".") !== hidden) this.hidden.value = new Set(numbered(hidden));
    this.filter.value = query["tracks"] ?? "";
    this.allArrows.value = query["arrows"] === "all";
    this.#measureFrom(query["from"]);
    this.#pin(query["time"]);
    this.search.follow(query["find"] ?? "");
    const span = Number(query["span"] || -1);
    if (!Number.isSafeInteger(span) || span < 0) {
      this.chosen.value = null;
      this.details.value = null;
    } else if (span !== this.details.peek()?.id) this.#load(span);
    queueMicrotask(() => this.#lookForArrows());
  }

  #pin(text: string | undefined): void {
    const time = text ? Number(text) : Number.NaN;
    if (!Number.isFinite(time)) this.pinned.value = null;
    else if (time !== this.pinned.peek()) {
      this.pinned.value = time;
      const { start, end } = this.view.peek();
      const near = (this.whole.end - this.whole.start) / PINNED_PART;
      const seen = time > start && time < end && end - start <= near;
      if (!seen) queueMicrotask(() => this.glide({ start: time - near / 2, end: time + near / 2 }));
    }
  }

  #measureFrom(text: string | undefined): void {
    const span = text ? Number(text) : Number.NaN;
    if (!Number.isSafeInteger(span)) this.anchor.value = null;
    else if (span !== this.anchor.peek()?.span) {
      const current = () => route.peek().query["from"] === text;
      this.source.span(span).then(
        (value) => {
          if (current()) this.anchor.value = { span, name: value.name, ...placeOf(value) };
        },
        (error: unknown) => {
          if (current()) this.fail(error);
        },
      );
    }
  }

  #load(span: number): void {
    const known = this.chosen.peek()?.span === span || this.#clicked === span;
    this.#clicked = -1;
    this.details.value = { id: span };
    const current = () => this.details.peek()?.id === span;
    this.source.span(span).then(
      (value) => {
        if (!current()) return;
        this.details.value = { id: span, value };
        const place = placeOf(value);
        this.chosen.value = { span, ...place };
        if (!known) this.#reveal(place);
      },
      (error: unknown) => {
        if (!current()) return;
        this.details.value = { id: span, error: words(error) };
        this.chosen.value = null;
      },
    );
  }

  /** Scroll and move the view to where a place can be seen; its track is shown and opened. */
  #reveal(place: Place): void {
    if (this.hidden.peek().has(place.track)) {
      const others = [...this.hidden.peek()].filter((one) => one !== place.track);
      change({ hidden: others.join(".") || undefined }, true);
    }
    const group = this.tracks.groups.findIndex((one) => one.tracks.some((track) => track.id === place.track));
    const track = this.tracks.groups[group]?.tracks.find((one) => one.id === place.track);
    if (track && !matches(this.tracks.groups[group] as Group, track, this.filter.peek()))
      change({ tracks: undefined }, true);
    const lane = laneOf(this.layout.peek(), place.track);
    if (group >= 0 && (!lane || lane.folded)) this.turn(groupKey(group));
    if (laneOf(this.layout.peek(), place.track)?.open === false) this.turn(trackKey(place.track));
    this.#deepen(place);
    const aim = this.motion.aim ?? this.view.peek();
    const next = revealed(aim, place.start, place.start + place.duration, this.whole, this.width.peek());
    if (!same(next, aim)) this.glide(next);
    this.#scrollTo(place);
  }

  /** The view rests: keep it in the address. */
  #rest(): void {
    const { start, end } = this.view.peek();
    if (this.motion.moving) {
      this.#resting = setTimeout(() => this.#rest(), REST_MS);
      return;
    }
    if (this.#jumped) {
      this.#jumped = false;
      this.makeRoom(true);
      const chosen = this.chosen.peek();
      if (chosen) this.#scrollTo(chosen);
    }
    const digits = end - start < 10_000 ? 1 : 0;
    const atHome = Math.abs(start - this.home.start) < 1 && Math.abs(end - this.home.end) < 1;
    const texts = { start: start.toFixed(digits), end: end.toFixed(digits) };
    const query = atHome ? { start: undefined, end: undefined } : texts;
    this.#written = `${query.start}-${query.end}`;
    change(query, true);
    this.#lookForArrows();
  }

  #lookForArrows(): void {
    if (!this.allArrows.peek()) {
      if (this.arrows.peek().length) this.arrows.value = [];
      this.#arrowsOf = "";
      return;
    }
    const tracks = this.layout.peek().lanes.map((lane) => lane.track);
    const asked = tracks.filter((track) => track.sort === "thread" || track.sort === "stream");
    const ids = asked.map((track) => track.id).join();
    const query = { ...this.view.peek(), tracks: ids, limit: MOST_ARROWS };
    const key = JSON.stringify(query);
    if (key === this.#arrowsOf) return;
    this.#arrowsOf = key;
    this.source.table("arrows", query).then(
      (answer) => {
        if (this.#arrowsOf !== key) return;
        const places = (end: string) => {
          const [track, row, time] = ["track", "row", "time"].map((name) => answer.numbers(`${end}_${name}`));
          return (at: number) =>
            ({ track: track?.[at], row: row?.[at], start: time?.[at], duration: 0 }) as Place;
        };
        const [from, to] = [places("from"), places("to")];
        this.arrows.value = Array.from({ length: answer.rows }, (_, at) => ({ from: from(at), to: to(at) }));
      },
      (error: unknown) => {
        if (this.#arrowsOf === key) this.fail(error);
      },
    );
  }
}

/** What a trace is first shown as: a step like most others, where there are several. */
function homeOf(tracks: Tracks, whole: View): View {
  const [start = 0, end = 0] = tracks.median_step ?? [];
  const isPart = start >= whole.start && end <= whole.end && end - start < (whole.end - whole.start) / 2;
  return isPart && end > start ? fitted(start, end, whole) : whole;
}

/** Numbers as they stand in an address. */
function numbered(text: string): number[] {
  return text.split(".").filter(Boolean).map(Number).filter(Number.isSafeInteger);
}
