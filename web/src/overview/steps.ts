/** Steps and where their time went: the rows of the table `breakdown`, the bars they are drawn as, and their axis. */

import WORDS from "../../../src/kinetoscope/model/time_parts.json";
import { tenStep } from "../parts/chart-scale";
import type { Columns } from "../source/source";

export interface Part {
  /** Its column in the table. */
  column: string;
  /** Its color in the theme. */
  color: string;
  /** What it is called on a device. */
  title: string;
  /** What it is called where the host computed, if not the same: the host does not wait for itself. */
  hosted?: string | undefined;
}

const DRAWN: readonly (readonly [part: keyof typeof WORDS, color: string, hosted?: string])[] = [
  ["compute", "compute", title("operators")],
  ["communication", "communication"],
  ["copy", "copy"],
  ["data_wait", "input"],
  ["device_wait", "activation"],
  ["host_wait", "cpu", WORDS.python],
  ["blocked", "warn"],
  ["garbage", "overhead"],
  ["processor_wait", "sync"],
  ["idle", "idle"],
];

export const PARTS: readonly Part[] = DRAWN.map(([part, color, hosted]) => ({
  column: `${part}_ns`,
  color: `var(--${color})`,
  title: title(part),
  hosted,
}));

/** What a part is called at the beginning of a line. */
export function title(part: keyof typeof WORDS): string {
  return WORDS[part].charAt(0).toUpperCase() + WORDS[part].slice(1);
}

export function partTitle(part: Part, onHost: boolean): string {
  return (onHost && part.hosted) || part.title;
}

/** Whether all of some steps are those of the host. */
export function onHost(steps: readonly Step[]): boolean {
  return steps.every((step) => step.device === "cpu");
}

/** A device in one step, or in the whole trace where there are no steps. */
export interface Step {
  number: number | null;
  process: number | null;
  /** What the process is called, in a trace of several. */
  name: string;
  rank: number | null;
  device: string;
  /** Whether no sum counts it: it holds what ran before the loop. */
  startUp: boolean;
  /** As in the table `step_kinds`; null where all steps are of one kind. */
  kind: number | null;
  start: number;
  duration: number;
  /** As in `PARTS`; together they are the duration. */
  parts: readonly number[];
  unrecorded: number;
}

export function stepsOf(table: Columns, names: Readonly<Record<string, string>> = {}): Step[] {
  const number = (name: string, row: number) => table.numbers(name)[row] ?? 0;
  const kinds = Array.from(table.values("step_kind"), (kind) => (typeof kind === "number" ? kind : null));
  const several = new Set(kinds.filter((kind) => kind !== null)).size > 1;
  return Array.from({ length: table.rows }, (_, row) => ({
    number: table.numbers("step")[row] ?? null,
    process: table.numbers("process")[row] ?? null,
    name: names[String(table.numbers("process")[row] ?? "")] ?? "",
    rank: table.numbers("rank")[row] ?? null,
    device: table.texts("device")[row] ?? "",
    startUp: table.values("start_up")[row] === true,
    kind: several ? (kinds[row] ?? null) : null,
    start: number("start_ns", row),
    duration: number("duration_ns", row),
    parts: PARTS.map((part) => number(part.column, row)),
    unrecorded: number("unrecorded_ns", row),
  }));
}

/** A device of a process, with its steps in order of time. */
export interface Place {
  key: string;
  title: string;
  rank: number | null;
  device: string;
  steps: Step[];
}

export function placesOf(steps: readonly Step[]): Place[] {
  const places = new Map<string, Place>();
  for (const step of steps) {
    const { rank, device, process } = step;
    const key = `${rank ?? ""}/${step.name ? process : ""}/${device}`;
    const place = places.get(key) ?? { key, title: placeTitle(step), rank, device, steps: [] };
    place.steps.push(step);
    places.set(key, place);
  }
  return [...places.values()].sort(
    (a, b) => (a.rank ?? -1) - (b.rank ?? -1) || a.device.localeCompare(b.device, "en", { numeric: true }),
  );
}

/** The steps that are compared: start-up is left out, and so are processes without steps where others have some. */
export function compared(steps: readonly Step[]): Step[] {
  const stepping = steps.some((step) => step.number !== null);
  return steps.filter((step) => !step.startUp && (step.number !== null || !stepping));
}

/** The steps in which about the same operators run, of a program that has several kinds of steps. */
export interface StepKind {
  kind: number;
  count: number;
  /** What one takes on average. */
  mean: number;
  /** Its share of the time of all steps, in percent. */
  share: number;
  /** The number of the step in the middle; null where steps have none. */
  middle: number | null;
}

/** The kinds of some steps, the one with most time first; none where all are of one kind. */
export function kindsOf(steps: readonly Step[]): StepKind[] {
  const kinds = new Map<number, Step[]>();
  for (const step of steps)
    if (step.kind !== null) kinds.set(step.kind, [...(kinds.get(step.kind) ?? []), step]);
  if (kinds.size < 2) return [];
  const all = summed(steps).duration;
  return [...kinds]
    .map(([kind, mine]) => {
      const sorted = [...mine].sort((a, b) => a.duration - b.duration);
      const middle = sorted[Math.floor((sorted.length - 1) / 2)];
      return {
        kind,
        count: mine.length,
        mean: summed(mine).duration / mine.length,
        share: all > 0 ? (100 * summed(mine).duration) / all : 0,
        middle: middle?.number ?? null,
      };
    })
    .sort((a, b) => b.share - a.share);
}

type Named = Pick<Step, "number" | "rank" | "name" | "device">;

export function placeTitle(step: Named): string {
  const name = step.rank === null || step.number === null ? step.name : "";
  return [name, step.rank !== null && `rank ${step.rank}`, step.device].filter(Boolean).join(" · ");
}

/** What some steps come to together. */
export interface Sum {
  duration: number;
  parts: readonly number[];
  unrecorded: number;
}

export function summed(steps: readonly Step[]): Sum {
  const sum = (value: (step: Step) => number) => steps.reduce((all, step) => all + value(step), 0);
  return {
    duration: sum((step) => step.duration),
    parts: PARTS.map((_, part) => sum((step) => step.parts[part] ?? 0)),
    unrecorded: sum((step) => step.unrecorded),
  };
}

/** One bar: a step, or the mean of several that follow each other where there is no room for a bar each. */
export interface Bar {
  steps: readonly Step[];
  /** The mean of its steps. */
  duration: number;
  parts: readonly number[];
  unrecorded: number;
  least: number;
  most: number;
  start: number;
  end: number;
}

export function barOf(steps: readonly Step[]): Bar {
  const sum = summed(steps);
  const count = steps.length;
  const durations = steps.map((step) => step.duration);
  return {
    steps,
    duration: sum.duration / count,
    parts: sum.parts.map((part) => part / count),
    unrecorded: sum.unrecorded / count,
    least: Math.min(...durations),
    most: Math.max(...durations),
    start: Math.min(...steps.map((step) => step.start)),
    end: Math.max(...steps.map((step) => step.start + step.duration)),
  };
}

/** Bars for some steps, at most about `room` of them: each of 1, 2, 5, 10, 20 ... steps. */
export function barsOf(steps: readonly Step[], room: number): Bar[] {
  const each = roundUp(steps.length / Math.max(room, 1));
  const bars: Bar[] = [];
  for (let first = 0; first < steps.length; first += each) bars.push(barOf(steps.slice(first, first + each)));
  return bars;
}

/** The next of 1, 2, 5, 10, 20, 50 ... */
export function roundUp(value: number): number {
  return value <= 1 ? 1 : tenStep(value);
}

/** The shortest, mean and longest of some times. */
export function spread(times: readonly number[]): Record<"min" | "mean" | "max", number> {
  const sum = times.reduce((all, time) => all + time, 0);
  return { min: Math.min(...times), mean: sum / times.length, max: Math.max(...times) };
}

export function rising(values: readonly number[]): number[] {
  return [...values].sort((a, b) => a - b);
}

/** The top of the axis. A few bars far above all others are cut there. */
export function axisTop(bars: readonly Bar[]): number {
  const values = rising(bars.map((bar) => bar.most));
  const largest = values[values.length - 1] ?? 0;
  const limit = values.length < 8 ? largest : quantile(values, 0.9) * 2.5;
  return largest <= limit ? largest * 1.05 : Math.max(...values.filter((value) => value <= limit)) * 1.15;
}

/** The same for a few bars, of which some are not compared with the others: those may be cut, `times` are the others'. */
export function rowsTop(bars: readonly Bar[], times: readonly number[]): number {
  const longest = Math.max(1, ...bars.map((bar) => bar.duration));
  const usual = Math.max(0, ...times);
  return usual && longest > 2 * usual ? usual * 1.25 : longest;
}

/** The value below which a share of ascending values lies; between two it is taken in proportion. */
export function quantile(ascending: readonly number[], share: number): number {
  if (ascending.length === 0) return Number.NaN;
  const at = share * (ascending.length - 1);
  const low = ascending[Math.floor(at)] ?? 0;
  const high = ascending[Math.ceil(at)] ?? 0;
  return low + (high - low) * (at - Math.floor(at));
}

/** Round values from 0 up to the top, about one for each `least` of `pixels`. */
export function marks(top: number, pixels: number, least = 44): number[] {
  if (!(top > 0)) return [];
  const step = tenStep((top * least) / Math.max(pixels, 1));
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => index * step);
}

/** How many values lie in each of `bins` equal stretches from 0 to the top; those above it count in the last one. */
export function counted(values: readonly number[], top: number, bins: number): number[] {
  const counts = new Array<number>(bins).fill(0);
  for (const value of top > 0 ? values : []) {
    const bin = Math.min(Math.floor((value / top) * bins), bins - 1);
    counts[bin] = (counts[bin] ?? 0) + 1;
  }
  return counts;
}

/** `Step 12`, `Steps 10 to 19 · kind 1`, `Whole trace`. */
export function barTitle(bar: Bar): string {
  const numbers = bar.steps.map((step) => step.number).filter((number) => number !== null);
  const [first, last] = [numbers[0], numbers[numbers.length - 1]];
  if (first === undefined) return "Whole trace";
  const kinds = new Set(bar.steps.map((step) => step.kind));
  const [kind] = kinds;
  const ofKind = kinds.size === 1 && typeof kind === "number" ? ` · kind ${kind}` : "";
  return (first === last ? `Step ${first}` : `Steps ${first} to ${last}`) + ofKind;
}
