/** Boxes in rows, each within one of the row above: where they are, and which lie beside which. */

/** The boxes in order: each is followed by those within it, from left to right. */
export interface Boxes {
  /** Where each begins and ends, from 0 to `whole`. */
  start: Float64Array;
  end: Float64Array;
  row: Int32Array;
  /** The box around each, -1 for none. */
  parent: Int32Array;
  rows: number;
  whole: number;
}

/**
 * Lay out boxes side by side.
 *
 * @param parent The box around each, before it and its neighbors; -1 for none.
 * @param weight How wide each is: those within one are together no wider than it.
 */
export function laidOut(parent: ArrayLike<number>, weight: ArrayLike<number>): Boxes {
  const size = parent.length;
  const boxes: Boxes = {
    start: new Float64Array(size),
    end: new Float64Array(size),
    row: new Int32Array(size),
    parent: Int32Array.from(parent),
    rows: 0,
    whole: 0,
  };
  const filled = new Float64Array(size);
  for (let index = 0; index < size; index++) {
    const around = boxes.parent[index] ?? -1;
    const start = around < 0 ? boxes.whole : (filled[around] ?? 0);
    const end = start + (weight[index] ?? 0);
    boxes.start[index] = filled[index] = start;
    boxes.end[index] = end;
    boxes.row[index] = around < 0 ? 0 : (boxes.row[around] ?? 0) + 1;
    boxes.rows = Math.max(boxes.rows, (boxes.row[index] ?? 0) + 1);
    if (around < 0) boxes.whole = end;
    else filled[around] = end;
  }
  return boxes;
}

/** The box at a place, -1 for none. */
export function boxAt(boxes: Boxes, row: number, at: number): number {
  for (let index = 0; index < boxes.row.length; index++) {
    if (boxes.row[index] !== row) continue;
    if ((boxes.start[index] ?? 0) <= at && at < (boxes.end[index] ?? 0)) return index;
  }
  return -1;
}

/** The first box after all that is within a box. */
export function beyond(boxes: Boxes, index: number): number {
  const row = boxes.row[index] ?? 0;
  let next = index + 1;
  while (next < boxes.row.length && (boxes.row[next] ?? 0) > row) next++;
  return next;
}

/** Boxes around a box, the outermost first, and itself. */
export function pathTo(boxes: Boxes, index: number): number[] {
  const path: number[] = [];
  for (let at = index; at >= 0; at = boxes.parent[at] ?? -1) path.push(at);
  return path.reverse();
}

/** The first row in which something stands beside something else of any size. */
export function forkRow(boxes: Boxes): number {
  for (let index = 0; index < boxes.row.length; index++) {
    const width = (boxes.end[index] ?? 0) - (boxes.start[index] ?? 0);
    // The widest within each comes first, so the first path is the trunk.
    if (boxes.row[index] !== index || width < 0.97 * boxes.whole) return boxes.row[index] ?? 0;
  }
  return 0;
}

/** The box that an arrow key leads to: around, the widest within, or the nearest in the same row. */
export function neighbor(boxes: Boxes, index: number, key: string): number {
  const size = boxes.row.length;
  if (index < 0 || index >= size) return size > 0 ? 0 : -1;
  const row = boxes.row[index];
  if (key === "ArrowUp")
    return Math.max(boxes.parent[index] ?? -1, -1) < 0 ? index : (boxes.parent[index] ?? 0);
  if (key === "ArrowDown") return widestWithin(boxes, index);
  const step = key === "ArrowLeft" ? -1 : 1;
  for (let at = index + step; at >= 0 && at < size; at += step) if (boxes.row[at] === row) return at;
  return index;
}

function widestWithin(boxes: Boxes, index: number): number {
  const last = beyond(boxes, index);
  let found = index;
  let most = -1;
  for (let at = index + 1; at < last; at++) {
    if (boxes.parent[at] !== index) continue;
    const width = (boxes.end[at] ?? 0) - (boxes.start[at] ?? 0);
    if (width > most) [found, most] = [at, width];
  }
  return found;
}
