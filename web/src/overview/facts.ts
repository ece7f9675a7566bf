/** What the server says of a trace as a whole. */

import type { LeftOut } from "./steps";

export interface Overview {
  program: string | null;
  ended: string | null;
  start_realtime_ns: number | null;
  duration_ns: number;
  facts: { label: string; value: string }[];
  processes: number;
  spans: number;
  operators: number;
  kernels: number;
  device_work: number;
  threads: number;
  modules: number;
  stacks: number;
  shapes: number;
  allocations: number;
  collectives: number;
  counters: number;
  memory: boolean;
  steps: StepFacts | null;
  host: { thread: string; busy_ns: number; busy_percent: number | null; threads: number } | null;
}

export interface StepFacts {
  count: number;
  numbers: number;
  processes: number;
  median_ns: number;
  min_ns: number;
  max_ns: number;
  p95_ns: number;
  /** First steps that hold what came before the loop, by rank and start: the numbers above leave them out. */
  left_out: LeftOut[];
}

export interface Work {
  flops: number | null;
  flops_per_s: number | null;
  mfu_percent: number | null;
  covered_percent: number | null;
}

export interface Peak {
  device: string;
  bytes: number;
  time_ns: number;
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
