/** Searching spans by their names, and going from one that was found to the next. */

import { signal } from "@preact/signals";
import { words } from "../parts/answer";
import type { Columns, Source } from "../source/source";

const TYPING_MS = 180;
const MOST = 20_000;

export class Search {
  /** The text as it stands in the address. */
  readonly text = signal("");
  readonly found = signal<Columns | null>(null);
  readonly waiting = signal(false);
  readonly problem = signal("");
  #timer: ReturnType<typeof setTimeout> | undefined;
  #asked = "";

  readonly #source: Source;
  readonly #choose: (span: number) => void;

  constructor(source: Source, choose: (span: number) => void) {
    this.#source = source;
    this.#choose = choose;
  }

  end(): void {
    clearTimeout(this.#timer);
  }

  follow(text: string): void {
    if (text === this.text.peek()) return;
    this.text.value = text;
    this.problem.value = "";
    clearTimeout(this.#timer);
    if (!text.trim() || !this.#source.has("search")) {
      this.#asked = "";
      this.found.value = null;
      this.waiting.value = false;
      return;
    }
    this.waiting.value = true;
    this.#timer = setTimeout(() => this.#ask(text), TYPING_MS);
  }

  /** Choose the next span that was found, or the one before; from the chosen one on, or else from a time. */
  step(by: 1 | -1, chosen: number | undefined, time: number): void {
    const found = this.found.peek();
    if (!found?.rows) return;
    const place = stepped(found.numbers("span"), found.numbers("start_ns"), by, chosen, time);
    this.#choose(found.numbers("span")[place] ?? 0);
  }

  async #ask(text: string): Promise<void> {
    this.#asked = text;
    let found: Columns | null = null;
    let problem = "";
    try {
      found = await this.#source.table("search", { text: text.trim(), limit: MOST });
    } catch (error) {
      problem = words(error);
    }
    if (this.#asked !== text) return;
    this.found.value = found;
    this.waiting.value = false;
    this.problem.value = problem;
  }
}

/** The place of the next among spans in order of time, around the end to the other one. */
export function stepped(
  spans: ArrayLike<number>,
  starts: ArrayLike<number>,
  by: 1 | -1,
  chosen: number | undefined,
  time: number,
): number {
  const size = spans.length;
  for (let place = 0; place < size; place++) if (spans[place] === chosen) return (place + by + size) % size;
  let after = 0;
  while (after < size && (starts[after] ?? 0) < time) after += 1;
  return by > 0 ? after % size : (after - 1 + size) % size;
}
