/** A list by size: the bar behind each row shows how large it is. */

import type { ComponentChildren } from "preact";

export interface RankedRow {
  name: ComponentChildren;
  /** All of the name, and what else there is to say. */
  title: string;
  count?: string;
  time: string;
  percent: string;
  /** How long the bar is, in percent of the row. */
  fill: number;
  /** Where the row leads, if anywhere. */
  href?: string | undefined;
}

export function Ranked(props: { rows: readonly RankedRow[] }) {
  return (
    <ol class="ranked">
      {props.rows.map((row, index) => (
        <li key={index}>
          <a {...(row.href && { href: row.href })} title={row.title.slice(0, 2000)}>
            <span class="fill" style={{ width: `${row.fill}%` }} />
            <span class="name">{row.name}</span>
            <span class="muted">{row.count}</span>
            <span>{row.time}</span>
            <span class="muted">{row.percent}</span>
          </a>
        </li>
      ))}
    </ol>
  );
}
