/** A flame graph as it came: its boxes, what they are called, and which are searched for. */

import type { Look } from "../parts/icicle-paint";
import { type Boxes, beyond, laidOut } from "../parts/icicle-rows";
import type { Columns } from "../source/source";
import { plain } from "../timeline/names";

export interface Frame {
  function: string;
  file: string;
  line: number | null;
  /** Whether it is the program's own, neither torch's nor ours. */
  user: boolean;
  /** How many small frames it stands for, 0 for a frame of its own. */
  rest: number;
}

export class Flame {
  readonly boxes: Boxes;
  readonly looks: readonly Look[];
  /** The color of each of the files in which most was spent, the heaviest first. */
  readonly files: ReadonlyMap<string, string>;
  readonly frames: readonly Frame[];
  readonly total: ArrayLike<number>;
  readonly own: ArrayLike<number>;
  readonly count: ArrayLike<number>;
  readonly unit: string;
  /** A short name of each box that depends on its path only: the same in another flame graph of the trace. */
  readonly #keys: readonly string[];
  readonly #places: ReadonlyMap<string, number>;

  /** `callers` where each frame stands in the one that it called, so that only the outermost are spent in. */
  constructor(
    table: Columns,
    readonly callers = false,
  ) {
    const parent = Array.from(table.values("parent"), (value) => (typeof value === "number" ? value : -1));
    this.total = table.numbers("total");
    this.own = table.numbers("own");
    this.count = table.numbers("count");
    this.unit = table.facts.find((column) => column.name === "total")?.unit ?? "";
    this.boxes = laidOut(parent, this.total);
    const [functions, files] = [table.texts("function"), table.texts("file")];
    const [lines, users, rests] = [table.values("line"), table.values("user"), table.numbers("rest")];
    this.frames = parent.map((_, index) => ({
      function: functions[index] ?? "",
      file: files[index] ?? "",
      line: typeof lines[index] === "number" ? (lines[index] as number) : null,
      user: users[index] === true,
      rest: rests[index] ?? 0,
    }));
    this.files = colored(this.frames, this.own);
    this.looks = this.frames.map((frame) => look(frame, this.files.get(frame.file)));
    const keys: string[] = [];
    this.frames.forEach((frame, index) => {
      keys.push(hash(`${keys[parent[index] ?? -1] ?? ""}\n${frame.rest ? "\n" : called(frame)}`));
    });
    this.#keys = keys;
    this.#places = new Map(keys.map((key, index) => [key, index]));
  }

  get whole(): number {
    return this.boxes.whole;
  }

  key(index: number): string | undefined {
    return this.#keys[index];
  }

  /** The box of a key, -1 where there is none. */
  place(key: string | undefined): number {
    return key === undefined ? -1 : (this.#places.get(key) ?? -1);
  }

  /** Which boxes hold a text, and what they weigh together, each thing counted once. Null for an empty text. */
  search(text: string, around: number): Found | null {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const mask = new Uint8Array(this.frames.length);
    const [first, last] = this.within(around);
    let [frames, weight, counted] = [0, 0, 0];
    for (let index = 0; index < this.frames.length; index++) {
      const frame = this.frames[index];
      if (!frame || frame.rest > 0 || !spellings(frame).includes(wanted)) continue;
      mask[index] = 1;
      if (index < first || index >= last) continue;
      frames++;
      // What is within a box that was counted is counted with it.
      if (index < counted) continue;
      counted = beyond(this.boxes, index);
      weight += this.total[index] ?? 0;
    }
    const whole = around < 0 ? this.whole : (this.total[around] ?? 0);
    return { mask, frames, weight, percent: whole > 0 ? (100 * weight) / whole : 0 };
  }

  /** A box and what is within it: from the first to before the second. All for -1. */
  within(index: number): [first: number, last: number] {
    return index < 0 ? [0, this.frames.length] : [index, beyond(this.boxes, index)];
  }
}

export interface Found {
  mask: Uint8Array;
  frames: number;
  weight: number;
  percent: number;
}

/** The name of a file without its folders. */
export function fileName(file: string): string {
  return file.slice(Math.max(file.lastIndexOf("/"), file.lastIndexOf("\\")) + 1);
}

/** Names of files, with the folder where two would read the same, as `__init__.py` does. */
export function fileNames(files: readonly string[]): readonly string[] {
  const names = files.map(fileName);
  return files.map((file, index) => {
    const name = names[index] ?? "";
    const folder = fileName(file.slice(0, Math.max(0, file.length - name.length - 1)));
    return folder && names.filter((one) => one === name).length > 1 ? `${folder}/${name}` : name;
  });
}

/** A frame in words: `forward  model.py:12`. */
export function frameText(frame: Frame): string {
  if (frame.rest > 0) return `${frame.rest} more`;
  if (!frame.function && !frame.file) return "no frames outside torch";
  const where = frame.file ? `  ${fileName(frame.file)}${frame.line === null ? "" : `:${frame.line}`}` : "";
  return plain(`${frame.function}${where}`);
}

/** A frame as people may write it, the second time as the tables do. */
function spellings(frame: Frame): string {
  return `${called(frame)}\n${frame.file}(${frame.line ?? ""}): ${frame.function}`.toLowerCase();
}

/** The whole of a frame. */
function called(frame: Frame): string {
  return `${frame.function} ${frame.file}:${frame.line ?? ""}`;
}

/** Colors of the theme for files; the others share that of Python. */
const FILE_COLORS = [
  "operator",
  "backward",
  "copy",
  "annotation",
  "input",
  "communication",
  "activation",
  "sync",
] as const;

/** Gives the program's files in which most was spent a color each. */
function colored(frames: readonly Frame[], own: ArrayLike<number>): Map<string, string> {
  const weights = new Map<string, number>();
  frames.forEach(({ user, file }, index) => {
    if (user && file) weights.set(file, (weights.get(file) ?? 0) + (own[index] ?? 0));
  });
  const heaviest = [...weights].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1));
  return new Map(
    FILE_COLORS.flatMap((color, place): [string, string][] => {
      const [file] = heaviest[place] ?? [];
      return file === undefined ? [] : [[file, color]];
    }),
  );
}

function look(frame: Frame, color = "python"): Look {
  const text = frameText(frame);
  if (frame.rest > 0 || (!frame.function && !frame.file)) return { text, role: "idle", shade: "" };
  return frame.user
    ? { text, role: color, shade: frame.function }
    : { text, role: "runtime", shade: frame.function };
}

/** 53 bits of a text as letters and digits: enough to tell all frames of a trace apart. */
function hash(text: string): string {
  let [one, two] = [0xdeadbeef, 0x41c6ce57];
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index);
    one = Math.imul(one ^ code, 0x85ebca6b);
    two = Math.imul(two ^ code, 0xc2b2ae35);
  }
  one ^= Math.imul(one ^ (two >>> 15), 0x735a2d97);
  two ^= Math.imul(two ^ (one >>> 15), 0xcaf649a9);
  return (2 ** 32 * (2097151 & (two >>> 0)) + (one >>> 0)).toString(36);
}
