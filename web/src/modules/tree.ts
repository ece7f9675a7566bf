/** The outline of modules: which rows are in sight, in which order, and which of them can be opened. */

import type { Columns } from "../source/source";

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

/**
 * The rows in sight, from the top.
 *
 * @param found What is searched for: it is in sight with all that is around it, opened or not. Null for no search.
 * @param order Compares two rows that one row holds.
 */
export function inSight(
  tree: Tree,
  opened: ReadonlySet<number>,
  found: ArrayLike<number> | null,
  order: (a: number, b: number) => number,
): Int32Array {
  const kept = found && new Set(Array.from(found, (row) => rowsAround(tree, row)).flat());
  const within = (row: number): number[] =>
    (tree.held.get(row) ?? [])
      .filter((inner) => !kept || kept.has(inner))
      .sort(order)
      .flatMap((inner) => [inner, ...(kept || opened.has(inner) ? within(inner) : [])]);
  return Int32Array.from(within(-1));
}

/** The name of a module without what holds it. */
export function shortPath(path: string): string {
  return path.slice(path.lastIndexOf(".") + 1);
}
