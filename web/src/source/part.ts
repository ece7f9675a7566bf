/** A part of a trace as a source: pages that can be filtered show a step or a range of time. */

import type { Columns, Query, Source, SpanFacts, WindowQuery } from "./source";

/** What a source has of a part: `PARTIAL` in `viewer/server/routes.py`. */
const PARTIAL =
  /^(?:operators|chosen|instances|histogram|table\/(?:modules|module_operators|kernels|copies)|flame(?:_choices|_operators)?|memory(?:\/\w+)?)$/;

export class PartSource implements Source {
  readonly served = true;
  readonly lacks: string | undefined = undefined;

  /** `part` is where it starts and ends in nanoseconds, such as `1000-2000`. */
  constructor(
    readonly whole: Source,
    readonly part: string,
  ) {}

  has(path: string, query?: Query): boolean {
    return this.whole.has(path, query);
  }

  info<T>(path: string, query?: Query): Promise<T> {
    return this.whole.info(path, this.#asking(path, query));
  }

  table(path: string, query?: Query): Promise<Columns> {
    return this.whole.table(path, this.#asking(path, query));
  }

  window(query: WindowQuery): Promise<Columns> {
    return this.whole.window(query);
  }

  counters(query: WindowQuery): Promise<Columns[]> {
    return this.whole.counters(query);
  }

  span(id: number): Promise<SpanFacts> {
    return this.whole.span(id);
  }

  download(path: string, query?: Query): string | null {
    return this.whole.download(path, this.#asking(path, query));
  }

  #asking(path: string, query: Query = {}): Query {
    return PARTIAL.test(path) ? { ...query, part: this.part } : query;
  }
}
