/** One collective: when each rank arrived, after the first one. Those that arrived late are marked. */

import { useMemo } from "preact/hooks";
import { Shown, useColumns } from "../parts/answer";
import { tenStep } from "../parts/chart-scale";
import { useWidth } from "../parts/lengths";
import type { Columns } from "../source/source";
import * as units from "../units";
import { lateOnes } from "./ranks";

const HEIGHT = 150;
const MARGIN = { left: 62, right: 12, top: 16, bottom: 20 };
const MOST_LABELS = 4;

export function Arrivals(props: { collective: number; title: string; rank: number }) {
  const answer = useColumns("ranks/arrivals", { collective: props.collective });
  return (
    <section class="card" aria-label="Arrivals">
      <h2>Arrivals at {props.title}</h2>
      <Shown answer={answer}>{(table) => <Plot table={table} rank={props.rank} />}</Shown>
    </section>
  );
}

function Plot(props: { table: Columns; rank: number }) {
  const { table } = props;
  const [element, width] = useWidth<HTMLDivElement>();
  const [ranks, late] = [table.numbers("rank"), table.numbers("late_ns")];
  const far = useMemo(() => lateOnes(late), [table]);
  const most = Array.from(late).reduce((a, b) => Math.max(a, b), 1);
  const step = tenStep(most / 3);
  const x = (row: number) =>
    MARGIN.left + ((row + 0.5) * (width - MARGIN.left - MARGIN.right)) / Math.max(table.rows, 1);
  const y = (ns: number) => MARGIN.top + (1 - ns / most) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const rows = Array.from(ranks, (_, row) => row);
  const labels = [...far].sort((a, b) => (late[b] ?? 0) - (late[a] ?? 0)).slice(0, MOST_LABELS);
  return (
    <div ref={element}>
      <svg
        class="arrivals"
        width={width}
        height={HEIGHT}
        role="img"
        aria-label={`${table.rows} ranks; late: ${labels.map((row) => `rank ${ranks[row]}`).join(", ")}`}
      >
        {Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step).map((ns) => (
          <g key={ns}>
            <line x1={MARGIN.left} x2={width - MARGIN.right} y1={y(ns)} y2={y(ns)} />
            <text x={MARGIN.left - 6} y={y(ns) + 4} text-anchor="end">
              {units.time(ns)}
            </text>
          </g>
        ))}
        {rows.map((row) => (
          <circle
            key={row}
            class={far.has(row) ? "late" : ranks[row] === props.rank ? "own" : undefined}
            cx={x(row)}
            cy={y(late[row] ?? 0)}
            r={far.has(row) || ranks[row] === props.rank ? 4 : 2.5}
          >
            <title>{`rank ${ranks[row]}: ${units.time(late[row])} after the first`}</title>
          </circle>
        ))}
        {labels.map((row) => (
          <text
            key={row}
            class="said"
            x={x(row) + (x(row) > width / 2 ? -7 : 7)}
            y={y(late[row] ?? 0) + 4}
            text-anchor={x(row) > width / 2 ? "end" : "start"}
          >
            {`rank ${ranks[row]}, ${units.time(late[row])}`}
          </text>
        ))}
        <text x={MARGIN.left} y={HEIGHT - 5}>
          {`rank ${ranks[0]}`}
        </text>
        <text x={width - MARGIN.right} y={HEIGHT - 5} text-anchor="end">
          {`rank ${ranks[table.rows - 1]}`}
        </text>
      </svg>
    </div>
  );
}
