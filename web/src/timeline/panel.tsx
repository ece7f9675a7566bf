/** Below the timeline: all that is known of the chosen span, or a table of what lies in the chosen range. */

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { Problem } from "../parts/answer";
import { Button } from "../parts/button";
import { Middle } from "../parts/middle";
import { FrameCode } from "../parts/source-text";
import { address } from "../router";
import type { Link, SpanFacts } from "../source/source";
import * as units from "../units";
import { argumentText } from "./details";
import { drag } from "./input";
import { plain } from "./names";
import { RangeTable } from "./range-table";
import { moment } from "./ticks";
import type { Timeline } from "./timeline";
import { FitOrClose } from "./toolbar";
import "./panel.css";

const LEAST_REM = 4;
const FIRST_REM = 15;
const MOST_LINKS = 200;

/** It stays as it was pulled while other pages are looked at. */
const height = signal(FIRST_REM);

export function Panel(props: { timeline: Timeline }) {
  const { timeline } = props;
  const details = timeline.details.value;
  const range = timeline.range.value;
  const resize = (event: PointerEvent) => {
    const handle = event.currentTarget as HTMLElement;
    const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
    const from = height.peek() + event.clientY / rem;
    const most = innerHeight / rem - 16;
    drag(event, handle, (_dx, _dy, now) => {
      height.value = Math.min(Math.max(from - now.clientY / rem, LEAST_REM), most);
    });
  };
  const onKey = (event: KeyboardEvent) => {
    const by = event.key === "ArrowUp" ? 2 : event.key === "ArrowDown" ? -2 : 0;
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    height.value = Math.max(height.peek() + by, LEAST_REM);
  };
  return (
    <section class="tl-panel" style={{ height: `${height.value}rem` }} aria-label="Details">
      <div
        class="tl-handle"
        role="separator"
        aria-orientation="horizontal"
        aria-label="Height of the panel"
        aria-valuenow={Math.round(height.value)}
        tabIndex={0}
        onPointerDown={resize}
        onKeyDown={onKey}
      />
      {timeline.problem.value && <Problem>{timeline.problem.value}</Problem>}
      {details ? (
        <div class="tl-chosen" aria-live="polite">
          {details.error !== undefined && <Problem>{details.error}</Problem>}
          {details.value && <Chosen timeline={timeline} span={details.value} />}
          {!details.value && details.error === undefined && <p class="waiting">Loading…</p>}
        </div>
      ) : (
        <RangeTable timeline={timeline} range={range} />
      )}
    </section>
  );
}

const ON_DEVICE = new Set(["kernel", "memcpy", "memset"]);
const WITH_OPERATORS = new Set(["operator", "backward", "user_annotation"]);

function Chosen(props: { timeline: Timeline; span: SpanFacts }) {
  const { timeline, span } = props;
  const { palette } = timeline;
  const label = palette.label(span.kind, span.name);
  const all = ON_DEVICE.has(span.kind)
    ? address("kernels", { name: span.name })
    : WITH_OPERATORS.has(span.kind)
      ? address("operators", { name: span.name, kind: span.kind })
      : null;
  const argumentsOf = Object.entries(span.arguments);
  return (
    <>
      <header class="tl-chosen-head">
        <h2 class="clamp" title={span.name.slice(0, 2000)}>
          <span class="swatch" style={{ background: palette.fill[label] }} />
          {plain(span.name)}
        </h2>
        <span class="muted">{span.kind.replaceAll("_", " ")}</span>
        <div class="tools">
          <Button
            title="Measure from this span: then choose another one (m)"
            aria-pressed={timeline.anchor.value?.span === span.id}
            onClick={() => timeline.measure()}
          >
            Measure
          </Button>
          {all && (
            <a class="button" href={all}>
              All calls
            </a>
          )}
          <FitOrClose timeline={timeline} onClose={() => timeline.choose(null, false)} />
        </div>
      </header>
      <Measured timeline={timeline} span={span} />
      <div class="tl-columns">
        <div class="tl-column wide">
          <dl class="tl-facts">
            <Fact
              label="Duration"
              value={units.time(span.duration_ns)}
              title={exact(span.duration_ns)}
              strong
            />
            {span.self_ns !== null && span.self_ns !== span.duration_ns && (
              <Fact
                label="Self"
                value={`${units.time(span.self_ns)}${share(span.self_ns, span.duration_ns)}`}
                title={`${exact(span.self_ns)} outside of child spans`}
              />
            )}
            <Fact label="Start" value={moment(span.start_ns)} title={exact(span.start_ns)} />
            {span.facts.map(({ label, value, unit }) => (
              <Fact
                key={label}
                label={label}
                value={units.shown(value, unit, unit === "FLOP" ? "flops" : "")}
                href={unit === "row of modules" ? address("modules", { module: String(value) }) : ""}
              />
            ))}
          </dl>
        </div>
        <Column title="Links" of={span.links}>
          <ul class="tl-links">
            {span.links.slice(0, MOST_LINKS).map((link, index) => (
              <LinkRow key={`${link.label}${link.span}${index}`} link={link} timeline={timeline} />
            ))}
          </ul>
          {span.links.length > MOST_LINKS && (
            <p class="muted">and {units.count(span.links.length - MOST_LINKS)} more</p>
          )}
        </Column>
        <Column title="Arguments" of={argumentsOf}>
          <dl class="tl-facts">
            {argumentsOf.map(([name, value]) => (
              <Fact key={name} label={name} value={argumentText(value)} />
            ))}
          </dl>
        </Column>
        <Column title="Python stack" of={span.stack}>
          <ol class="tl-stack">
            {span.stack.map((frame, index) => (
              <li key={`${index}${frame}`} title={frame.slice(0, 2000)}>
                <Middle>{plain(withoutFolder(frame))}</Middle>
                <FrameCode stack={span.stack} index={index} />
              </li>
            ))}
          </ol>
        </Column>
      </div>
    </>
  );
}

/** How far the chosen span is from the one that is measured from. */
function Measured(props: { timeline: Timeline; span: SpanFacts }) {
  const { timeline, span } = props;
  const from = timeline.anchor.value;
  if (!from) return null;
  if (from.span === span.id) return <p class="muted">Choose another span to measure the time to it.</p>;
  const start = span.start_ns - from.start;
  const end = from.start + from.duration;
  const gap = start >= 0 ? span.start_ns - end : from.start - (span.start_ns + span.duration_ns);
  return (
    <p class="tl-measured">
      <Button class="plain" onClick={() => timeline.choose(from.span, true)} title={from.name.slice(0, 2000)}>
        <span class="muted">Measured from</span>{" "}
        <span class="name">
          <Middle>{plain(from.name)}</Middle>
        </span>
      </Button>
      <span title={exact(Math.abs(start))}>
        starts <strong>{units.time(Math.abs(start))}</strong> {start < 0 ? "before it" : "after it"}
      </span>
      <span title={exact(Math.abs(gap))}>
        {gap < 0 ? (
          "they overlap"
        ) : (
          <>
            <strong>{units.time(gap)}</strong> between them
          </>
        )}
      </span>
    </p>
  );
}

/** A column of the panel, where there is something for it. */
function Column(props: { title: string; of: readonly unknown[]; children: ComponentChildren }) {
  if (!props.of.length) return null;
  return (
    <div class="tl-column">
      <h3>{props.title}</h3>
      {props.children}
    </div>
  );
}

/** A frame by the name of its file: the folder stands in its title. */
function withoutFolder(frame: string): string {
  return frame.replace(/^.*[\\/](?=[^\\/]*\(\d+\): )/, "");
}

function exact(ns: number): string {
  return `${units.count(ns)} ns`;
}

function Fact(props: { label: string; value: string; title?: string; strong?: boolean; href?: string }) {
  const { label, value, title, strong, href } = props;
  return (
    <div>
      <dt title={label}>{label}</dt>
      <dd title={title} class={strong ? "strong" : undefined}>
        {href ? <a href={href}>{value}</a> : value}
      </dd>
    </div>
  );
}

function LinkRow(props: { link: Link; timeline: Timeline }) {
  const { link, timeline } = props;
  return (
    <li>
      <Button class="plain" onClick={() => timeline.choose(link.span, true)} title={link.name.slice(0, 2000)}>
        <span class="tl-tie muted">{link.label}</span>
        <span class="name">
          <Middle>{plain(link.name)}</Middle>
        </span>
        <span class="tl-time">{units.time(link.duration_ns)}</span>
      </Button>
    </li>
  );
}

function share(part: number, whole: number): string {
  if (whole <= 0) return "";
  return ` · ${units.percent((100 * part) / whole)}`;
}
