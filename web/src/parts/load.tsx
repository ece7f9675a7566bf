/**
 * How busy devices were over time, and what was sampled of the machine: a small chart each.
 *
 * `<LoadCard />` is a card for any page, with nothing to be passed in; it shows itself only where the trace has something
 * for it, so it belongs behind what has a place of its own. What it shows is the answer `load` of the server.
 */

import { address } from "../router";
import type { Columns } from "../source/source";
import { useColumns, useSource } from "./answer";
import "./load.css";
import { reading } from "./chart-scale";

const HIGH = 28;

export function LoadCard() {
  const source = useSource();
  const load = useColumns(source.has("load") ? "load" : null).value;
  const series = load?.facts.filter((column) => column.name.startsWith("series")) ?? [];
  if (!load || series.length === 0) return null;
  return (
    <section class="card" aria-label="Over time">
      <h2>Over time</h2>
      <ul class="load">
        {series.map(({ name, meaning, unit }) => (
          <Small key={name} load={load} name={name} label={meaning} unit={unit} />
        ))}
      </ul>
    </section>
  );
}

function Small(props: { load: Columns; name: string; label: string; unit: string }) {
  const { load, name, label, unit } = props;
  const values = load.values(name) as ArrayLike<number | null>;
  const known = Array.from(values).filter((value) => value !== null && !Number.isNaN(value)) as number[];
  const most = known.reduce((a, b) => Math.max(a, b), 0);
  const mean = known.reduce((sum, value) => sum + value, 0) / Math.max(known.length, 1);
  const description = known.length
    ? `${label}: on average ${reading(mean, unit)}, at most ${reading(most, unit)}`
    : `${label}: no value`;
  return (
    <li title={description.slice(0, 2000)}>
      <a class="name" href={address("timeline")}>
        {label.replaceAll("_", " ").replace(/ (percent|bytes|bytes per s|watts|celsius)$/, "")}
      </a>
      <svg
        viewBox={`0 0 ${values.length} ${HIGH}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={description.slice(0, 2000)}
      >
        <path d={area(values, unit === "%" ? Math.max(most, 100) : most || 1)} />
      </svg>
      <span class="muted">{reading(unit === "bytes" ? most : mean, unit)}</span>
    </li>
  );
}

/** Steps from stretch to stretch, filled down to the ground; gaps where nothing is known. */
function area(values: ArrayLike<number | null>, top: number): string {
  let path = "";
  for (let row = 0; row < values.length; row++) {
    const value = values[row];
    if (value === null || value === undefined || Number.isNaN(value)) continue;
    const y = (HIGH * (1 - Math.max(0, value) / top)).toFixed(2);
    path += `M${row} ${HIGH}V${y}H${row + 1}V${HIGH}Z`;
  }
  return path;
}
