/** What makes the run slow: each finding with what to change, and links to the spans, operators and lines that show it. */

import { Shown, useJson, useSource } from "../parts/answer";
import { Excerpt, lineText } from "../parts/source-text";
import { Words } from "../parts/words";
import { address } from "../router";
import * as units from "../units";
import { type Account, Floor } from "./floor";

interface Evidence {
  span: number;
  name: string;
  kind: string;
  duration_ns: number;
}

interface Finding {
  code: string;
  severity: "warning" | "note";
  finding: string;
  share_percent: number;
  gain_percent: number | null;
  gain_bound: string;
  advice: string;
  file: string | null;
  line: number | null;
  last_line: number | null;
  function: string | null;
  module: string | null;
  spans: readonly Evidence[];
}

interface Findings {
  /** What the time of a step was spent on; null of a trace without time, and of a job. */
  account?: Account | null;
  /** 0 for a recording without steps: shares are then of recorded time. */
  steps: number;
  findings: readonly Finding[];
  more: number;
  /** One sentence where nothing was found. */
  summary: string;
  /** A sentence for each rule that lacks data. */
  unknown: readonly string[];
  /** Whose steps they are of, in a sentence, where several processes have steps. */
  whose: string;
}

/** `path` is where the findings of something else than a trace are. */
export function FindingsCard(props: { path?: string }) {
  const answer = useJson<Findings>(props.path ?? "findings");
  return (
    <section class="card ov-findings" aria-label="Findings">
      <h2>Findings</h2>
      <Shown answer={answer}>
        {({ account, steps, findings, more, summary, unknown, whose }) => (
          <>
            {whose && <p class="muted small">{whose}</p>}
            {account && <Floor account={account} />}
            {summary && <p>{summary}</p>}
            <ol>
              {findings.map((one, index) => (
                <Found key={index} finding={one} whole={steps ? "step time" : "recorded time"} />
              ))}
            </ol>
            {more > 0 && (
              <p class="muted small">
                {units.count(more)} more: <code>kinetoscope findings --max 0</code> prints all.
              </p>
            )}
            {unknown.length > 0 && (
              <details class="muted small">
                <summary>
                  {unknown.length === 1 ? "One rule lacks data" : `${unknown.length} rules lack data`}
                </summary>
                <ul>
                  {unknown.map((line) => (
                    <li key={line}>
                      <Words text={line} />
                    </li>
                  ))}
                </ul>
              </details>
            )}
          </>
        )}
      </Shown>
    </section>
  );
}

function Found(props: { finding: Finding; whole: string }) {
  const { finding, whole } = props;
  const { share_percent: share, gain_percent: gain } = finding;
  return (
    <li class={finding.severity}>
      <p class="ov-found">
        <strong>
          <Words text={finding.finding} />
        </strong>{" "}
        <code class="muted">{finding.code}</code>
      </p>
      {/* What is not a matter of time has no share of it. */}
      {(share > 0 || gain !== null) && (
        <p class="ov-gain" title={`The share of ${whole} that it concerns, and what can be gained`}>
          <span class="ov-stacked">
            <span style={{ width: `${Math.min(share, 100)}%` }} />
          </span>
          <span class="muted small">
            {units.percent(share)} of {whole}
            {gain !== null && `, ${finding.gain_bound} ${units.percent(gain)} to gain`}
          </span>
        </p>
      )}
      <p class="ov-advice">
        <Words text={finding.advice} />
      </p>
      <Code finding={finding} />
      <Links finding={finding} />
    </li>
  );
}

/** The text of the line, which opens to show those around it. */
function Code(props: { finding: Finding }) {
  const { file, line, last_line: last } = props.finding;
  const text = file === null || line === null ? "" : lineText(file, line);
  if (!text || file === null || line === null) return null;
  return (
    <details class="ov-code">
      <summary>
        <code>{text}</code>
      </summary>
      <Excerpt file={file} line={line} last={last ?? line} />
    </details>
  );
}

/** The line to change, and the spans that show why. */
function Links(props: { finding: Finding }) {
  const source = useSource();
  const { file, line, last_line: last, function: inside, module, spans } = props.finding;
  const lines = `${file?.split(/[\\/]/).pop()}:${line}${last === line ? "" : `-${last}`}`;
  const [first, ...others] = source.has("tracks") ? spans : [];
  const isOperator = first && /^(operator|backward)$/.test(first.kind) && source.has("operators");
  return (
    <p class="ov-links small">
      {file !== null &&
        (source.has("flame_choices") ? (
          <a href={address("stacks", { find: `${file}(${line})` })} title={`${file}:${line} ${inside ?? ""}`}>
            {lines}
          </a>
        ) : (
          <span title={file}>{lines}</span>
        ))}
      {module && <span class="muted">{module}</span>}
      {isOperator && (
        <a href={address("operators", { name: first.name, kind: first.kind })}>{first.name} in Operators</a>
      )}
      {first && (
        <span>
          <a href={address("timeline", { span: String(first.span) })}>
            {first.name}, {units.time(first.duration_ns)}, on the timeline
          </a>
          {others.map(({ span, name, duration_ns }, index) => (
            <a
              key={span}
              href={address("timeline", { span: String(span) })}
              title={`${name}, ${units.time(duration_ns)}`}
            >
              {index + 2}
            </a>
          ))}
        </span>
      )}
    </p>
  );
}
