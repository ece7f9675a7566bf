/** The Python stack behind a chosen row, innermost frame first. */

import { useEffect, useMemo } from "preact/hooks";
import { Nothing, Shown, useColumns } from "../parts/answer";
import { Button } from "../parts/button";
import { FrameCode } from "../parts/source-text";
import { change } from "../router";
import type { Columns } from "../source/source";
import { type Device, shortFrame } from "./facts";

export function StackView(props: { device: Device; stack: number }) {
  const answer = useColumns("memory/stacks", { device: props.device.key });
  const end = () => change({ stack: undefined });
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => event.key === "Escape" && end();
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return (
    <aside class="stack" aria-label="Stack">
      <header class="title">
        <h2>Allocated from</h2>
        <span class="about">innermost frame first</span>
        <span class="tools">
          <Button title="Close (Esc)" onClick={end}>
            Close
          </Button>
        </span>
      </header>
      <Shown answer={answer}>{(table) => <Frames table={table} stack={props.stack} />}</Shown>
    </aside>
  );
}

function Frames(props: { table: Columns; stack: number }) {
  const { table, stack } = props;
  const frames = useMemo(() => framesOf(table, stack), [table, stack]);
  if (frames.length === 0) return <Nothing>Its stack was not recorded.</Nothing>;
  return (
    <ol class="mono">
      {frames.map((frame, index) => (
        <li key={index} title={frame.slice(0, 2000)}>
          <span>{shortFrame(frame)}</span>
          <span class="faint name">{folderOf(frame)}</span>
          <FrameCode stack={frames} index={index} />
        </li>
      ))}
    </ol>
  );
}

/** The frames of a stack, innermost first. */
function framesOf(table: Columns, stack: number): string[] {
  const [ids, parents, frames] = [table.numbers("id"), table.values("parent"), table.texts("frame")];
  const rows = new Map<number, number>();
  for (let row = 0; row < ids.length; row++) rows.set(ids[row] ?? -1, row);
  const found: string[] = [];
  let row = rows.get(stack);
  while (row !== undefined && found.length < 1000) {
    found.push(frames[row] ?? "");
    const parent = parents[row];
    // Parents come first; anything else would be a circle.
    const above = typeof parent === "number" ? rows.get(parent) : undefined;
    row = above !== undefined && above < row ? above : undefined;
  }
  return found;
}

/** The file of a frame with its folders; empty where it has none. */
function folderOf(frame: string): string {
  const short = shortFrame(frame);
  return short === frame ? "" : frame.slice(0, frame.length - short.length + short.indexOf("("));
}
