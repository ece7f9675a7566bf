/** How far a step is from its floor, and what stands between: a waterfall. */

import { useSource } from "../parts/answer";
import { lineText } from "../parts/source-text";
import { Waterfall } from "../parts/waterfall";
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
  const falls = parts.map((part) => {
    const from = before;
    before += part.time_ns;
    // Of operators whose inputs were not recorded, nothing is known to be needed; that is not nothing.
    const unknown = part.is_floor && part.what !== "floor" && part.time_ns === 0;
    const share = (100 * part.time_ns) / Math.max(step_ns, 1);
    return {
      key: `${part.what} ${part.file}`,
      label: <Name part={part} />,
      number: unknown ? "unknown" : units.time(part.time_ns),
      title: unknown ? part.what : `${part.what}: ${units.percent(share)} of a step`,
      from,
      to: before,
      color: part.is_floor ? "compute" : "warn",
    };
  });
  return (
    <section class="ov-floor" aria-label="From the floor to the step">
      <p>
        <strong>{sentence.charAt(0).toUpperCase() + sentence.slice(1)}.</strong>
      </p>
      <Waterfall label="Parts of a step" falls={falls} />
    </section>
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
