/** The spans and runs that a report carries, laid out in rows. */

import { type Laid, lowest, rowsOf } from "../source/lod";
import type { ColumnFacts } from "../source/source";
import type { Integers, Pack } from "./packed";

/** What a report tells of its timeline; made in `viewer/_report_spans.py`. */
export interface TimelineFacts {
  kinds: readonly string[];
  /** The spans first, then runs of functions and modules; `kind` is that of all its items, or empty. */
  stores: readonly { prefix: string; kind: string }[];
  /** For each track its number, its store, its first row there, and how many rows it has. */
  tracks: readonly (readonly [number, number, number, number])[];
  tables: Readonly<Record<string, readonly ColumnFacts[]>>;
}

export interface Track {
  id: number;
  store: Store;
  first: number;
  count: number;
}

/** Items of the timeline: in the order in which they were packed, and laid out in rows. */
export interface Store {
  /** True for spans, false for runs. */
  spans: boolean;
  start: Float64Array;
  duration: Float64Array;
  row: Integers;
  /** The place of its name among all names. */
  name: Integers;
  /** The place of the kind of each item among all kinds. */
  kindOf(item: number): number;
  rows: Laid;
  /** The track of each row. */
  tracks: Track[];
}

const LONGEST_NAME = 2000;

export class Spans {
  /** Full names, and as they fit on a page. */
  readonly names: readonly string[];
  readonly shownNames: readonly string[];
  readonly kinds: readonly string[];
  readonly stores: readonly Store[];
  readonly tracks: ReadonlyMap<number, Track>;
  readonly count: number;
  readonly thread: Integers;
  readonly kind: Integers;
  readonly start: Float64Array;
  readonly duration: Float64Array;
  readonly name: Integers;
  readonly beside: Integers;
  /** The span around each, and the innermost call around it; -1 for none. */
  readonly parent: Int32Array;
  readonly caller: Int32Array | null;
  readonly own: Float64Array;
  readonly #call: Integers | null;
  readonly #ids: Integers | null;

  constructor(
    pack: Pack,
    readonly facts: TimelineFacts,
  ) {
    this.names = pack.json<string[]>("names");
    this.shownNames = this.names.map((name) =>
      name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME)}…` : name,
    );
    this.kinds = facts.kinds;
    this.stores = facts.stores.map(({ prefix, kind }) => this.#store(pack, prefix, kind));
    const spans = this.stores[0];
    if (!spans) throw new Error("the report has no spans");
    ({ start: this.start, duration: this.duration, name: this.name } = spans);
    this.count = this.start.length;
    this.thread = pack.integers("thread");
    this.kind = pack.integers("kind");
    this.beside = pack.integers("beside");
    this.parent = pack.before("parent");
    this.caller = pack.has("caller") ? pack.before("caller") : null;
    this.#call = pack.has("call") ? pack.integers("call") : null;
    this.#ids = pack.has("id") ? pack.integers("id") : null;
    const tracks = facts.tracks.flatMap(([id, number, first, count]) => {
      const store = this.stores[number];
      return store ? [{ id, store, first, count }] : [];
    });
    this.tracks = new Map(tracks.map((track) => [track.id, track]));
    for (const track of tracks) track.store.tracks.fill(track, track.first, track.first + track.count);
    this.own = this.#ownTimes(pack.integers("own"));
  }

  /** The tracks that a question names; all without naming any. */
  chosen(text: string | undefined): Track[] {
    if (text === undefined) return [...this.tracks.values()];
    const wanted = new Set(text.split(",").map(Number));
    return [...wanted].flatMap((id) => this.tracks.get(id) ?? []);
  }

  /** The number by which the whole trace knows a span. */
  idOf(place: number): number {
    return place < 0 ? -1 : this.#ids ? (this.#ids[place] as number) : place;
  }

  /** The place of a span of the trace, or -1 where the report does not hold it. */
  placeOf(id: number): number {
    if (!this.#ids) return id >= 0 && id < this.count ? id : -1;
    const place = lowest(this.#ids, 0, this.count, id);
    return this.#ids[place] === id ? place : -1;
  }

  /** The track and the row of a span, or of an item of another store. */
  where(item: number, store = this.stores[0]): { track: number; row: number } {
    const row = store?.row[item] ?? -1;
    const track = store?.tracks[row];
    return track ? { track: track.id, row: row - track.first } : { track: -1, row: -1 };
  }

  kindName(place: number): string {
    return this.kinds[this.kind[place] as number] ?? "";
  }

  nameOf(place: number): string {
    return this.names[this.name[place] as number] ?? "";
  }

  /** Those whose own time a span's is not: work is not made shorter by the calls in it, but a call by the work in it. */
  outer(place: number): readonly [number, number] {
    const parent = this.parent[place] as number;
    const { caller } = this;
    const call = this.#call;
    if (!call || !caller) return [parent, -1];
    if (call[place]) return [parent >= 0 && call[parent] ? parent : -1, -1];
    const around = caller[place] as number;
    return [parent, (parent >= 0 ? (caller[parent] as number) : -1) !== around ? around : -1];
  }

  #store(pack: Pack, prefix: string, kind: string): Store {
    const kinds = kind ? null : pack.integers("kind");
    const alike = this.kinds.indexOf(kind);
    const row = pack.integers(`${prefix}row`);
    const start = pack.floats(`${prefix}start`);
    const duration = pack.floats(`${prefix}duration`);
    const rows = rowsOf(row, start, duration);
    return {
      spans: !kind,
      start,
      duration,
      row,
      rows,
      tracks: Array(rows.edges.length),
      name: pack.integers(`${prefix}name`),
      kindOf: kinds ? (item) => kinds[item] as number : () => alike,
    };
  }

  /** The report holds only what differs from the times that follow from who is in whom. */
  #ownTimes(differences: Integers): Float64Array {
    const own = new Float64Array(this.count);
    for (let place = 0; place < this.count; place++)
      own[place] =
        (differences[place] as number) + (this.beside[place] ? 0 : (this.duration[place] as number));
    for (let place = 0; place < this.count; place++)
      for (const outer of this.outer(place))
        if (outer >= 0) own[outer] = (own[outer] as number) - (this.duration[place] as number);
    return own;
  }
}
