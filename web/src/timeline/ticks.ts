/** The marks of the time axis and how moments are written. */

import { TIME_UNITS } from "../units";
import type { View } from "./view";

export interface Ticks {
  /** Between two labelled marks. */
  step: number;
  /** Where labels count from; null where they count from the start of the trace. */
  base: number | null;
  major: readonly { time: number; label: string }[];
  minor: readonly number[];
}

/** More decimals than this and a label is too long to be read: labels then count from a base. */
const MOST_DECIMALS = 3;

export function ticks(view: View, pixels: number, least = 92): Ticks {
  const width = view.end - view.start;
  const step = stepFor((width * least) / Math.max(pixels, 1));
  let unit = unitFor(Math.max(Math.abs(view.end), step));
  let base: number | null = null;
  if (decimals(step, unit[0]) > MOST_DECIMALS) {
    const coarse = 10 ** Math.ceil(Math.log10(width));
    base = Math.floor(view.start / coarse) * coarse;
    unit = unitFor(Math.max(view.end - base, step));
  }
  const digits = decimals(step, unit[0]);
  const from = base ?? 0;
  const major: { time: number; label: string }[] = [];
  const first = Math.ceil((view.start - from) / step);
  const last = Math.floor((view.end - from) / step);
  for (let index = first; index <= last; index++) {
    const offset = index * step;
    const text = index === 0 ? "0" : `${(offset / unit[0]).toFixed(digits)} ${unit[1]}`;
    major.push({ time: from + offset, label: base === null ? text : `+${text}` });
  }
  const fine = step / (leading(step) === 2 ? 4 : 5);
  const minor: number[] = [];
  const end = Math.floor((view.end - from) / fine);
  for (let index = Math.ceil((view.start - from) / fine); index <= end; index++)
    minor.push(from + index * fine);
  return { step, base, major, minor };
}

/** A moment, exact to `resolution` nanoseconds. */
export function moment(ns: number, resolution = 1): string {
  const unit = unitFor(Math.max(Math.abs(ns), resolution));
  const digits = Math.min(decimals(10 ** Math.floor(Math.log10(Math.max(resolution, 1))), unit[0]), 9);
  return `${grouped((ns / unit[0]).toFixed(digits))} ${unit[1]}`;
}

/** Decimals in threes with narrow spaces between: `1.234 567`. */
function grouped(text: string): string {
  const [whole = "", rest] = text.split(".");
  return rest === undefined ? whole : `${whole}.${rest.replace(/(\d{3})(?=\d)/g, "$1\u202f")}`;
}

/** The smallest of 1, 2, 5 times a power of ten that is at least this. */
function stepFor(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  const ratio = Math.max(least, 1) / power;
  // A hair of room for what rounding adds.
  return power * (ratio <= 1.000001 ? 1 : ratio <= 2.000001 ? 2 : ratio <= 5.000001 ? 5 : 10);
}

function leading(step: number): number {
  return Math.round(step / 10 ** Math.floor(Math.log10(step) + 1e-9));
}

function unitFor(ns: number): readonly [number, string] {
  return TIME_UNITS.find(([unit]) => ns >= unit) ?? [1, "ns"];
}

function decimals(step: number, unit: number): number {
  return Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
}
