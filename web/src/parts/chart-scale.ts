/** The marks, layers and rows of a chart. */

import * as units from "../units";

/** Round numbers of bytes from 0 on, about so many at most. */
export function byteMarks(high: number, most: number): number[] {
  const step = byteStep(high / most);
  return Array.from({ length: Math.floor(high / step) + 1 }, (_, row) => row * step);
}

/** The next of 1, 2 or 5 times a power of ten. */
export function tenStep(least: number): number {
  const ten = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((factor) => factor * ten >= least * 0.999_999) ?? 10) * ten;
}

/** 1, 2, 5, 10 ... 500 of a unit, then 1 of the next. */
function byteStep(least: number): number {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(least, 1)) / 10));
  const step = tenStep(Math.max(least / unit, 1));
  return step >= 1000 ? unit * 1024 : step * unit;
}

/** A value with its unit. */
export function reading(value: number | null | undefined, unit: string): string {
  if (unit.startsWith("bytes")) return units.bytes(value) + (value == null ? "" : unit.slice(5));
  if (unit === "%") return units.percent(value);
  return units.scaled(value, unit);
}

/** Each layer on top of those before it. */
export function stacked(layers: readonly ArrayLike<number | null>[], length: number): Float64Array[] {
  const below = new Float64Array(length);
  return layers.map((layer) => {
    for (let row = 0; row < length; row++) below[row] = (below[row] ?? 0) + (layer[row] ?? 0);
    return below.slice();
  });
}

/** The last row whose time is not after `at`; 0 where all are. */
export function rowAt(time: ArrayLike<number>, at: number): number {
  let low = 0;
  let high = time.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((time[middle] ?? 0) <= at) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The row with the highest value among those within `around` of a time; the one that holds then, if there is none. */
export function highestNear(
  time: ArrayLike<number>,
  value: ArrayLike<number | null>,
  at: number,
  around: number,
): number {
  let best = -1;
  for (let row = rowAt(time, at - around); row < time.length && (time[row] ?? 0) <= at + around; row++) {
    if ((time[row] ?? 0) < at - around) continue;
    if (best < 0 || (value[row] ?? 0) > (value[best] ?? 0)) best = row;
  }
  return best < 0 ? rowAt(time, at) : best;
}
