/** Answers of a report: those that it carries, and those that follow from the rows of the timeline in it. */

import { Facts, type FactsOfSpans } from "../report/facts";
import { histogram, instances, search } from "../report/named";
import { type Directory, Pack, unpacked } from "../report/packed";
import { range } from "../report/range";
import { Spans, type TimelineFacts } from "../report/spans";
import { counter, text, window } from "../report/window";
import * as units from "../units";
import { AnswerError, Columns, type Query, type Source, spelled } from "./source";

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

/** Questions that depend on where the reader looks, and that the rows of the timeline answer. */
const FROM_ROWS = new Set(["window", "counter", "search", "range", "instances", "histogram", "arrows"]);
const LACKING =
  "This report does not hold what would answer this: open the trace itself with `kinetoscope view`.";

export class EmbeddedSource implements Source {
  readonly served = false;
  readonly lacks: string | undefined;
  private readonly blocks = new Map<number, Uint8Array>();
  private laid: Spans | undefined;
  private known: Facts | undefined;

  /** `letters` gives a block of the page as it stands there. */
  constructor(
    private readonly report: Report,
    private readonly letters: (block: number) => string,
  ) {
    const { cut } = report;
    if (cut)
      this.lacks =
        `The timeline of this report ends after ${units.time(cut.before_ns)}: it holds the first ` +
        `${units.count(cut.spans)} spans. Tables are of the whole trace.`;
  }

  async json<T>(path: string, query: Query = {}): Promise<T> {
    const held = this.held(path, query);
    if (held) return JSON.parse(new TextDecoder().decode(this.body(held))) as T;
    if (path === "histogram") return histogram(this.spans(), query) as T;
    if (path.startsWith("span/")) return this.facts().span(Number(path.slice("span/".length))) as T;
    throw new AnswerError(LACKING);
  }

  async columns(path: string, query: Query = {}): Promise<Columns> {
    const held = this.held(path, query);
    if (held) return new Columns(this.body(held), held.total);
    if (!this.has(path, query)) throw new AnswerError(LACKING);
    if (path === "window") return window(this.spans(), query);
    if (path === "range") return range(this.spans(), query);
    if (path === "search") return search(this.spans(), query);
    if (path === "instances") return instances(this.spans(), this.facts(), query);
    if (path === "arrows") return this.facts().arrows(query);
    if (path === "counter") return counter(this.counter(text(query, "track") ?? ""), query);
    throw new AnswerError(LACKING);
  }

  has(path: string, query?: Query): boolean {
    if (path.startsWith("span/") || (FROM_ROWS.has(path) && query?.["by"] === undefined)) return true;
    const { answers } = this.report;
    if (spelled(path, query) in answers) return true;
    // Without a query it is asked whether anything of the kind can be answered.
    return query === undefined && Object.keys(answers).some((key) => key.startsWith(`${path}?`));
  }

  download(): null {
    return null;
  }

  private held(path: string, query: Query): Held | undefined {
    const held = this.report.answers[spelled(path, query)];
    if (held?.error !== undefined) throw new AnswerError(held.error);
    return held;
  }

  private body(held: Held): Uint8Array {
    const [at = 0, length = 0] = held.at ?? [];
    return this.block(held.block ?? 0).slice(at, at + length);
  }

  private block(number: number): Uint8Array {
    const body = this.blocks.get(number) ?? unpacked(this.letters(number));
    this.blocks.set(number, body);
    return body;
  }

  /** A part that is read once and then kept as what was made of it. */
  private pack(part: Part): Pack {
    return new Pack(unpacked(this.letters(part.block)), part.at);
  }

  private spans(): Spans {
    this.laid ??= new Spans(this.pack(this.report.timeline.rows), this.report.timeline);
    return this.laid;
  }

  private facts(): Facts {
    this.known ??= new Facts(this.spans(), this.pack(this.report.timeline.facts), this.report.timeline);
    return this.known;
  }

  private counter(id: string): Columns {
    const { block, at } = this.report.timeline.counters;
    if (!(id in at)) throw new AnswerError(`there is no such counter: ${id.slice(0, 50)}`);
    return new Columns(new Pack(this.block(block), at).bytes(id));
  }
}

/** The report in this page, or null where the page is served. */
export function embedded(): { source: EmbeddedSource; name: string } | null {
  const told = document.getElementById("kinetoscope-report")?.textContent;
  if (!told) return null;
  const report = JSON.parse(told) as Report;
  const source = new EmbeddedSource(report, (block) => {
    const text = document.getElementById(`kinetoscope-${block}`)?.textContent;
    if (!text) throw new AnswerError("The file of this report is not whole.");
    return text;
  });
  return { source, name: report.name };
}
