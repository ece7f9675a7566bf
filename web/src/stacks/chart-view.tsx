/** Call stacks over time: a flame chart of one thread, with the keys and the mouse of the timeline. */

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { isTyping } from "../keys";
import { Nothing, Shown, useColumns, useJson, useSource } from "../parts/answer";
import { Button } from "../parts/button";
import { Select } from "../parts/choice";
import { Icicle } from "../parts/icicle";
import { pathTo } from "../parts/icicle-rows";
import { useSized } from "../parts/lengths";
import { Excerpt } from "../parts/source-text";
import { color, theme } from "../parts/theme";
import { address, change, route } from "../router";
import type { Columns } from "../source/source";
import { listening } from "../timeline/input";
import { plain } from "../timeline/names";
import { paintAxis } from "../timeline/paint-frame";
import { type Sheet, sheetOf, fit as takeSize } from "../timeline/sheet";
import { moment } from "../timeline/ticks";
import { clamped, fitted, panned, parsedView, revealed, same, type View, zoomed } from "../timeline/view";
import * as units from "../units";
import { boxText, type Call, Chart, kindText } from "./chart";
import { HideTorch } from "./hide-torch";

interface Thread {
  thread: number;
  label: string;
  /** The label of its process, null where there is only one. */
  process: string | null;
  start_ns: number;
  end_ns: number;
  spans: number;
  /** How many spans have no box, as they overlap others without being inside them. */
  overlapping: number;
}

interface Choices {
  threads: readonly Thread[];
  median_step: readonly [number, number] | null;
  /** Whether there are stacks, and frames of torch beside those of the program. */
  stacks: boolean;
  library: boolean;
}

/** The address follows the view when it has rested for so long. */
const REST_MS = 200;

/** `direction` is the choice of what the page draws. */
export function TimeOrder(props: { direction: ComponentChildren }) {
  const answer = useJson<Choices>("flame_chart/choices");
  return (
    <Shown answer={answer}>
      {(choices) => {
        const thread =
          choices.threads.find((one) => String(one.thread) === route.value.query["thread"]) ??
          choices.threads[0];
        return thread ? (
          <OfThread key={thread.thread} choices={choices} thread={thread} direction={props.direction} />
        ) : (
          <>
            <header class="title stacks-title">
              <h1>Stacks</h1>
              {props.direction}
            </header>
            <Nothing>Nothing ran on the host during the recording.</Nothing>
          </>
        );
      }}
    </Shown>
  );
}

function OfThread(props: { choices: Choices; thread: Thread; direction: ComponentChildren }) {
  const { choices, thread } = props;
  const source = useSource();
  const query = route.value.query;
  const hide = choices.library && query["library"] !== "show";
  const base = { thread: thread.thread, library: hide ? "hide" : undefined };
  const closer = source.has("flame_chart", { ...base, start: 0, end: 1 });
  const home = homeOf(choices, thread, closer ? query["part"] : undefined);
  const whole = closer
    ? { start: Math.min(thread.start_ns, home.start), end: Math.max(thread.end_ns, home.end) }
    : home;
  const settled = clamped(parsedView(query["start"], query["end"]) ?? home, whole);
  const [view, show] = useView(settled, home, whole);
  // As much again on both sides, so that there is something to be seen while the view is dragged.
  const half = (settled.end - settled.start) / 2;
  const wide = clamped({ start: settled.start - half, end: settled.end + half }, whole);
  const window = { start: Math.floor(wide.start), end: Math.ceil(wide.end) };
  const answer = useColumns("flame_chart", closer ? { ...base, ...window } : base);
  const threads = choices.threads.filter(
    (one) => closer || source.has("flame_chart", { ...base, thread: one.thread }),
  );
  const middle = (view.start + view.end) / 2;
  return (
    <>
      <header class="title stacks-title">
        <h1>Stacks</h1>
        {props.direction}
        {choices.library && <HideTorch hide={hide} />}
        {threads.length > 1 && (
          <Select
            label="Thread"
            chosen={String(thread.thread)}
            options={threads.map((one) => [
              String(one.thread),
              `${one.process ? `${one.process} · ` : ""}${one.label} · ${units.counted(one.spans, "span")}`.slice(
                0,
                200,
              ),
            ])}
            onChoice={(row) => change({ thread: row, at: undefined, start: undefined, end: undefined })}
          />
        )}
        <span class="choice">
          <Button
            title="Zoom out (s)"
            aria-label="Zoom out"
            onClick={() => show(zoomed(view, 2, middle, whole))}
          >
            −
          </Button>
          <Button
            title="Zoom in (w)"
            aria-label="Zoom in"
            onClick={() => show(zoomed(view, 0.5, middle, whole))}
          >
            +
          </Button>
          <Button
            title="Show all of this thread (0)"
            disabled={same(view, whole)}
            onClick={() => show(whole)}
          >
            All
          </Button>
        </span>
        <div class="tools about">
          <span class="faint">in view</span> {units.time(view.end - view.start)}
        </div>
      </header>
      <Shown answer={answer}>
        {(table) => (
          <Drawn table={table} view={view} show={show} whole={whole} thread={thread} choices={choices} />
        )}
      </Shown>
      {!closer && (
        <p class="muted tiny">
          {choices.median_step ? "A report has the median step only." : "A report has no shorter boxes."} For
          the rest, open the trace with <code>kinetoscope view</code>.
        </p>
      )}
    </>
  );
}

/** What is in sight, and how to change it: at once on the page, and in the address when the view rests. */
function useView(settled: View, home: View, whole: View): [View, (view: View) => void] {
  const [view, setView] = useState<View | null>(null);
  const resting = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => {
    setView(null);
    return () => clearTimeout(resting.current);
  }, [settled.start, settled.end]);
  const [least, most] = [whole.start, whole.end];
  const show = useCallback(
    (next: View) => {
      const kept = clamped(next, { start: least, end: most });
      setView(kept);
      clearTimeout(resting.current);
      resting.current = setTimeout(() => {
        const atHome = Math.abs(kept.start - home.start) < 1 && Math.abs(kept.end - home.end) < 1;
        change(
          atHome
            ? { start: undefined, end: undefined }
            : { start: kept.start.toFixed(0), end: kept.end.toFixed(0) },
          true,
        );
      }, REST_MS);
    },
    [least, most, home.start, home.end],
  );
  return [view ?? settled, show];
}

/** What is shown at first: the chosen part of the trace, a median step in which the thread ran, or all of it. */
function homeOf(choices: Choices, thread: Thread, part: string | undefined): View {
  const [from, to] = (part ?? "").split("-");
  const chosen = parsedView(from || undefined, to || undefined);
  if (chosen) return chosen;
  const [start, end] = choices.median_step ?? [0, 0];
  if (end > start && start < thread.end_ns && end > thread.start_ns) return { start, end };
  return { start: thread.start_ns, end: Math.max(thread.end_ns, thread.start_ns + 1) };
}

function Drawn(props: {
  table: Columns;
  view: View;
  show: (view: View) => void;
  whole: View;
  thread: Thread;
  choices: Choices;
}) {
  const { table, view, show, whole, thread } = props;
  const chart = useMemo(() => new Chart(table), [table]);
  const query = route.value.query;
  const text = query["find"] ?? "";
  const searched = useMemo(() => chart.search(text), [chart, text]);
  const chosen = chart.place(query["at"]);
  const call = chart.calls[chosen];
  const choose = (index: number, byKey: boolean) => {
    change({ at: chart.key(index) }, byKey);
    const next = chart.calls[index];
    if (byKey && next) show(revealed(view, next.start, next.start + next.duration, whole, 1200));
  };
  const zoomTo = (index: number) => {
    const next = chart.calls[index];
    show(next ? fitted(next.start, next.start + next.duration, whole) : whole);
  };
  const step = (by: 1 | -1) => {
    const found = searched?.found ?? [];
    const after = found.find((index) => index > chosen);
    const before = found.filter((index) => index < chosen).at(-1);
    const next = by > 0 ? (after ?? found[0]) : (before ?? found.at(-1));
    if (next !== undefined) choose(next, true);
  };
  useKeys(view, show, whole, () => chosen >= 0 && zoomTo(chosen), step);
  const seen = searched?.found.filter(
    (index) => (chart.boxes.end[index] ?? 0) > view.start && (chart.boxes.start[index] ?? 0) < view.end,
  );
  return (
    <>
      <div class="stacks-bar">
        <span class="muted chart-hint">
          Ctrl+wheel: zoom · drag: pan · double-click: zoom to a box · ?: help
        </span>
        <div class="stacks-search">
          <span class={seen?.length === 0 ? "warn" : "muted"} aria-live="polite">
            {seen && (seen.length > 0 ? `${units.count(seen.length)} in view` : "not in view")}
          </span>
          <input
            type="search"
            placeholder="Search name or file"
            aria-label="Search calls"
            value={text}
            onInput={(event) => change({ find: event.currentTarget.value || undefined }, true)}
            onKeyDown={(event) => {
              if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
            }}
          />
        </div>
      </div>
      <Axis view={view} />
      <Icicle
        fits
        boxes={chart.boxes}
        looks={chart.looks}
        label={`Call stacks of ${thread.label} over time`}
        zoom={-1}
        sight={view}
        chosen={chosen}
        found={searched?.mask ?? null}
        onChoose={choose}
        onZoom={zoomTo}
        onSight={show}
        said={(index) => {
          const one = chart.calls[index];
          return one ? `${boxText(one)}, ${kindText(one)}, ${units.time(one.duration)}` : "";
        }}
        tip={(index) => {
          const one = chart.calls[index];
          return one ? <Tip call={one} /> : null;
        }}
      />
      {call ? (
        <Below chart={chart} index={chosen} call={call} zoomTo={zoomTo} />
      ) : (
        <p class="muted tiny chart-note">{notes(props.choices, thread, chart)}</p>
      )}
    </>
  );
}

/** Where calls come from, and what is not drawn. */
function notes(choices: Choices, thread: Thread, chart: Chart): string {
  const words = [];
  if (!choices.stacks)
    words.push("No Python stacks were recorded (with_stack=True), so there are no functions.");
  else if (chart.calls.some((call) => call.rebuilt))
    words.push(
      "Functions and modules are rebuilt from the stacks of operators: each lasts from its first operator to its last, and one without operators has no box.",
    );
  if (thread.overlapping > 0)
    words.push(
      `${units.counted(thread.overlapping, "span")} of this thread ${thread.overlapping > 1 ? "overlap" : "overlaps"} others without being inside them; the timeline shows them.`,
    );
  return words.join(" ");
}

/** The keys of the timeline, wherever on the page the focus is, except in a field. */
function useKeys(
  view: View,
  show: (view: View) => void,
  whole: View,
  zoomToChosen: () => void,
  step: (by: 1 | -1) => void,
): void {
  const width = view.end - view.start;
  const middle = (view.start + view.end) / 2;
  const keys: Readonly<Record<string, () => void>> = {
    w: () => show(zoomed(view, 0.6, middle, whole)),
    s: () => show(zoomed(view, 1 / 0.6, middle, whole)),
    a: () => show(panned(view, -width / 4, whole)),
    d: () => show(panned(view, width / 4, whole)),
    0: () => show(whole),
    f: zoomToChosen,
    n: () => step(1),
    N: () => step(-1),
  };
  const current = useRef(keys);
  current.current = keys;
  useEffect(
    () =>
      listening(globalThis.window, {
        keydown: (event: KeyboardEvent) => {
          if (isTyping(event) || document.querySelector("dialog[open], :popover-open")) return;
          const wanted = current.current[event.key];
          if (!wanted) return;
          wanted();
          event.preventDefault();
        },
      }),
    [],
  );
}

/** The time above the boxes. */
function Axis(props: { view: View }) {
  const { view } = props;
  const sheet = useRef<Sheet | null>(null);
  const [from, setFrom] = useState<number | null>(null);
  const shade = theme.value;
  const paint = () => {
    const { current } = sheet;
    if (current) setFrom(paintAxis(current, view));
  };
  const latest = useRef(paint);
  latest.current = paint;
  const frame = useSized<HTMLDivElement>((element) => {
    const canvas = element.querySelector("canvas");
    if (!canvas) return;
    sheet.current ??= sheetOf(canvas, color);
    takeSize(sheet.current);
    latest.current();
  });
  useLayoutEffect(paint, [view.start, view.end]);
  // The attribute with the theme is set by an effect of its own, which runs first.
  useEffect(() => latest.current(), [shade]);
  return (
    <div class="chart-axis" ref={frame}>
      <canvas role="img" aria-label={`Time from ${moment(view.start)} to ${moment(view.end)}`} />
      {from !== null && <span class="tiny muted">from {moment(from)}</span>}
    </div>
  );
}

function Tip(props: { call: Call }) {
  const { call } = props;
  const own = call.self < call.duration ? ` · ${units.time(call.self)} self` : "";
  return (
    <>
      <strong>{boxText(call)}</strong>
      <div class="muted">{kindText(call)}</div>
      {call.file && call.count === 1 && (
        <div class="muted">
          {plain(call.file)}
          {call.line === null ? "" : `:${call.line}`}
        </div>
      )}
      {call.line !== null && call.count === 1 && <Excerpt file={call.file} line={call.line} />}
      <div>
        <strong>{units.time(call.duration)}</strong>
        {call.count === 1 && own}
      </div>
      <div class="muted">double-click to zoom in</div>
    </>
  );
}

/** What is known of the chosen box. */
function Below(props: { chart: Chart; index: number; call: Call; zoomTo: (index: number) => void }) {
  const { chart, index, call, zoomTo } = props;
  const path = pathTo(chart.boxes, index).slice(0, -1);
  const end = call.start + Math.max(call.duration, 1);
  const range = `${Math.floor(call.start)}-${Math.ceil(end)}`;
  const source = useSource();
  const place =
    call.span === null ? { range, start: String(call.start), end: String(end) } : { span: String(call.span) };
  return (
    <div class="stacks-below chart-below">
      <header class="stacks-chosen">
        <h2 class="name" title={plain(call.name)}>
          {boxText(call)}
        </h2>
        <span class="muted">
          {kindText(call)} · {units.time(call.duration)}
          {call.count === 1 && call.self < call.duration && ` · ${units.time(call.self)} self`} · at{" "}
          {moment(call.start, Math.max(call.duration / 500, 1))}
        </span>
        <div class="tools">
          <a class="button" href={address("timeline", place)}>
            Show on the timeline
          </a>
          {source.served && (
            <a
              class="button"
              href={address("operators", { part: range })}
              title="The operators that ran on all threads in this time"
            >
              Operators in this time
            </a>
          )}
          <Button onClick={() => zoomTo(index)}>Zoom in</Button>
          <Button onClick={() => change({ at: undefined })}>Clear selection</Button>
        </div>
      </header>
      {call.file && call.count === 1 && (
        <p class="mono">
          {plain(call.file)}
          {call.line === null ? "" : `:${call.line}`}
        </p>
      )}
      {call.line !== null && call.count === 1 && <Excerpt file={call.file} line={call.line} />}
      {path.length > 0 && (
        <p class="chart-path">
          <span class="muted">inside </span>
          {path.reverse().map((outer, level) => {
            const one = chart.calls[outer];
            return (
              <span key={outer} class="stacks-step">
                {level > 0 && <span class="faint">‹</span>}
                <Button
                  class="plain name"
                  title={one && `${boxText(one)}, ${units.time(one.duration)}`}
                  onClick={() => change({ at: chart.key(outer) })}
                >
                  {one ? boxText(one) : ""}
                </Button>
              </span>
            );
          })}
        </p>
      )}
    </div>
  );
}
