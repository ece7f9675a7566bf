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
  return lineText(...placeOf(frame));
}

/** The text of a frame of a stack: with the lines around it in the innermost frame that has any, else alone. */
export function FrameCode(props: { stack: readonly string[]; index: number }) {
  const { stack, index } = props;
  const frame = stack[index] ?? "";
  const text = frameText(frame);
  if (!text) return null;
  if (stack.findIndex((one) => frameText(one)) !== index) return <code class="muted name">{text}</code>;
  const [file, line] = placeOf(frame);
  return <Excerpt file={file} line={Number(line)} />;
}

function placeOf(frame: string): [file: string, line: string] {
  const [, file = "", line = ""] = /^(.*)\((\d+)\): /.exec(frame) ?? [];
  return [file, line];
}

/** A line, or some that follow each other, with those around. */
export function Excerpt(props: { file: string; line: number; last?: number }) {
  const { line, last = line } = props;
  const known = files.value[props.file] ?? {};
  const numbers = Array.from({ length: last - line + 5 }, (_, index) => line - 2 + index).filter(
    (number) => String(number) in known,
  );
  if (!(String(line) in known)) return null;
  const texts = numbers.map((number) => known[String(number)] ?? "");
  const indents = texts.filter((text) => text.trim()).map((text) => text.length - text.trimStart().length);
  const indent = Math.min(...indents);
  return (
    <pre class="excerpt mono">
      {numbers.map((number, index) => (
        <span key={number} class={line <= number && number <= last ? "hot" : undefined}>
          <span class="faint">{number}</span> {texts[index]?.slice(indent)}
        </span>
      ))}
    </pre>
  );
}
