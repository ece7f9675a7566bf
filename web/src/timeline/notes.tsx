/** Notes: what people wrote about moments of the trace. They are kept in a file beside it. */

import { type Signal, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { words } from "../parts/answer";
import { Button } from "../parts/button";
import type { Source } from "../source/source";
import * as units from "../units";
import { moment } from "./ticks";
import type { Timeline } from "./timeline";

const MOST_LETTERS = 2000;

export interface Note {
  start_ns: number;
  end_ns: number;
  text: string;
  span: number | null;
}

interface Stored {
  notes: readonly Note[];
  /** The name of their file; null where there is no place for one. */
  file: string | null;
}

export class Notes {
  readonly all = signal<readonly Note[]>([]);
  /** Whether notes can be written. */
  readonly writable = signal(false);
  readonly file = signal("");
  readonly problem = signal("");
  /** The text that is being written; null while none is. */
  readonly draft: Signal<string | null> = signal(null);
  readonly #source: Source;

  constructor(source: Source) {
    this.#source = source;
    if (source.has("notes")) void this.#take(source.info<Stored>("notes"));
  }

  add(note: Note): Promise<void> {
    const all = [...this.all.peek(), note].sort((a, b) => a.start_ns - b.start_ns || a.end_ns - b.end_ns);
    return this.#store(all);
  }

  remove(note: Note): Promise<void> {
    return this.#store(this.all.peek().filter((one) => one !== note));
  }

  #store(notes: readonly Note[]): Promise<void> {
    return this.#take(this.#source.store<Stored>("notes", { notes }));
  }

  async #take(answer: Promise<Stored>): Promise<void> {
    try {
      const { notes, file } = await answer;
      this.all.value = notes;
      this.file.value = file ?? "";
      this.writable.value = this.#source.served && file !== null;
      this.problem.value = "";
    } catch (error) {
      this.problem.value = words(error);
    }
  }
}

/** Begins a note about the chosen span or range; false where nothing is chosen, or no note can be kept. */
export function beginNote(timeline: Timeline): boolean {
  const { notes, chosen, range } = timeline;
  if (!notes.writable.peek() || !(chosen.peek() || range.peek())) return false;
  notes.draft.value = "";
  return true;
}

/** The line with all notes, and the field for a new one. */
export function NotesLine(props: { timeline: Timeline }) {
  const { timeline } = props;
  const { all, draft, problem, writable, file } = timeline.notes;
  if (!all.value.length && draft.value === null && !problem.value) return null;
  return (
    <section class="tl-notes" aria-label="Notes">
      {problem.value && (
        <span class="warn" role="alert">
          {problem.value}
        </span>
      )}
      {draft.value !== null && <Draft timeline={timeline} />}
      {all.value.map((note) => (
        <span class="tl-note" key={`${note.start_ns} ${note.end_ns} ${note.text}`}>
          <Button class="plain" title={titleOf(note)} onClick={() => show(timeline, note)}>
            {note.text}
          </Button>
          {writable.value && (
            <Button
              class="plain"
              aria-label={`Delete the note ${note.text}`}
              title={`Delete this note from ${file.value}`}
              onClick={() => timeline.notes.remove(note)}
            >
              ✕
            </Button>
          )}
        </span>
      ))}
    </section>
  );
}

function titleOf({ start_ns, end_ns, text }: Note): string {
  const length = end_ns > start_ns ? `, ${units.time(end_ns - start_ns)}` : "";
  return `${text}\nat ${moment(start_ns)}${length}`;
}

function show(timeline: Timeline, { start_ns, end_ns, span }: Note): void {
  if (span !== null) timeline.choose(span, true);
  else {
    timeline.choose(null, true);
    timeline.chooseRange({ start: start_ns, end: Math.max(end_ns, start_ns + 1) });
    timeline.fit();
  }
}

/** The field in which a note is written: Enter keeps it, Escape does not. */
function Draft(props: { timeline: Timeline }) {
  const { timeline } = props;
  const { notes } = timeline;
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const keep = () => {
    const chosen = timeline.chosen.peek();
    const range = timeline.range.peek();
    const text = notes.draft.peek()?.trim();
    const [start, end] = chosen
      ? [chosen.start, chosen.start + chosen.duration]
      : [range?.start ?? 0, range?.end ?? 0];
    const note = { start_ns: Math.floor(start), end_ns: Math.ceil(end), span: chosen?.span ?? null };
    notes.draft.value = null;
    if (text && (chosen || range)) void notes.add({ ...note, text });
  };
  return (
    <input
      ref={field}
      aria-label="Note"
      placeholder={`Note on the ${timeline.chosen.value ? "span" : "range"}: Enter keeps it in ${notes.file.value}`}
      maxLength={MOST_LETTERS}
      value={notes.draft.value ?? ""}
      onInput={(event) => {
        notes.draft.value = event.currentTarget.value;
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter") keep();
        else if (event.key === "Escape") notes.draft.value = null;
      }}
    />
  );
}
