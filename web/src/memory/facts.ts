/** What the server says of the memories of a trace, and how the page colors them. */

import type { Layer } from "../parts/chart";
import type { Columns } from "../source/source";

export interface Device {
  /** What questions call it. */
  key: string;
  device: string;
  process: number;
  rank: number | null;
  blocks: number;
  peak_bytes: number;
  peak_ns: number;
  /** How much of the peak is of unknown category. */
  unknown_percent: number;
  end_bytes: number;
  never_freed: number;
  /** The highest that the allocator counted, null where it did not say. */
  allocated_bytes: number | null;
  reserved_bytes: number | null;
  modules: boolean;
  stacks: boolean;
}

export interface Memory {
  recorded: boolean;
  start_ns: number;
  duration_ns: number;
  /** The key of the device with the highest peak. */
  highest: string | null;
  devices: readonly Device[];
}

const CATEGORY_COLORS: Readonly<Record<string, string>> = {
  parameter: "compute",
  "optimizer state": "communication",
  input: "input",
  gradient: "copy",
  activation: "activation",
  "autograd detail": "sync",
  unknown: "idle",
  temporary: "step",
};

const MODULE_COLORS = [
  "compute",
  "copy",
  "input",
  "communication",
  "activation",
  "sync",
  "annotation",
  "backward",
  "runtime",
  "module",
];
const NO_MODULE = "idle";

/** Whether two answers divide the memory alike. */
export function sameParts(one: Columns, other: Columns): boolean {
  const [parts, others] = [partFacts(one), partFacts(other)];
  return (
    parts.length === others.length && parts.every((part, index) => part.meaning === others[index]?.meaning)
  );
}

function partFacts(curve: Columns) {
  return curve.facts.filter((column) => column.name.startsWith("part"));
}

/** The parts of a curve from the bottom up. */
export function partsOf(curve: Columns, by: string): Layer[] {
  return partFacts(curve).map((column, index) => ({
    label: column.meaning,
    color:
      by === "category"
        ? (CATEGORY_COLORS[column.meaning] ?? NO_MODULE)
        : isNoModule(column.meaning)
          ? NO_MODULE
          : (MODULE_COLORS[index % MODULE_COLORS.length] ?? NO_MODULE),
    values: curve.numbers(column.name),
  }));
}

function isNoModule(label: string): boolean {
  return label === "no module" || label === "other modules or no module";
}

/** What the allocator counted, where it did. */
export function countsOf(curve: Columns): Layer[] {
  return (
    [
      ["allocated", "muted"],
      ["reserved", "bad"],
    ] as const
  )
    .map(([name, color]) => ({
      label: name,
      color,
      values: curve.values(name) as ArrayLike<number | null>,
    }))
    .filter((line) => Array.prototype.some.call(line.values, (value: number | null) => value !== null));
}

/** The most that a device held: what its allocator counted, where that is more than what is attributed. */
export function mostBytes(device: Device): number {
  return Math.max(device.allocated_bytes ?? 0, device.peak_bytes);
}

/** Beyond this many times the known peak, the allocator's lines would press the curve flat. */
const FLATTENS = 8;

export function countsFit(device: Device): boolean {
  const most = Math.max(device.allocated_bytes ?? 0, device.reserved_bytes ?? 0);
  return most > 0 && most <= FLATTENS * device.peak_bytes;
}

export function deviceTitle(device: Device, many: boolean): string {
  if (!many) return device.device;
  return `${device.device} · ${device.rank === null ? `process ${device.process}` : `rank ${device.rank}`}`;
}

/** The end of a long path, where the names differ. */
export function tail(label: string, most = 24): string {
  if (label.length <= most) return label;
  const parts = label.split(".");
  let kept = parts.pop() ?? "";
  for (let part = parts.pop(); part !== undefined && kept.length + part.length < most; part = parts.pop())
    kept = `${part}.${kept}`;
  return kept === label ? label : `…${kept}`;
}

/** A frame without the folders of its file: `train.py(41): forward`. */
export function shortFrame(frame: string): string {
  const end = frame.indexOf("(");
  const slash = Math.max(frame.lastIndexOf("/", end), frame.lastIndexOf("\\", end));
  return end > 0 && slash > 0 ? frame.slice(slash + 1) : frame;
}

/** The stack of a row as an address spells it; `none` where it was not recorded. */
export function stackOf(table: Columns, row: number): string {
  const stack = table.values("stack")[row];
  return typeof stack === "number" ? String(stack) : "none";
}

/** Whether a column of holders can have anything in it. */
export function knows(device: Device, column: string): boolean {
  return column === "module" ? device.modules : column === "line" ? device.stacks : true;
}
