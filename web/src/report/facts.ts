/** What a report knows of each span beyond its time; made in `viewer/_report_facts.py`. */

import { lowest } from "../source/lod";
import { AnswerError, type Columns, type Query } from "../source/source";
import type { Link, SpanFacts } from "../timeline/details";
import type { Integers, Pack } from "./packed";
import type { Spans } from "./spans";
import { made, number, stretch, text } from "./window";

interface Fact {
  label: string;
  value: unknown;
  unit: string;
}

/** Either a number of one label, or the place of a group of facts that many spans share. */
interface Part {
  column: string;
  label?: string;
  unit?: string;
  /** Where the number is this, there is none. */
  absent?: number;
  /** Divided by the duration. */
  rate?: boolean;
  groups?: string;
}

export interface FactsOfSpans {
  parts: readonly Part[];
  /** A span, what another one is to it, and that other one. */
  links: readonly (readonly [number, string, number])[];
}

const MOST_LINKS = 20;
const MOST_ARROWS = 2000;
const SORTS = ["launch", "backward"] as const;

export class Facts {
  readonly #spans: Spans;
  readonly #pack: Pack;
  readonly #told: FactsOfSpans;

  constructor(spans: Spans, pack: Pack, told: FactsOfSpans) {
    this.#spans = spans;
    this.#pack = pack;
    this.#told = told;
  }

  /** The answer of `span/<id>`. */
  span(id: number): SpanFacts {
    const spans = this.#spans;
    const place = spans.placeOf(id);
    if (place < 0) throw new AnswerError(`This report does not hold the span ${id}.`);
    return {
      id,
      name: spans.nameOf(place),
      kind: spans.kindName(place),
      ...spans.where(place),
      start_ns: spans.start[place] as number,
      duration_ns: spans.duration[place] as number,
      self_ns: spans.own[place] as number,
      facts: this.#told.parts.flatMap((part) => this.#factsOf(part, place)),
      stack: this.#stack(place),
      arguments:
        this.#pack.json<Record<string, unknown>[]>("arguments")[
          this.#pack.integers("argument")[place] as number
        ] ?? {},
      links: this.#links(place),
    };
  }

  /** What looks up the value that a label has for a span; null without. */
  lookUp(label: string): (place: number) => unknown {
    for (const part of this.#told.parts) {
      if (!part.groups) continue;
      const values = this.#groupsOf(part.groups).map(
        (group) => group.find((fact) => fact.label === label)?.value ?? null,
      );
      if (values.some((value) => value !== null)) {
        const column = this.#pack.integers(part.column);
        return (place) => values[column[place] as number] ?? null;
      }
    }
    return () => null;
  }

  /** The answer of `arrows`. */
  arrows(query: Query): Columns {
    const spans = this.#spans;
    const { start, end } = stretch(query);
    const wanted = new Set(spans.chosen(text(query, "tracks")).map((track) => track.id));
    const limit = number(query, "limit", MOST_ARROWS);
    const [from, distance, sort] = this.#pairs();
    const found: number[] = [];
    for (let index = 0; index < from.length; index++) {
      const source = from[index] as number;
      const target = source + (distance[index] as number);
      const [a, b] = [spans.start[source] as number, spans.start[target] as number];
      if (Math.min(a, b) >= end || Math.max(a, b) < start) continue;
      if (wanted.has(spans.where(source).track) && wanted.has(spans.where(target).track)) found.push(index);
    }
    const kept =
      found.length <= limit
        ? found
        : Array.from(
            { length: limit },
            (_, index) => found[Math.floor((index * (found.length - 1)) / Math.max(limit - 1, 1))] as number,
          );
    const columns: Record<string, number[]> = {};
    const add = (end: string, places: number[]) => {
      columns[end] = places.map((place) => spans.idOf(place));
      columns[`${end}_track`] = places.map((place) => spans.where(place).track);
      columns[`${end}_row`] = places.map((place) => spans.where(place).row);
      columns[`${end}_time`] = places.map((place) => spans.start[place] as number);
    };
    add(
      "from",
      kept.map((index) => from[index] as number),
    );
    add(
      "to",
      kept.map((index) => (from[index] as number) + (distance[index] as number)),
    );
    const codes = kept.map((index) => sort[index] as number);
    return made({ ...columns, sort: { codes, texts: SORTS } }, found.length);
  }

  #factsOf(part: Part, place: number): readonly Fact[] {
    const value = this.#pack.integers(part.column)[place] as number;
    if (part.groups) return this.#groupsOf(part.groups)[value] ?? [];
    const { label = "", unit = "", absent, rate } = part;
    if (!rate) return value === absent ? [] : [{ label, value, unit }];
    const duration = this.#spans.duration[place] as number;
    return value > 0 && duration > 0 ? [{ label, value: value / duration, unit }] : [];
  }

  #stack(place: number): string[] {
    const frames = this.#pack.json<string[]>("frames");
    const [frame, distance] = [this.#pack.integers("stack frame"), this.#pack.integers("stack parent")];
    const found: string[] = [];
    for (let at = this.#pack.integers("stack")[place] as number; at >= 0; ) {
      const name = frames[frame[at] as number];
      if (name !== undefined) found.push(name);
      at = distance[at] ? at - (distance[at] as number) : -1;
    }
    return found;
  }

  #links(place: number): Link[] {
    const spans = this.#spans;
    const found: (readonly [string, readonly number[]])[] = [["in", [spans.parent[place] as number]]];
    if (spans.caller) found.push(["called in", [spans.caller[place] as number]]);
    const [from, distance, sort] = this.#pairs();
    const isLaunch = (index: number) => sort[index] === 0;
    const launches = lowest(sort, 0, sort.length, 1);
    const targets = (index: number) => (from[index] as number) + (distance[index] as number);
    if (this.#pack.has("launched by")) {
      found.push(["launched by", [this.#pack.before("launched by")[place] as number]]);
      found.push(["launched for", [this.#pack.before("launched for")[place] as number]]);
      const first = lowest(from, 0, launches, place);
      const last = lowest(from, first, launches, this.#beyond(place));
      found.push(["launched", numbers(first, last).filter(isLaunch).map(targets)]);
    }
    for (let index = launches; index < from.length; index++)
      if (targets(index) === place) found.push(["forward", [from[index] as number]]);
    const first = lowest(from, launches, from.length, place);
    found.push(["backward", numbers(first, lowest(from, first, from.length, place + 1)).map(targets)]);
    for (const [of, label, other] of this.#told.links) if (of === place) found.push([label, [other]]);
    const known = new Set<string>();
    return found.flatMap(([label, others]) =>
      others.slice(0, MOST_LINKS).flatMap((other) => {
        const key = `${label} ${other}`;
        if (other < 0 || known.has(key)) return [];
        known.add(key);
        return [
          {
            label,
            span: spans.idOf(other),
            name: spans.nameOf(other),
            ...spans.where(other),
            start_ns: spans.start[other] as number,
            duration_ns: spans.duration[other] as number,
          },
        ];
      }),
    );
  }

  /** The first place behind a span whose span begins when it has ended, or on another thread. */
  #beyond(place: number): number {
    const spans = this.#spans;
    const last = lowest(spans.thread, place, spans.count, (spans.thread[place] as number) + 1);
    const end = (spans.start[place] as number) + (spans.duration[place] as number);
    return Math.max(place + 1, lowest(spans.start, place, last, end));
  }

  /** Launches first, then forward and backward; each sort by where they come from. */
  #pairs(): readonly [Integers, Integers, Integers] {
    return [
      this.#pack.integers("arrow from"),
      this.#pack.integers("arrow to"),
      this.#pack.integers("arrow sort"),
    ];
  }

  #groupsOf(name: string): readonly (readonly Fact[])[] {
    return this.#pack.json<readonly (readonly Fact[])[]>(name);
  }
}

function numbers(from: number, to: number): number[] {
  return Array.from({ length: Math.max(to - from, 0) }, (_, index) => from + index);
}
