/** The outline of modules: which rows are in sight, in which order, and which of them can be opened. */

import type { Columns, Value } from "../source/source";

export interface Tree {
  /** The number of the module in each row of the table, and the row of each module. */
  ids: readonly number[];
  places: ReadonlyMap<number, number>;
  /** The row that holds each row, -1 for none; above it. */
  parent: Int32Array;
  depth: Int32Array;
  /** The rows that each holds, and at -1 those that nothing holds. */
  held: ReadonlyMap<number, readonly number[]>;
}

export function treeOf(table: Columns): Tree {
  const ids = Array.from(table.numbers("id"));
  const places = new Map(ids.map((id, row) => [id, row]));
  const holders = table.values("parent");
  const parent = new Int32Array(table.rows);
  const depth = new Int32Array(table.rows);
  const held = new Map<number, number[]>();
  for (let row = 0; row < table.rows; row++) {
    const holder = holders[row];
    const above = typeof holder === "number" ? (places.get(holder) ?? -1) : -1;
    // An outline has what holds a row above it; a table that was cut may lack it.
    parent[row] = above < row ? above : -1;
    const around = parent[row] ?? -1;
    depth[row] = around < 0 ? 0 : (depth[around] ?? 0) + 1;
    const rows = held.get(around);
    if (rows) rows.push(row);
    else held.set(around, [row]);
  }
  return { ids, places, parent, depth, held };
}

/** The rows around a row, the outermost first, and itself. */
export function rowsAround(tree: Tree, row: number): number[] {
  const path: number[] = [];
  for (let at = row; at >= 0; at = tree.parent[at] ?? -1) path.push(at);
  return path.reverse();
}

/** Rows opened from the start: level by level, as long as that shows no more than `most` rows. */
export function openedAtFirst(tree: Tree, most: number): Set<number> {
  const opened = new Set<number>();
  let level = tree.held.get(-1) ?? [];
  let shown = level.length;
  while (level.length) {
    const next = level.flatMap((row) => tree.held.get(row) ?? []);
    if (shown + next.length > most && opened.size > 0) break;
    for (const row of level) if (tree.held.has(row)) opened.add(row);
    shown += next.length;
    level = next;
  }
  return opened;
}

/** Rows that hold a text, and all rows around these; null for an empty text. */
export function matching(tree: Tree, texts: readonly ArrayLike<Value>[], text: string): Matching | null {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const found = new Set<number>();
  const kept = new Set<number>();
  for (let row = 0; row < tree.ids.length; row++) {
    if (
      !texts.some((values) =>
        String(values[row] ?? "")
          .toLowerCase()
          .includes(wanted),
      )
    )
      continue;
    found.add(row);
    for (let at = row; at >= 0 && !kept.has(at); at = tree.parent[at] ?? -1) kept.add(at);
  }
  return { found, kept };
}

export interface Matching {
  found: ReadonlySet<number>;
  /** Those found and all rows around them. */
  kept: ReadonlySet<number>;
}

/**
 * The rows in sight, from the top. What is searched for is in sight with all that is around it, opened or not.
 *
 * @param order Compares two rows that one row holds.
 */
export function inSight(
  tree: Tree,
  opened: ReadonlySet<number>,
  match: Matching | null,
  order: (a: number, b: number) => number,
): number[] {
  const rows: number[] = [];
  const waiting = [...(tree.held.get(-1) ?? [])].sort(order).reverse();
  while (waiting.length) {
    const row = waiting.pop() ?? 0;
    if (match && !match.kept.has(row)) continue;
    rows.push(row);
    if (match ? !holdsKept(tree, match, row) : !opened.has(row)) continue;
    waiting.push(...[...(tree.held.get(row) ?? [])].sort(order).reverse());
  }
  return rows;
}

function holdsKept(tree: Tree, match: Matching, row: number): boolean {
  return (tree.held.get(row) ?? []).some((inner) => match.kept.has(inner));
}

/** Compares rows by a column; what has no value comes last. */
export function byColumn(values: ArrayLike<Value>, descending: boolean): (a: number, b: number) => number {
  const sign = descending ? -1 : 1;
  return (a, b) => {
    const [left, right] = [values[a] ?? null, values[b] ?? null];
    if (left === null || right === null) return left === right ? a - b : left === null ? 1 : -1;
    if (typeof left === "string" && typeof right === "string")
      return left === right ? a - b : sign * (left < right ? -1 : 1);
    return sign * (Number(left) - Number(right)) || a - b;
  };
}

/** The name of a module without what holds it. */
export function shortPath(path: string): string {
  return path.slice(path.lastIndexOf(".") + 1);
}
