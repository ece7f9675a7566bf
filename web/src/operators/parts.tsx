/** Where the time of what is chosen went: lists whose rows add up, one of them shown at a time. */

import { Button } from "../parts/button";
import { Middle } from "../parts/middle";
import { Ranked } from "../parts/ranked";
import { frameText } from "../parts/source-text";
import { change, route } from "../router";
import * as units from "../units";
import { frameLine, lineName } from "./kinds";

export interface Part {
  /** Null for what belongs to none, and for all that is beyond the longest rows. */
  label: string | null;
  name?: string;
  kind?: string;
  count: number;
  total_ns: number;
  /** How many more there are that this row adds up. */
  others?: number;
  grid_x?: number | null;
  grid_y?: number | null;
  grid_z?: number | null;
  block_x?: number | null;
  block_y?: number | null;
  block_z?: number | null;
  registers?: number | null;
  shared_bytes?: number | null;
}

/** In the order in which they are offered, with what stands where there is none; parts that are not there are left out. */
const TITLES: readonly (readonly [key: string, title: string, none: string])[] = [
  ["operator", "Launched by", "not known"],
  ["inside", "Children", ""],
  ["kernel", "Device work", ""],
  ["module", "By module", "outside modules"],
  ["step", "By step", "outside steps"],
  ["shape", "By shape", "not recorded"],
  ["line", "By line", "not recorded"],
  ["caller", "Called by", "no caller"],
  ["stream", "By stream", "not known"],
  ["launch", "By launch", "not known"],
];

/** What is chosen, and the parts of it. */
export interface Chosen {
  count: number;
  total_ns: number;
  self_ns: number;
  device_ns: number | null;
  parts: Record<string, Part[]>;
}

export function Parts(props: { of: Chosen; to: (part: Part) => string | undefined }) {
  const { of, to } = props;
  const offered = TITLES.filter(([key]) => of.parts[key]);
  const chosen = offered.find(([key]) => key === route.value.query["part"]) ?? offered[0];
  if (!chosen) return null;
  const [key, , none] = chosen;
  const rows = [...(of.parts[key] ?? [])];
  if (key === "inside" && of.self_ns > 0) rows.unshift({ label: "self", count: 0, total_ns: of.self_ns });
  rows.sort((a, b) => Number(Boolean(a.others)) - Number(Boolean(b.others)) || b.total_ns - a.total_ns);
  const [whole, measure] = key === "kernel" ? [of.device_ns ?? 0, "device time"] : [of.total_ns, "its time"];
  return (
    <>
      <div class="op-tabs" role="tablist" aria-label="Where its time went">
        {offered.map(([part, title]) => (
          <Button key={part} role="tab" aria-selected={part === key} onClick={() => change({ part }, true)}>
            {title}
          </Button>
        ))}
      </div>
      <Ranked
        rows={rows.map((row) => {
          const share = whole > 0 ? Math.min(100, (100 * row.total_ns) / whole) : null;
          const percent = units.percent(share);
          const text = worded(row, key) ?? none;
          const known = row.label !== null && !row.others;
          return {
            name: known ? <Middle>{coded(text, key, row.label)}</Middle> : <i class="muted">{text}</i>,
            title: `${row.label ?? text}\n${units.count(row.total_ns)} ns${share === null ? "" : `, ${percent} of ${measure}`}`,
            count: row.count ? `${units.count(row.count)} ×` : "",
            time: units.time(row.total_ns),
            percent,
            fill: share ?? 0,
            href: to(row),
          };
        })}
      />
    </>
  );
}

/** A line with its text, where the trace holds it: the function is in the title. */
function coded(text: string, part: string, label: string | null): string {
  const code = part === "line" ? frameText(label ?? "") : "";
  return code ? `${text.split(" ")[0]} ${code}` : text;
}

/** What a row is called where it is shown; null for what belongs to nothing. */
function worded(row: Part, part: string): string | null {
  if (row.others) return `${units.count(row.others)} more`;
  if (row.grid_x != null) return launch(row);
  if (row.label === null) return null;
  return part === "line" ? frameLine(row.label) : lineName(row.kind ?? "", row.label);
}

/** `grid 82,960 · block 1,024 · 32 registers · 128 B shared`. */
export function launch(row: Part): string {
  const more = [
    row.registers == null ? "" : `${row.registers} registers`,
    row.shared_bytes ? `${units.bytes(row.shared_bytes)} shared` : "",
  ];
  return [
    `grid ${size(row.grid_x, row.grid_y, row.grid_z)}`,
    `block ${size(row.block_x, row.block_y, row.block_z)}`,
    ...more.filter(Boolean),
  ].join(" · ");
}

/** `128 × 2`, without the ones at the end; a dash for what is not known or not the same for all. */
export function size(...parts: (number | null | undefined)[]): string {
  if (parts.some((part) => part === null || part === undefined)) return "–";
  const shown = [...parts];
  while (shown.length > 1 && shown.at(-1) === 1) shown.pop();
  return shown.map((part) => units.count(part)).join(" × ");
}
