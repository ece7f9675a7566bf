/** How far a step is from its floor, and what stands between: a bar for each part, which begins where the one before it ends. */

import { useSource } from "../parts/answer";
import { lineText } from "../parts/source-text";
import { address } from "../router";
import * as units from "../units";

export interface Account {
  step_ns: number;
  /** Null where it is not known what operators need. */
  floor_ns: number | null;
  sentence: string;
  parts: readonly Part[];
}

interface Part {
  what: string;
  time_ns: number;
  is_floor: boolean;
  file: string | null;
  line: number | null;
}

export function Floor(props: { account: Account }) {
  const { sentence, parts, step_ns } = props.account;
  let before = 0;
  return (
    <section class="ov-floor" aria-label="From the floor to the step">
      <p>
        <strong>{sentence.charAt(0).toUpperCase() + sentence.slice(1)}.</strong>
      </p>
      <ol>
        {parts.map((part) => {
          const left = (100 * before) / Math.max(step_ns, 1);
          before += part.time_ns;
          return <Row key={`${part.what} ${part.file}`} part={part} left={left} whole={step_ns} />;
        })}
      </ol>
    </section>
  );
}

function Row(props: { part: Part; left: number; whole: number }) {
  const { part, left, whole } = props;
  const share = (100 * part.time_ns) / Math.max(whole, 1);
  return (
    <li class={part.is_floor ? "floor" : ""} title={`${part.what}: ${units.percent(share)} of a step`}>
      <Name part={part} />
      <span class="number">{units.time(part.time_ns)}</span>
      <span class="ov-fall">
        <span style={{ left: `${Math.min(left, 100)}%`, width: `${Math.min(share, 100 - left)}%` }} />
      </span>
    </li>
  );
}

/** What it is; a line leads to the stacks that it is in. */
function Name(props: { part: Part }) {
  const source = useSource();
  const { what, file, line } = props.part;
  if (file === null || line === null) return <span>{what}</span>;
  const text = lineText(file, line);
  return (
    <span>
      {source.has("flame_choices") ? (
        <a href={address("stacks", { find: `${file}(${line})` })} title={`${file}:${line}`}>
          {what}
        </a>
      ) : (
        <span title={`${file}:${line}`}>{what}</span>
      )}
      {text && (
        <>
          {" "}
          <code class="muted">{text}</code>
        </>
      )}
    </span>
  );
}
