/** What became of all that was allocated in a memory: how much of it was freed within how much. */

import * as units from "../units";

export interface Temporaries {
  allocations: number;
  allocated_bytes: number;
  /** How many were freed within each scope, and their bytes. */
  within: Readonly<Record<string, readonly [count: number, bytes: number]>>;
  peak_bytes: number;
  temporary_peak_bytes: number;
  not_freed: number;
  not_freed_bytes: number;
  unseen_frees: number;
  unseen_free_bytes: number;
  module_calls: boolean;
  steps: boolean;
}

/** What a temporary allocation is freed within, the smallest first. */
export const SCOPES = [
  ["operator", "Within one operator"],
  ["module", "Within one module call"],
  ["step", "Within one step"],
] as const;

/** What became of all that was allocated. */
export function summaryRows(
  found: Temporaries,
): { scope?: string; title: string; count: number; bytes: number }[] {
  const rows: { scope?: string; title: string; count: number; bytes: number }[] = SCOPES.flatMap(
    ([scope, title]) => {
      const [count = 0, bytes = 0] = found.within[scope] ?? [];
      return count > 0 ? [{ scope, title, count, bytes }] : [];
    },
  );
  const others = [
    { title: "Not freed during the recording", count: found.not_freed, bytes: found.not_freed_bytes },
    { title: "Free not seen", count: found.unseen_frees, bytes: found.unseen_free_bytes },
  ];
  const sum = (name: "count" | "bytes") => [...rows, ...others].reduce((total, row) => total + row[name], 0);
  const longer = {
    title: "Freed later",
    count: found.allocations - sum("count"),
    bytes: found.allocated_bytes - sum("bytes"),
  };
  return [...rows, longer, ...others].filter((row) => row.count > 0);
}

/** What short-lived allocations held at the peak, and what is not known; the category `temporary` has other blocks, too. */
export function summaryText(found: Temporaries): string {
  const words = [];
  if (found.peak_bytes > 0 && Object.values(found.within).some(([count]) => count > 0))
    words.push(
      `At the peak, short-lived allocations held ${units.bytes(found.temporary_peak_bytes)} of ${units.bytes(found.peak_bytes)} (${units.percent((100 * found.temporary_peak_bytes) / found.peak_bytes)}).`,
    );
  if (found.unseen_frees > 0)
    words.push(
      `${units.counted(found.unseen_frees, "allocation")} of ${units.bytes(found.unseen_free_bytes)} ended without a recorded free: only their address was allocated again. They count as not short-lived.`,
    );
  if (!found.module_calls) words.push("Module calls were not recorded.");
  if (!found.steps) words.push("The trace has no steps.");
  return words.join(" ");
}
