/** What the server says of a trace as a whole. */

import type { Said } from "../health/health";
import type { LeftOut } from "./steps";

export interface Overview {
  program: string | null;
  ended: string | null;
  start_realtime_ns: number | null;
  duration_ns: number;
  facts: { label: string; value: string }[];
  spans: number;
  device_work: number;
  modules: number;
  stacks: number;
  memory: boolean;
  steps: StepFacts | null;
  tiles: Tile[];
  host: { thread: string; busy_ns: number; busy_percent: number | null; threads: number } | null;
}

export interface StepFacts {
  count: number;
  /** First steps that hold what came before the loop, by rank and start. */
  left_out: LeftOut[];
}

/** A number at the head of the page; with `ask`, another question has it. */
export interface Tile {
  title: string;
  ask?: string;
  value: readonly [number | null, string];
  more: Said;
  hint: Said;
}

export interface Peak {
  device: string;
  bytes: number;
  time_ns: number;
  /** Whether `bytes` is what the allocator counted; else it is what is attributed. */
  counted: boolean;
  attributed_bytes: number;
  reserved_bytes: number | null;
  size_bytes: number | null;
  categories: { category: string | null; bytes: number }[];
}

/** `2026-11-21 14:03:22`, in the time of the person who looks. */
export function moment(ns: number | null): string {
  if (ns === null) return "";
  const date = new Date(ns / 1e6);
  if (Number.isNaN(date.getTime())) return "";
  const pad = (value: number) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}
