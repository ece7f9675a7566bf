/** The tracks: their labels, the canvases beside them, the axis and the overview above, and the tooltip. */

import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Button } from "../parts/button";
import * as units from "../units";
import { onAxis, onTracks, onWhole } from "./input";
import { groupKey, type Lane, laneOf, trackKey } from "./layout";
import { plain } from "./names";
import { Stage } from "./stage";
import { moment } from "./ticks";
import type { Hovered, Timeline } from "./timeline";

export function TracksView(props: { timeline: Timeline }) {
  const { timeline } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const area = useRef<HTMLDivElement>(null);
  const lanes = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null);
  const axis = useRef<HTMLCanvasElement>(null);
  const whole = useRef<HTMLCanvasElement>(null);
  const base = useSignal<number | null>(null);

  useLayoutEffect(() => {
    if (!scroller.current || !area.current) return;
    if (!lanes.current || !over.current || !axis.current || !whole.current) return;
    const stage = new Stage(
      timeline,
      { lanes: lanes.current, over: over.current, axis: axis.current, whole: whole.current },
      (value) => {
        base.value = value;
      },
    );
    const frame = scroller.current;
    const fit = () => {
      // The axis and the overview end where the tracks do, beside their scrollbar.
      frame.parentElement?.style.setProperty("--tl-bar", `${frame.offsetWidth - frame.clientWidth}px`);
      stage.resize();
    };
    const watcher = new ResizeObserver(fit);
    watcher.observe(area.current);
    const endings = [
      onTracks(timeline, area.current, scroller.current),
      onAxis(timeline, axis.current),
      onWhole(timeline, whole.current),
      () => watcher.disconnect(),
      () => stage.end(),
    ];
    return () => {
      for (const end of endings) end();
    };
  }, [timeline]);

  // Where something was chosen out of sight, the tracks are scrolled to it.
  useEffect(
    () =>
      timeline.scroll.subscribe((scroll) => {
        if (scroller.current && Math.abs(scroller.current.scrollTop - scroll) > 1)
          scroller.current.scrollTop = scroll;
      }),
    [timeline],
  );
  const onScroll = () => {
    timeline.scroll.value = scroller.current?.scrollTop ?? 0;
  };

  const { lanes: placed, headings, height } = timeline.layout.value;
  return (
    <div class="tl-frame">
      <div class="tl-corner">
        <InView timeline={timeline} />
      </div>
      <canvas class="tl-whole" ref={whole} aria-label="The whole trace; drag to move the view" role="img" />
      <div class="tl-corner">{base.value !== null && <span>from {moment(base.value)}</span>}</div>
      <canvas class="tl-axis" ref={axis} aria-label="Time; drag to choose a range" role="img" />
      <div
        class="tl-scroller"
        ref={scroller}
        onScroll={onScroll}
        role="application"
        aria-roledescription="timeline"
        aria-label={`Timeline of ${units.count(placed.length)} tracks; press ? for the keys`}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: keys move the timeline
        tabIndex={0}
      >
        <div class="tl-labels" style={{ height: `${height}px` }}>
          {headings.map((heading) => (
            <Button
              key={groupKey(heading.group)}
              class="tl-heading"
              style={{ top: `${heading.top}px` }}
              aria-expanded={heading.open}
              onClick={() => timeline.turn(groupKey(heading.group))}
              title={plain(heading.label)}
            >
              <Chevron open={heading.open} />
              <span class="name">{plain(heading.label)}</span>
            </Button>
          ))}
          {placed.map((lane) => (
            <Label key={lane.track.id} lane={lane} timeline={timeline} />
          ))}
        </div>
        <div class="tl-area" ref={area}>
          <canvas ref={lanes} />
          <canvas ref={over} />
          <Tip timeline={timeline} />
        </div>
      </div>
    </div>
  );
}

function InView(props: { timeline: Timeline }) {
  const text = useComputed(() => {
    const { start, end } = props.timeline.view.value;
    return units.time(end - start);
  });
  return (
    <>
      <span class="faint">in view</span> <strong>{text}</strong>
    </>
  );
}

function Label(props: { lane: Lane; timeline: Timeline }) {
  const { lane, timeline } = props;
  const { track } = lane;
  const label = plain(track.label);
  const detail = plain(track.detail);
  const counter = track.sort === "counter";
  const most = counter ? `up to ${quantity(track.high, track.unit ?? "")}` : "";
  const about = [
    label,
    detail,
    most || (track.spans ? `${units.count(track.spans)} ${track.runs ? "runs" : "spans"}` : ""),
  ];
  const second = most || (lane.height >= 38 ? detail : "");
  const inner = (
    <>
      {lane.opens ? <Chevron open={lane.open} /> : <span class="tl-chevron" />}
      <span class="tl-words">
        <span class="name">
          {belongs(lane, timeline.layout.value.lanes) ? (label.split(" · ").at(-1) ?? label) : label}
        </span>
        {second && <span class="name faint">{second}</span>}
      </span>
    </>
  );
  return (
    <div
      class={`tl-label ${track.sort}`}
      style={{ top: `${lane.top}px`, height: `${lane.height}px` }}
      title={about.filter(Boolean).join("\n")}
    >
      {lane.opens ? (
        <Button aria-expanded={lane.open} onClick={() => timeline.turn(trackKey(track.id))}>
          {inner}
        </Button>
      ) : (
        <div class="tl-still">{inner}</div>
      )}
    </div>
  );
}

/** Whether the track stands below that of its thread, which then need not be named again. */
function belongs(lane: Lane, lanes: readonly Lane[]): boolean {
  const { of } = lane.track;
  return typeof of === "number" && lanes.some((other) => other.track.id === of);
}

/** A value of a counter. */
function quantity(value: number | null | undefined, unit: string): string {
  if (unit === "bytes") return units.bytes(value);
  if (unit === "ns") return units.time(value);
  if (unit === "%") return units.percent(value);
  return units.scaled(value, unit);
}

function Chevron(props: { open: boolean }) {
  return (
    <svg class="tl-chevron" data-open={props.open} viewBox="0 0 10 10" aria-hidden="true">
      <path d="M3 1.5 7 5 3 8.5" fill="none" stroke="currentColor" stroke-width="1.5" />
    </svg>
  );
}

/** What the pointer is at. */
function Tip(props: { timeline: Timeline }) {
  const { timeline } = props;
  const pointer = timeline.pointer.value;
  const box = timeline.hovered.value;
  const reading = timeline.reading.value;
  if (!pointer || (!box && !reading)) return null;
  const { width, height } = timeline;
  const right = pointer.x > width.value * 0.6;
  const low = pointer.y > height.value * 0.7;
  const style = {
    [right ? "right" : "left"]: `${(right ? width.value - pointer.x : pointer.x) + 14}px`,
    [low ? "bottom" : "top"]: `${(low ? height.value - pointer.y : pointer.y) + 14}px`,
  };
  return (
    <div class="tl-tip" style={style} role="presentation">
      {box ? <BoxTip box={box} timeline={timeline} /> : <CounterTip timeline={timeline} />}
    </div>
  );
}

function BoxTip(props: { box: Hovered; timeline: Timeline }) {
  const { box, timeline } = props;
  const { palette } = timeline;
  return (
    <>
      <div class="tl-tip-name">
        <span class="swatch" style={{ background: palette.fill[box.label] }} />
        {plain(palette.name(box.label))}
      </div>
      <div class="muted">
        {box.count === 1 ? (
          <>
            <strong>{units.time(box.duration)}</strong> · {palette.kind(box.label).replaceAll("_", " ")}
          </>
        ) : (
          <>
            the first of <strong>{units.count(box.count)}</strong>, busy {units.time(box.busy)} of{" "}
            {units.time(box.duration)} · zoom in to tell them apart
          </>
        )}
      </div>
    </>
  );
}

function CounterTip(props: { timeline: Timeline }) {
  const reading = props.timeline.reading.value;
  const lane = reading && laneOf(props.timeline.layout.value, reading.track);
  if (!lane) return null;
  return (
    <>
      <div>{plain(lane.track.label)}</div>
      <strong>{quantity(reading.value, lane.track.unit ?? "")}</strong>
    </>
  );
}
