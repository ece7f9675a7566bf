/** A flame chart as it came: calls, modules and operators of a thread in the order of time. */

import { kindWord } from "../operators/kinds";
import type { Look } from "../parts/icicle-paint";
import type { Boxes } from "../parts/icicle-rows";
import type { Columns } from "../source/source";
import { boxName, plain } from "../timeline/names";
import { roleOf } from "../timeline/palette";
import * as units from "../units";
import { fileName } from "./flame";

export interface Call {
  /** What it is: `python`, `module`, `operator` ...; empty for several short ones. */
  kind: string;
  name: string;
  /** The class of a module. */
  class: string;
  file: string;
  line: number | null;
  start: number;
  duration: number;
  self: number;
  /** How many it stands for. */
  count: number;
  /** Whether it was made from the stacks of operators. */
  rebuilt: boolean;
  span: number | null;
}

export class Chart {
  readonly boxes: Boxes;
  readonly looks: readonly Look[];
  readonly calls: readonly Call[];
  readonly #texts: readonly string[];
  readonly #places: ReadonlyMap<string, number>;

  constructor(table: Columns) {
    const size = table.rows;
    const [starts, durations, selves] = ["start_ns", "duration_ns", "self_ns"].map((name) =>
      table.numbers(name),
    );
    const [parents, lines, spans] = ["parent", "line", "span"].map((name) => table.values(name));
    const [kinds, names, classes, files] = ["kind", "name", "class", "file"].map((name) => table.texts(name));
    const [users, rebuilt, counts] = [table.values("user"), table.values("rebuilt"), table.numbers("count")];
    const boxes: Boxes = {
      start: new Float64Array(size),
      end: new Float64Array(size),
      row: new Int32Array(size),
      parent: new Int32Array(size).fill(-1),
      rows: 0,
      whole: 0,
    };
    this.calls = Array.from({ length: size }, (_, index): Call => {
      const parent = parents?.[index];
      const start = starts?.[index] ?? 0;
      const duration = durations?.[index] ?? 0;
      boxes.start[index] = start;
      boxes.end[index] = start + duration;
      if (typeof parent === "number") {
        boxes.parent[index] = parent;
        boxes.row[index] = (boxes.row[parent] ?? 0) + 1;
      }
      boxes.rows = Math.max(boxes.rows, (boxes.row[index] ?? 0) + 1);
      boxes.whole = Math.max(boxes.whole, start + duration);
      const [line, span] = [lines?.[index], spans?.[index]];
      return {
        kind: kinds?.[index] ?? "",
        name: names?.[index] ?? "",
        class: classes?.[index] ?? "",
        file: files?.[index] ?? "",
        line: typeof line === "number" ? line : null,
        start,
        duration,
        self: selves?.[index] ?? 0,
        count: counts[index] ?? 1,
        rebuilt: rebuilt[index] === true,
        span: typeof span === "number" ? span : null,
      };
    });
    this.boxes = boxes;
    this.looks = this.calls.map((call, index): Look => {
      if (call.count > 1) return { text: "", role: "idle", shade: "" };
      const role = call.kind === "python" && users[index] !== true ? "runtime" : roleOf(call.kind, call.name);
      return { text: boxText(call), role, shade: call.name };
    });
    this.#texts = this.calls.map((call) =>
      call.count > 1
        ? ""
        : `${boxText(call)}\n${call.name}\n${call.class}\n${call.file}:${call.line ?? ""}`.toLowerCase(),
    );
    this.#places = new Map(this.calls.map((_, index) => [this.key(index) ?? "", index]));
  }

  /** What the address calls a box: its row and when it begins, which stays the same where more or less is in sight. */
  key(index: number): string | undefined {
    const call = this.calls[index];
    return call && `${this.boxes.row[index]}-${call.start}`;
  }

  /** The box of a key, -1 where there is none. */
  place(key: string | undefined): number {
    return key === undefined ? -1 : (this.#places.get(key) ?? -1);
  }

  /** The boxes that hold a text, in the order of time; null for an empty text. */
  search(text: string): { mask: Uint8Array; found: readonly number[] } | null {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const mask = Uint8Array.from(this.#texts, (one) => Number(one.includes(wanted)));
    return { mask, found: [...mask.keys()].filter((index) => mask[index] === 1) };
  }
}

/** What stands in a box. */
export function boxText(call: Call): string {
  if (call.count > 1) return `${units.count(call.count)} short spans`;
  const name = plain(boxName(call.kind, call.name));
  if (call.kind === "python" && call.file && !name.includes(fileName(call.file))) {
    const line = call.line === null ? "" : `:${call.line}`;
    return plain(`${name}  ${fileName(call.file)}${line}`);
  }
  return call.class && call.class !== call.name ? `${name}  ${plain(call.class)}` : name;
}

/** What kind of thing a box is, in words. */
export function kindText(call: Call): string {
  if (call.count > 1) return "too short to be drawn here";
  if (call.kind === "python") return "Python function";
  return kindWord(call.kind);
}
