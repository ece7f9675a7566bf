/** How far a trace can be trusted, as the server says it. */

import { shown } from "../units";

/** A sentence with places for its numbers, each with its unit. */
export interface Said {
  text: string;
  values: readonly (readonly [value: number | null, unit: string])[];
}

export interface Check {
  /** `warn`: numbers of the trace may mislead. `note`: worth knowing. */
  state: "good" | "note" | "warn";
  title: string;
  /** What was found. */
  finding: Said;
  /** What it means, or what helps. */
  meaning: Said;
}

export interface Health {
  state: "good" | "note" | "warn";
  /** All of it in one sentence. */
  line: Said;
  checks: Check[];
  losses: { kinds: number };
  processes: { count: number };
  recorded: Recorded[];
}

/** Something that can be recorded. */
export interface Recorded {
  title: string;
  gives: string;
  how: string;
  rows: number;
  /** Whether the recording was to have it; null where no option says so. */
  requested: boolean | null;
}

export function sentence(said: Said): string {
  let next = 0;
  return said.text.replace(/\{\}/g, () => {
    const [value, unit] = said.values[next++] ?? [0, ""];
    return shown(value, unit);
  });
}

export const SIGNS = { good: "✓", note: "●", warn: "▲" } as const;
