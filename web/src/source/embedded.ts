/** Answers of a report: those that it carries, and those that follow from the rows of the timeline in it. */

import { Facts, type FactsOfSpans } from "../report/facts";
import { histogram, instances, search } from "../report/named";
import { type Directory, Pack, unpacked } from "../report/packed";
import { range } from "../report/range";
import { Spans, type TimelineFacts } from "../report/spans";
import { counter, window } from "../report/window";
import * as units from "../units";
import { tableOf } from "./arrow";
import { AnswerError, type Columns, type Query, type Source, spelled } from "./source";

interface Part {
  block: number;
  at: Directory;
}

/** Where an answer is, or why there is none. */
interface Held {
  arrow?: boolean;
  total?: number;
  block?: number;
  at?: readonly number[];
  error?: string;
}

/** What a report says of itself; made in `viewer/_report.py`. */
export interface Report {
  version: string;
  name: string;
  answers: Readonly<Record<string, Held>>;
  timeline: TimelineFacts & FactsOfSpans & { rows: Part; facts: Part; counters: Part };
  cut: { before_ns: number; spans: number; items: number } | null;
}

const LACKING =
  "This report does not hold what would answer this: open the trace itself with `kinetoscope view`.";

export class EmbeddedSource implements Source {
  readonly served = false;
  readonly lacks: string | undefined;
  readonly #report: Report;
  readonly #letters: (block: number) => string;
  readonly #blocks = new Map<number, Promise<Uint8Array<ArrayBuffer>>>();
  #spans: Promise<Spans> | undefined;
  #facts: Promise<Facts> | undefined;

  /** `letters` gives a block of the page as it stands there. */
  constructor(report: Report, letters: (block: number) => string) {
    this.#report = report;
    this.#letters = letters;
    const { cut } = report;
    if (cut)
      this.lacks =
        `The timeline of this report ends after ${units.time(cut.before_ns)}: it holds the first ` +
        `${units.count(cut.spans)} spans. Tables are of the whole trace.`;
  }

  async json<T>(path: string, query: Query = {}): Promise<T> {
    const held = this.#held(path, query);
    const told = held
      ? JSON.parse(new TextDecoder().decode(await this.#body(held)))
      : this.#made(path, query);
    return told as Promise<T>;
  }

  async columns(path: string, query: Query = {}): Promise<Columns> {
    const held = this.#held(path, query);
    if (held) return tableOf((await this.#body(held)).buffer, held.total);
    return this.#made(path, query) as Promise<Columns>;
  }

  has(path: string, query?: Query): boolean {
    if (query?.["by"] === undefined && kindOf(path) in this.#fromRows) return true;
    const { answers } = this.#report;
    if (spelled(path, query) in answers) return true;
    // Without a query it is asked whether anything of the kind can be answered.
    return query === undefined && Object.keys(answers).some((key) => key.startsWith(`${path}?`));
  }

  download(): null {
    return null;
  }

  /** What the rows of the timeline answer: questions that depend on where the reader looks. */
  readonly #fromRows: Readonly<Record<string, (query: Query, path: string) => Promise<unknown>>> = {
    window: async (query) => window(await this.#laid(), query),
    range: async (query) => range(await this.#laid(), query),
    search: async (query) => search(await this.#laid(), query),
    histogram: async (query) => histogram(await this.#laid(), query),
    instances: async (query) => instances(await this.#laid(), await this.#known(), query),
    arrows: async (query) => (await this.#known()).arrows(query),
    span: async (_, path) => (await this.#known()).span(Number(path.slice("span/".length))),
    counter: async (query) => counter(await this.#counter(String(query["track"])), query),
  };

  #made(path: string, query: Query): Promise<unknown> {
    const made = query["by"] === undefined && this.#fromRows[kindOf(path)];
    if (!made) throw new AnswerError(LACKING);
    return made(query, path);
  }

  #held(path: string, query: Query): Held | undefined {
    const held = this.#report.answers[spelled(path, query)];
    if (held?.error !== undefined) throw new AnswerError(held.error);
    return held;
  }

  async #body({ block = 0, at: [at = 0, length = 0] = [] }: Held): Promise<Uint8Array<ArrayBuffer>> {
    return (await this.#block(block)).slice(at, at + length);
  }

  #block(number: number): Promise<Uint8Array<ArrayBuffer>> {
    const body = this.#blocks.get(number) ?? unpacked(this.#letters(number));
    this.#blocks.set(number, body);
    return body;
  }

  /** A part that is read once and then kept as what was made of it. */
  async #pack({ block, at }: Part): Promise<Pack> {
    return new Pack(await unpacked(this.#letters(block)), at);
  }

  #laid(): Promise<Spans> {
    const { timeline } = this.#report;
    this.#spans ??= this.#pack(timeline.rows).then((pack) => new Spans(pack, timeline));
    return this.#spans;
  }

  #known(): Promise<Facts> {
    const { timeline } = this.#report;
    this.#facts ??= Promise.all([this.#laid(), this.#pack(timeline.facts)]).then(
      ([spans, pack]) => new Facts(spans, pack, timeline),
    );
    return this.#facts;
  }

  async #counter(id: string): Promise<Columns> {
    const { block, at } = this.#report.timeline.counters;
    if (!(id in at)) throw new AnswerError(`there is no such counter: ${id.slice(0, 50)}`);
    return tableOf(new Pack(await this.#block(block), at).bytes(id).buffer);
  }
}

/** The first part of a path. */
function kindOf(path: string): string {
  return path.split("/", 1)[0] ?? "";
}

/** The report in this page, or null where the page is served. */
export function embedded(): { source: EmbeddedSource; name: string } | null {
  const lettersOf = (id: string | number) => document.getElementById(`kinetoscope-${id}`)?.textContent ?? "";
  const told = lettersOf("report");
  if (!told) return null;
  const report = JSON.parse(told) as Report;
  return { source: new EmbeddedSource(report, lettersOf), name: report.name };
}
