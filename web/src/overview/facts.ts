/** What the server says of a trace as a whole. */

import type { Said } from "../health/health";

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
  /** The names of processes by their numbers, in a trace of several. */
  process_names: Record<string, string>;
  utilization: Utilization[];
  /** A sentence for each name of requests: how many, how long they took, and on what. */
  requests: readonly string[];
  incident: Incident | null;
  /** Why the trace has no times; empty if it has. */
  without_times: string;
}

/** Why a job that was left on kept these steps. */
export interface Incident {
  title: string;
  /** What else is known, a sentence each. */
  notes: readonly string[];
  /** When the recording ends: the last moment that is known. */
  end_ns: number;
}

/** How busy a device was, or a process that used none. */
export interface Utilization {
  title: string;
  percent: number;
  model: string | null;
  working_ns: number;
  duration_ns: number;
  /** How many steps that is of; 0 where all that was recorded counts. */
  steps: number;
  on_host: boolean;
}

export interface StepFacts {
  count: number;
  /** The kinds of steps, and by which operator each differs most. */
  kinds: readonly { kind: number; most_of: string | null }[];
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
