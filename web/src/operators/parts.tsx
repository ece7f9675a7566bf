/** Where the time of what is chosen went: lists whose rows add up, one of them shown at a time. */

import { End } from "../parts/end";
import { change, route } from "../router";
import { plain } from "../timeline/names";
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

/** In the order in which they are offered; what there is none of is left out. */
const TITLES: readonly { key: string; title: string; none: string; whole: string }[] = [
  { key: "operator", title: "Launched by", none: "not known", whole: "its time" },
  { key: "inside", title: "Inside", none: "", whole: "its time" },
  { key: "kernel", title: "Device work", none: "", whole: "its device time" },
  { key: "module", title: "By module", none: "outside modules", whole: "its time" },
  { key: "step", title: "By step", none: "outside steps", whole: "its time" },
  { key: "shape", title: "By shape", none: "not recorded", whole: "its time" },
  { key: "line", title: "By line", none: "not recorded", whole: "its time" },
  { key: "caller", title: "Called by", none: "nothing around it", whole: "its time" },
  { key: "stream", title: "By stream", none: "not known", whole: "its time" },
  { key: "launch", title: "By launch", none: "not known", whole: "its time" },
];

export function Parts(props: {
  parts: Readonly<Record<string, readonly Part[]>>;
  totalNs: number;
  selfNs: number;
  deviceNs: number | null;
  to: (part: Part) => string | null;
}) {
  const { parts } = props;
  const offered = TITLES.filter((one) => parts[one.key]);
  const chosen = offered.find((one) => one.key === route.value.query["part"]) ?? offered[0];
  if (!chosen) return null;
  const rows = [...(parts[chosen.key] ?? [])];
  if (chosen.key === "inside" && props.selfNs > 0)
    rows.unshift({ label: "itself", count: 0, total_ns: props.selfNs });
  rows.sort((a, b) => Number(Boolean(a.others)) - Number(Boolean(b.others)) || b.total_ns - a.total_ns);
  const whole = chosen.key === "kernel" ? (props.deviceNs ?? 0) : props.totalNs;
  return (
    <section class="op-parts">
      <div class="op-tabs" role="tablist" aria-label="Where its time went">
        {offered.map((one) => (
          <button
            key={one.key}
            type="button"
            role="tab"
            aria-selected={one === chosen}
            onClick={() => change({ part: one.key }, true)}
          >
            {one.title}
          </button>
        ))}
      </div>
      <ul>
        {rows.map((row, index) => (
          <Row
            key={index}
            row={row}
            whole={whole}
            measure={chosen.whole}
            none={chosen.none}
            part={chosen.key}
            to={props.to(row)}
          />
        ))}
      </ul>
    </section>
  );
}

/** How the labels of a part are cut to what tells most. */
const SHORT: Readonly<Record<string, (label: string) => string>> = { line: frameLine };

function Row(props: {
  row: Part;
  whole: number;
  measure: string;
  none: string;
  part: string;
  to: string | null;
}) {
  const { row, whole, to } = props;
  const share = whole > 0 ? Math.min(100, (100 * row.total_ns) / whole) : null;
  const text = row.others
    ? `${units.count(row.others)} more`
    : (row.grid_x ?? null) !== null
      ? launch(row)
      : row.label === null
        ? props.none
        : (SHORT[props.part]?.(row.label) ?? lineName(row.kind ?? "", row.label));
  const calls = row.count ? `${units.count(row.count)} ×` : "";
  return (
    <li
      title={`${(row.label ?? text).slice(0, 2000)}\n${units.count(row.total_ns)} ns${share === null ? "" : `, ${units.percent(share)} of ${props.measure}`}`}
    >
      <span class="op-share" style={{ width: `${share ?? 0}%` }} />
      {to ? (
        <a class="name" href={to}>
          {text}
        </a>
      ) : (
        <span class={row.label === null ? "name muted" : "name"}>
          {props.part === "module" && row.label !== null ? <End>{plain(text)}</End> : text}
        </span>
      )}
      <span class="muted op-count">{calls}</span>
      <span class="op-number">{units.time(row.total_ns)}</span>
      <span class="muted op-percent">{units.percent(share)}</span>
    </li>
  );
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
