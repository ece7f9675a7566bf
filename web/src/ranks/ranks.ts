/** What the page Ranks shows of a job, and in which order and colors. */

import type { Columns } from "../source/source";

export interface About {
  ranks: number;
  /** The numbers of the steps, ascending. */
  steps: readonly number[];
  /** What the map can be colored by: the name for the request, and the title. */
  measures: readonly (readonly [name: string, title: string])[];
  /** The dimensions of the job, such as dp; columns of the table of ranks. */
  dimensions: readonly string[];
  /** What is wrong with the summaries as those of one job, in sentences. */
  notes: readonly string[];
}

export interface StepFacts {
  rank: number;
  host: string | null;
  source: string;
  step: number;
  /** Each part: its title, its time on this rank, and the median over all ranks. */
  parts: readonly (readonly [title: string, own: number, median: number])[];
  collectives: readonly {
    collective: number;
    name: string;
    group: string;
    ranks: number;
    bytes: number | null;
    late_ns: number;
    last_rank: number;
    last_ns: number;
  }[];
}

/** Columns by which rows are arranged from the smallest on; the others have the largest on top. */
const PLACES = ["rank", "host", "device"];

/** The rows of the table in the order of a column; of equal ones the first rank is first. */
export function ordered(table: Columns, column: string, dimensions: readonly string[]): Int32Array {
  const rows = Int32Array.from({ length: table.rows }, (_, row) => row);
  if (!table.has(column)) return rows;
  const values = table.values(column);
  const sign = PLACES.includes(column) || dimensions.includes(column) ? 1 : -1;
  return rows.sort((one, other) => {
    const [a, b] = [values[one] ?? null, values[other] ?? null];
    if (a === b) return one - other;
    if (a === null || b === null) return a === null ? 1 : -1;
    return (a < b ? -1 : 1) * sign;
  });
}

/** The values at which the colors begin and end: nearly the lowest and nearly the highest, so that one outlier does not pale all others. */
export function limits(values: ArrayLike<number>): [low: number, high: number] {
  const known = Float64Array.from(Array.prototype.filter.call(values, Number.isFinite)).sort();
  const at = (share: number) => known[Math.round(share * (known.length - 1))] ?? 0;
  const [low, high] = [at(0.02), at(0.995)];
  return high > low ? [low, high] : [low, low + 1];
}

/** The map as pixels: of cells that share one the highest value, and for each pixel which cell that is, -1 for none. */
export function pixels(
  values: ArrayLike<number>,
  steps: number,
  order: Int32Array,
  width: number,
  height: number,
): { columns: number; rows: number; cell: Int32Array } {
  const columns = Math.min(steps, Math.max(width, 1));
  const rows = Math.min(order.length, Math.max(height, 1));
  const cell = new Int32Array(columns * rows).fill(-1);
  order.forEach((row, place) => {
    const base = Math.floor((place * rows) / order.length) * columns;
    for (let step = 0; step < steps; step++) {
      const at = base + Math.floor((step * columns) / steps);
      const value = values[row * steps + step] ?? Number.NaN;
      const before = cell[at] ?? -1;
      if (Number.isFinite(value) && (before < 0 || value > (values[before] ?? 0)))
        cell[at] = row * steps + step;
    }
  });
  return { columns, rows, cell };
}

/** The arrivals that are far from the others, in robust standard deviations, and the last one. */
export function lateOnes(late: ArrayLike<number>): Set<number> {
  const rows = Array.from(late, (_, row) => row);
  const middle = median(rows.map((row) => late[row] ?? 0));
  const spread = 1.4826 * median(rows.map((row) => Math.abs((late[row] ?? 0) - middle)));
  const far = rows.filter((row) => (late[row] ?? 0) > middle + 5 * Math.max(spread, 1));
  const last = rows.reduce((a, b) => ((late[b] ?? 0) > (late[a] ?? 0) ? b : a), 0);
  return new Set(far.length > 0 ? far : [last]);
}

function median(values: number[]): number {
  values.sort((a, b) => a - b);
  const half = values.length / 2;
  return ((values[Math.ceil(half) - 1] ?? 0) + (values[Math.floor(half)] ?? 0)) / 2;
}

type Color = readonly [number, number, number];

/** From little to much; in both themes what is much stands out from the ground. */
const RAMPS: Readonly<Record<string, readonly Color[]>> = {
  light: [
    [232, 239, 246],
    [158, 202, 225],
    [49, 130, 189],
    [8, 48, 107],
  ],
  dark: [
    [28, 38, 49],
    [31, 84, 122],
    [92, 174, 232],
    [255, 236, 179],
  ],
};

/** The color of a share between 0 and 1. */
export function rampColor(theme: string, share: number): Color {
  const ramp = RAMPS[theme] ?? [];
  const at = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const [low, high] = [ramp[Math.floor(at)] ?? [0, 0, 0], ramp[Math.ceil(at)] ?? [0, 0, 0]];
  const mixed = (place: 0 | 1 | 2) => Math.round(low[place] + (high[place] - low[place]) * (at % 1));
  return [mixed(0), mixed(1), mixed(2)];
}

/** The same as a CSS gradient. */
export function rampGradient(theme: string): string {
  return `linear-gradient(to right, ${(RAMPS[theme] ?? []).map((one) => `rgb(${one.join()})`).join(", ")})`;
}
