/** What runs on the host, in the groups in which the page offers it. */

import type { Columns } from "../source/source";
import { boxName, kernelName, plain, pythonName } from "../timeline/names";

export interface Category {
  key: string;
  title: string;
  /** The kinds of spans in it; all that match, where there are none. */
  kinds: readonly string[];
}

const KINDS: readonly (readonly [title: string, ...kinds: string[]])[] = [
  ["All"],
  ["Operators", "operator", "backward", "fused_kernel"],
  ["Ranges", "user_annotation", "step"],
  ["Collectives", "collective"],
  ["Runtime", "runtime", "driver", "sync", "overhead"],
  ["Python", "python", "module"],
];

export const CATEGORIES: readonly Category[] = KINDS.map(([title, ...kinds]) => ({
  key: kinds.length ? title.toLowerCase() : "",
  title,
  kinds,
}));

/** Calls of Python come from a question of their own: they enclose work and are none. */
export function isCall(kind: string | undefined): boolean {
  return kind === "python" || kind === "module";
}

const WORDS: Readonly<Record<string, string>> = {
  user_annotation: "range",
  sync: "wait",
  python: "Python",
};

export function kindWord(kind: string): string {
  return WORDS[kind] ?? kind.replaceAll("_", " ");
}

/** Kinds with the color of another. */
const LIKE: Readonly<Record<string, string>> = {
  user_annotation: "annotation",
  driver: "runtime",
  fused_kernel: "kernel",
};

/** The color of a kind, by its variable in the theme. */
export function kindColor(kind: string): string {
  return `var(--${LIKE[kind] ?? kind})`;
}

/** A name as a line of a table has room for it; the whole is in the title of the cell. */
export function lineName(kind: string, name: string, aten = false): string {
  if (isCall(kind)) return pythonName(plain(name));
  if (kind === "kernel") return kernelLine(name);
  const shown = boxName(kind, name);
  return aten && kind === "operator" ? shown.replace(ATEN, "") : shown;
}

const ATEN = /^aten::(?=.)/;
/** Names that the engine of autograd gives, which are nobody's operators. */
const AUTOGRAD = /^(?:torch::)?autograd::/;

/** Whether all operators of a table have the prefix `aten::`, so that it tells nothing. */
export function allAten(table: Columns): boolean {
  const [names, kinds] = [table.texts("name"), table.texts("kind")];
  return Array.prototype.every.call(
    names,
    (name: string | null, row) =>
      kinds[row] !== "operator" || ATEN.test(name ?? "") || AUTOGRAD.test(name ?? ""),
  );
}

/** What a compiler wrote without what is the same in all of it: `vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>`. */
export function kernelLine(name: string): string {
  const text = plain(name)
    .replace(/^void /, "")
    .replace(/\(anonymous namespace\)::|at::native::|c10::|std::/g, "");
  const line = withoutArguments(text) || text;
  // CUTLASS gives all its kernels one name; what tells them apart is the argument of the template.
  return /^cutlass\w*::Kernel\d*<([^<>]+)>$/.exec(line)?.[1] ?? line;
}

/** Without the list of parameters, which is the last thing in round brackets outside of sharp ones. */
function withoutArguments(text: string): string {
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (letter === "<") depth++;
    else if (letter === ">" && text[at - 1] !== "-") depth--;
    else if (letter === "(" && depth <= 0 && at > 0) return text.slice(0, at);
  }
  return text;
}

const TYPE = /\b(?:c10::)?(BFloat16|Half|__nv_bfloat16|__half|double|float|long|int|bool)\b/;

/** For each row of kernels a short name with its functor; where several have the same, with its type, and then with a number. */
export function kernelNames(names: ArrayLike<string | null>): string[] {
  const all = Array.from(names, (name) => plain(name ?? ""));
  const short = all.map(kernelName);
  const [alone, typed] = [
    owners(short, all),
    all.map((name, row) => [short[row], TYPE.exec(name)?.[1]].filter(Boolean).join("  ")),
  ];
  const ofTyped = owners(typed, all);
  return all.map((name, row) => {
    const [text = "", longer = ""] = [short[row], typed[row]];
    if (alone.get(text)?.length === 1) return text;
    const same = ofTyped.get(longer) ?? [];
    return same.length === 1 ? longer : `${longer}  #${same.indexOf(name) + 1}`;
  });
}

/** The names that each text is of, in an order that does not depend on that of the rows. */
function owners(texts: readonly string[], names: readonly string[]): Map<string, string[]> {
  const found = new Map<string, Set<string>>();
  texts.forEach((text, row) => {
    found.set(text, (found.get(text) ?? new Set()).add(names[row] ?? ""));
  });
  return new Map([...found].map(([text, set]) => [text, [...set].sort()]));
}

/** The frames of a place in the user's code, the innermost first, each as a line of a table has room for it. */
export function frames(place: string): string[] {
  return place.split(" ← ").map(frameLine);
}

/** `model.py:12 forward` for a frame recorded as `src/model.py(12): forward`. */
export function frameLine(frame: string): string {
  const text = plain(frame);
  const found = /^(.*)\((\d+)\): (.+)$/.exec(text);
  if (!found) return text;
  const [, path = "", line = "", called = ""] = found;
  return `${path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1)}:${line} ${called}`;
}
