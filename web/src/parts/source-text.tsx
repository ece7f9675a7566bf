/** The text of source lines that the trace holds, for all that names a line. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useJson, useSource } from "./answer";

type Files = Readonly<Record<string, Readonly<Record<string, string>>>>;

const files = signal<Files>({});

/** Fetches the text of the trace that is looked at. */
export function SourceText() {
  const { value } = useJson<Files>(useSource().has("source") ? "source" : null);
  useEffect(() => {
    files.value = value ?? {};
  }, [value]);
  return null;
}

/** The text of a line without its indentation; empty where the trace has none. */
export function lineText(file: string, line: number | string | null): string {
  return files.value[file]?.[String(line)]?.trim() ?? "";
}

/** The text of the line of a frame, such as `src/model.py(12): forward`. */
export function frameText(frame: string): string {
  const [, file = "", line = ""] = /^(.*)\((\d+)\): /.exec(frame) ?? [];
  return lineText(file, line);
}

/** A line with those around it. */
export function Excerpt(props: { file: string; line: number }) {
  const known = files.value[props.file] ?? {};
  const numbers = [-2, -1, 0, 1, 2].map((by) => props.line + by).filter((number) => String(number) in known);
  if (!(String(props.line) in known)) return null;
  const texts = numbers.map((number) => known[String(number)] ?? "");
  const indents = texts.filter((text) => text.trim()).map((text) => text.length - text.trimStart().length);
  const indent = Math.min(...indents);
  return (
    <pre class="excerpt mono">
      {numbers.map((number, index) => (
        <span key={number} class={number === props.line ? "hot" : undefined}>
          <span class="faint">{number}</span> {texts[index]?.slice(indent)}
        </span>
      ))}
    </pre>
  );
}
