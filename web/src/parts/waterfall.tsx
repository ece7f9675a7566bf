/** A waterfall: a bar for each part, which begins where the one before it ends. */

import type { ComponentChildren } from "preact";
import "./waterfall.css";

export interface Fall {
  key: string;
  label: ComponentChildren;
  /** The number beside the bar. */
  number: string;
  title: string;
  /** Where the bar begins and ends; it may fall back. */
  from: number;
  to: number;
  /** The name of its color in the theme. */
  color: string;
}

export function Waterfall(props: { label: string; falls: readonly Fall[] }) {
  const most = Math.max(...props.falls.flatMap(({ from, to }) => [from, to]), 1);
  return (
    <ol class="waterfall" aria-label={props.label}>
      {props.falls.map(({ key, label, number, title, from, to, color }) => {
        const left = Math.min(Math.max((100 * Math.min(from, to)) / most, 0), 100);
        const width = Math.min((100 * Math.abs(to - from)) / most, 100 - left);
        return (
          <li key={key} title={title}>
            {label}
            <span class="number">{number}</span>
            <span class="fall">
              <span style={{ left: `${left}%`, width: `${width}%`, background: `var(--${color})` }} />
            </span>
          </li>
        );
      })}
    </ol>
  );
}
