/** Asking the source from within a page: what came, what went wrong, or that it is still on its way. */

import { signal } from "@preact/signals";
import { type ComponentChildren, createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { type Columns, type Query, type Source, SourceError, spelled } from "../source/source";

export const SourceContext = createContext<Source | null>(null);

/** Counts up when a live trace has grown; every answer is then asked for again. */
export const version = signal(0);

export function useSource(): Source {
  const source = useContext(SourceContext);
  if (!source) throw new Error("no source around this page");
  return source;
}

export interface Answer<T> {
  value: T | undefined;
  error: string | undefined;
  /** True while an answer is on its way; `value` is then the one before, if there was any. */
  waiting: boolean;
}

function useAnswer<T>(key: string | null, ask: (source: Source) => Promise<T>): Answer<T> {
  const source = useSource();
  const [answer, setAnswer] = useState<Answer<T>>({
    value: undefined,
    error: undefined,
    waiting: key !== null,
  });
  const current = version.value;
  useEffect(() => {
    if (key === null) return;
    let wanted = true;
    setAnswer((before) => ({ ...before, waiting: true }));
    ask(source).then(
      (value) => wanted && setAnswer({ value, error: undefined, waiting: false }),
      (error: unknown) => wanted && setAnswer({ value: undefined, error: words(error), waiting: false }),
    );
    return () => {
      wanted = false;
    };
  }, [key, source, current]);
  return answer;
}

/** A JSON answer; nothing is asked while `path` is null. */
export function useJson<T>(path: string | null, query: Query = {}): Answer<T> {
  return useAnswer<T>(path && spelled(path, query), (source) => source.info<T>(path ?? "", query));
}

/** A table; nothing is asked while `path` is null. */
export function useColumns(path: string | null, query: Query = {}): Answer<Columns> {
  return useAnswer<Columns>(path && spelled(path, query), (source) => source.table(path ?? "", query));
}

/** How to record what a trace lacks, by what it is (`shapes`, `stacks`): the end of a sentence without its period. */
export function useAdvice(): Readonly<Record<string, string>> {
  return useJson<Record<string, string>>(useSource().has("advice") ? "advice" : null).value ?? {};
}

export function words(error: unknown): string {
  if (error instanceof SourceError) return error.message;
  console.error(error);
  return `The viewer failed: ${error instanceof Error ? error.message : String(error)}`;
}

/** Shows an answer when it is there, what went wrong, or that it is on its way. */
export function Shown<T>(props: {
  answer: Answer<T>;
  /** What is shown while it is on its way, where that takes long. */
  meanwhile?: ComponentChildren;
  children: (value: T) => ComponentChildren;
}): ComponentChildren {
  const { answer, meanwhile, children } = props;
  if (answer.error !== undefined) return <Problem>{answer.error}</Problem>;
  if (answer.value === undefined) return meanwhile ?? <p class="waiting">Loading…</p>;
  return children(answer.value);
}

/** The outlines of what is to come, each as high as so many lines, under a line that says what is done. */
export function Outlines(props: { lines: readonly number[]; children: ComponentChildren }) {
  return (
    <div class="outlines" aria-busy="true">
      <p class="muted" role="status">
        {props.children}
      </p>
      {props.lines.map((lines, index) => (
        <div key={`${index} ${lines}`} style={{ height: `${lines * 1.5}rem` }} />
      ))}
    </div>
  );
}

export function Problem(props: { children: ComponentChildren }) {
  return (
    <p class="problem" role="alert">
      {props.children}
    </p>
  );
}

/** What a page says where a trace has nothing for it. */
export function Nothing(props: { children: ComponentChildren }) {
  return <p class="nothing">{props.children}</p>;
}
