/** Where the lines of a chart's axes lie, and what stands at them. */

import * as units from "../units";

const TIME_STEPS = [1, 2, 5];

/** Marks of a scale at round values of its unit: bytes in powers of two, everything else in tens. */
export function marks(low: number, high: number, most: number, unit: string): number[] {
  if (!(high > low) || most < 1) return [];
  const step = unit === "bytes" ? byteStep((high - low) / most) : tenStep((high - low) / most);
  const found: number[] = [];
  for (let value = Math.ceil(low / step) * step; value <= high && found.length < 100; value += step)
    found.push(value);
  return found;
}

function tenStep(least: number): number {
  const ten = 10 ** Math.floor(Math.log10(least));
  return (TIME_STEPS.find((factor) => factor * ten >= least) ?? 10) * ten;
}

/** 1, 2, 5, 10, 20 ... 500 of a unit, then 1 of the next. */
function byteStep(least: number): number {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(least, 1)) / 10));
  const step = tenStep(Math.max(least / unit, 1));
  return step >= 1000 ? unit * 1024 : step * unit;
}

/** Values at the marks: all of one unit, so that they can be compared at a glance. */
export function labels(values: readonly number[], unit: string): string[] {
  const step = values.length > 1 ? Math.abs((values[1] ?? 0) - (values[0] ?? 0)) : 0;
  if (unit === "ns") return values.map((value) => units.time(value));
  if (unit === "bytes") return values.map((value) => units.bytes(value));
  if (unit === "%") return values.map((value) => units.percent(value));
  const decimals = step > 0 && step < 1 ? Math.min(6, Math.ceil(-Math.log10(step))) : 0;
  return values.map((value) => (value >= 10_000 ? units.scaled(value) : value.toFixed(decimals)));
}

/** Each layer on top of those before it: what uPlot draws as lines whose gaps are filled. */
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
  value: ArrayLike<number>,
  at: number,
  around: number,
): number {
  let best = rowAt(time, at);
  for (let row = rowAt(time, at - around); row < time.length && (time[row] ?? 0) <= at + around; row++)
    if ((time[row] ?? 0) >= at - around && (value[row] ?? 0) > (value[best] ?? 0)) best = row;
  return best;
}
