/** What the page Compare is about: the facts of a comparison, its modules as a tree, and where a row leads. */

import { type Boxes, laidOut } from "../parts/icicle-rows";
import { address } from "../router";
import type { Columns } from "../source/source";

export interface About {
  verdict: "faster" | "slower" | "same" | "cannot tell";
  headline: string;
  /** Why there is no better verdict; empty where there is one. */
  reason: string;
  /** What the times are means of. */
  basis: string;
  /** What the difference of a step is spent on; null where there is none, or it is not known. */
  explanation: Explanation | null;
  /** The recordings of both sides, in words. */
  sides: readonly string[];
  /** What is missing from the recordings. */
  losses: readonly string[];
  /** What each count counts, and which of them are bytes. */
  counts: Readonly<Record<string, string>>;
  bytes: readonly string[];
  /** The names of the open traces; none in a report. */
  traces: readonly string[];
  /** The numbers of the two that are compared. */
  base: number;
  new: number;
}

export interface Explanation {
  title: string;
  base_ns: number;
  new_ns: number;
  /** They add up to the difference. */
  parts: readonly {
    what: string;
    base_ns: number;
    new_ns: number;
    change_ns: number;
    file: string | null;
    line: number | null;
    text: string | null;
    module: string | null;
  }[];
}

/** The kinds of rows, in the order in which they are offered. */
export const KINDS: readonly (readonly [kind: string, title: string])[] = [
  ["part", "Parts of the step"],
  ["module", "Modules"],
  ["operator", "Operators"],
  ["line", "Source lines"],
  ["kernel", "Kernels"],
  ["collective", "Collectives"],
];

/** Colors of the theme by verdict. */
export const ROLES: Readonly<Record<string, string>> = {
  slower: "sync",
  faster: "copy",
  same: "idle",
  "cannot tell": "cpu",
};

/** Modules within modules, as wide as the time that they take on the side where they take longer. */
export interface ModuleBoxes {
  boxes: Boxes;
  /** The row of each in the table, -1 for what only holds others. */
  rows: readonly number[];
  names: readonly string[];
  /** How much longer each takes, with those in it, in ns of a step. */
  changes: readonly number[];
}

/** The modules of a comparison by their paths. */
export function moduleBoxes(table: Columns): ModuleBoxes {
  interface Node {
    path: string;
    row: number;
    within: Node[];
    weight: number;
    change: number;
  }
  const root: Node = { path: "", row: -1, within: [], weight: 0, change: 0 };
  const nodes = new Map<string, Node>([["", root]]);
  const nodeOf = (path: string): Node => {
    const known = nodes.get(path);
    if (known) return known;
    const node: Node = { path, row: -1, within: [], weight: 0, change: 0 };
    nodes.set(path, node);
    nodeOf(path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "").within.push(node);
    return node;
  };
  const [kinds, paths] = [table.texts("kind"), table.texts("name")];
  const [base, changed] = [table.numbers("base_ns"), table.numbers("change_ns")];
  for (let row = 0; row < table.rows; row++) {
    if (kinds[row] !== "module") continue;
    const node = nodeOf(paths[row] ?? "");
    if (node !== root) node.row = row;
    node.change += changed[row] ?? 0;
    node.weight += Math.max(base[row] ?? 0, (base[row] ?? 0) + (changed[row] ?? 0));
  }
  const add = (node: Node): void => {
    for (const one of node.within) {
      add(one);
      node.weight += one.weight;
      node.change += one.change;
    }
    node.within.sort((a, b) => b.weight - a.weight);
  };
  add(root);
  const [order, parent]: [Node[], number[]] = [[], []];
  const place = (node: Node, around: number): void => {
    for (const one of node.within) {
      if (one.weight <= 0) continue;
      order.push(one);
      parent.push(around);
      place(one, order.length - 1);
    }
  };
  place(root, -1);
  return {
    boxes: laidOut(
      parent,
      order.map((node) => node.weight),
    ),
    rows: order.map((node) => node.row),
    names: order.map((node) => node.path),
    changes: order.map((node) => node.change),
  };
}

/** Where a row of a kind is shown in one of the traces; undefined where no page has it. */
export function leadsTo(
  kind: string,
  name: string,
  file: string,
  line: number,
  trace: number,
): string | undefined {
  const of = { trace: String(trace), part: undefined };
  if (kind === "operator") return address("operators", { ...of, name });
  if (kind === "module") return address("modules", { ...of, "modules.find": name });
  if (kind === "kernel") return address("kernels", { ...of, name });
  if (kind === "line") return address("stacks", { ...of, find: `${file.split(/[\\/]/).pop()}(${line})` });
  if (kind === "part" || kind === "step") return address("overview", of);
  return undefined;
}
