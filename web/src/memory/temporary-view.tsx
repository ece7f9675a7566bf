/** Memory that was allocated and freed within one operator, one module call or one step: who allocates most of it. */

import { useMemo } from "preact/hooks";
import { Shown, useColumns, useJson, useSource } from "../parts/answer";
import { Choice, Select } from "../parts/choice";
import { partStart } from "../parts/part";
import { Ranked, type RankedRow } from "../parts/ranked";
import { address, change, route } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { type Device, knows } from "./facts";
import { Holders } from "./holders";
import { SCOPES, summaryRows, summaryText, type Temporaries } from "./temporary";

const GROUPINGS = [
  ["all", "All"],
  ["operator", "Operator"],
  ["module", "Module"],
  ["line", "Line"],
] as const;

const SHORTER = [
  ["", "any lifetime"],
  ["10000", "shorter than 10 µs"],
  ["100000", "shorter than 100 µs"],
  ["1000000", "shorter than 1 ms"],
  ["10000000", "shorter than 10 ms"],
  ["100000000", "shorter than 100 ms"],
] as const;

export function TemporaryView(props: {
  device: Device;
  /** The chosen stack. */
  chosen: string | undefined;
}) {
  const { device } = props;
  const source = useSource();
  const asked = route.value.query;
  const groupings = GROUPINGS.filter(([name]) => knows(device, name));
  const by = groupings.find(([name]) => name === asked["tempby"])?.[0] ?? "all";
  const within = SCOPES.find(([name]) => name === asked["within"])?.[0];
  const base = { device: device.key, by };
  const shortens = source.has("memory/temporary", { ...base, shorter: 1 });
  const shorter = shortens ? SHORTER.find(([value]) => value && value === asked["shorter"])?.[0] : undefined;
  const summary = useJson<Temporaries>("memory/temporaries", { device: device.key });
  const answer = useColumns("memory/temporary", { ...base, shorter });
  const { value } = answer;
  const kept = useMemo(() => {
    if (!value || !within) return value;
    const scopes = value.texts("within");
    return value.where((row) => scopes[row] === within);
  }, [value, within]);
  return (
    <Holders
      device={device}
      answer={{ ...answer, value: kept }}
      nothing={
        within || shorter
          ? "Nothing that was recorded is as short-lived as that."
          : "Nothing was allocated and freed within one operator, module call or step."
      }
      id="temporary"
      order="-bytes"
      height="max(17rem, 26vh)"
      chosen={props.chosen}
      heading={
        <>
          <h2>Short-lived allocations</h2>
          <span class="about">allocated and freed within one operator, one module call or one step</span>
          <span class="tools">
            <Choice
              label="Group short-lived allocations by"
              options={groupings}
              chosen={by}
              onChoice={(next) => change({ tempby: next === "all" ? undefined : next })}
            />
            <Select
              label="Freed within"
              chosen={within ?? ""}
              options={[
                ["", "within any of these"],
                ...SCOPES.map(([name, title]) => [name, title.toLowerCase()] as const),
              ]}
              onChoice={(next) => change({ within: next || undefined })}
            />
            {shortens && (
              <Select
                label="Lifetime"
                chosen={shorter ?? ""}
                options={SHORTER}
                onChoice={(next) => change({ shorter: next || undefined })}
              />
            )}
          </span>
        </>
      }
      above={<Shown answer={summary}>{(found) => <Summary found={found} chosen={within} />}</Shown>}
      first={(table) => [
        { name: "bytes", title: "Bytes", width: "7rem", bar: true, sum: true },
        { name: "allocations", title: "Count", width: "5rem", sum: true },
        { name: "largest_bytes", title: "Largest", width: "6.5rem", cell: (row) => largest(table, row) },
        { name: "longest_lifetime_ns", title: "Longest", width: "6.5rem" },
        { name: "peak_bytes", title: "At peak", width: "6.5rem", sum: true },
        { name: "within", title: "Within", width: "7rem", cell: (row) => scope(table, row) },
      ]}
    />
  );
}

function Summary(props: { found: Temporaries; chosen: string | undefined }) {
  const { found, chosen } = props;
  const rows = summaryRows(found).map(({ scope, title, count, bytes }): RankedRow => {
    const share = found.allocated_bytes > 0 ? (100 * bytes) / found.allocated_bytes : 0;
    const next = { ...route.value.query, within: scope === chosen ? undefined : scope };
    return {
      name: scope !== undefined && scope === chosen ? <strong>{title}</strong> : title,
      title: scope ? "Show these only" : title,
      count: units.counted(count, "allocation"),
      time: units.bytes(bytes),
      percent: units.percent(share),
      fill: share,
      href: scope && address("memory", next),
    };
  });
  return (
    <>
      <Ranked rows={rows} />
      <p class="muted temporary-note">{summaryText(found)}</p>
    </>
  );
}

/** The size of the largest, which leads to its allocation on the timeline. */
function largest(table: Columns, row: number) {
  const span = table.values("span")[row];
  const time = table.numbers("largest_ns")[row] ?? 0;
  const query = typeof span === "number" ? { span: String(span) } : { time: String(time + partStart()) };
  return (
    <a
      href={address("timeline", { ...query, part: undefined })}
      title="Show the largest on the timeline"
      onClick={(event) => event.stopPropagation()}
    >
      {units.bytes(table.numbers("largest_bytes")[row])}
    </a>
  );
}

function scope(table: Columns, row: number) {
  const text = table.texts("within")[row] ?? "";
  return text === "module" ? "module call" : text;
}
