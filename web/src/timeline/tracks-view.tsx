/** The tracks: their labels, the canvases beside them, the axis and the overview above, and the tooltip. */

import { signal, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { COLORS } from "../help";
import { Button } from "../parts/button";
import { Chevron } from "../parts/chevron";
import { Grip } from "../parts/grip";
import { rem } from "../parts/lengths";
import { change } from "../router";
import * as units from "../units";
import { onAxis, onTracks, onWhole } from "./input";
import { groupKey, type Lane, laneOf, trackKey } from "./layout";
import { plain } from "./names";
import { Stage } from "./stage";
import { moment } from "./ticks";
import type { Timeline } from "./timeline";

const LEAST_LABELS_REM = 6;
const MOST_LABELS_REM = 60;
/** Where no track is shown, there is room for the line that says so. */
const LEAST_TRACKS_PX = 40;

/** It stays as it was pulled while other pages are looked at. */
const labels = signal(14);

type Four = [HTMLCanvasElement, HTMLCanvasElement, HTMLCanvasElement, HTMLCanvasElement];

export function TracksView(props: { timeline: Timeline }) {
  const { timeline } = props;
  const frame = useRef<HTMLDivElement>(null);
  const base = useSignal<number | null>(null);

  useLayoutEffect(() => {
    const around = frame.current as HTMLElement;
    const [whole, axis, lanes, over] = [...around.querySelectorAll("canvas")] as Four;
    const area = lanes.parentElement as HTMLElement;
    const scroller = area.parentElement as HTMLElement;
    const stage = new Stage(timeline, { whole, axis, lanes, over }, (value) => {
      base.value = value;
    });
    const watcher = new ResizeObserver(() => {
      // The axis and the overview end where the tracks do, beside their scrollbar.
      around.style.setProperty("--tl-bar", `${scroller.offsetWidth - scroller.clientWidth}px`);
      stage.resize();
    });
    watcher.observe(area);
    const endings = [
      onTracks(timeline, area, scroller),
      onAxis(timeline, axis),
      onWhole(timeline, whole),
      // Where something was chosen out of sight, the tracks are scrolled to it.
      timeline.scroll.subscribe((scroll) => {
        if (Math.abs(scroller.scrollTop - scroll) > 1) scroller.scrollTop = scroll;
      }),
      () => watcher.disconnect(),
      () => stage.end(),
    ];
    return () => {
      for (const end of endings) end();
    };
  }, [timeline]);

  const { lanes: placed, headings, height, most } = timeline.layout.value;
  // What was to be scrolled to may lie in tracks that only now have their room.
  useLayoutEffect(() => {
    const scroller = frame.current?.querySelector(".tl-scroller") as HTMLElement;
    scroller.scrollTop = timeline.scroll.peek();
    timeline.scroll.value = scroller.scrollTop;
  }, [timeline, height]);
  return (
    <div
      class="tl-frame"
      ref={frame}
      style={{
        "--tl-labels": `${labels.value}rem`,
        "--tl-most": `${Math.ceil(Math.max(most, LEAST_TRACKS_PX))}px`,
      }}
    >
      <div class="tl-side">
        <Grip
          label="Width of the labels"
          onWidth={(width) => {
            labels.value = Math.min(Math.max(width / rem(), LEAST_LABELS_REM), MOST_LABELS_REM);
          }}
        />
      </div>
      <div class="tl-corner">
        <InView timeline={timeline} />
      </div>
      <canvas class="tl-whole" aria-label="The whole trace; drag to move the view" role="img" />
      <div class="tl-corner">
        <input
          class="tl-filter"
          type="search"
          placeholder="Filter tracks"
          aria-label="Show only tracks with this in their name"
          value={timeline.filter.value}
          onInput={(event) => change({ tracks: event.currentTarget.value || undefined }, true)}
          onKeyDown={(event) => {
            if (event.key !== "Escape") return;
            change({ tracks: undefined }, true);
            event.currentTarget.blur();
          }}
        />
        {base.value !== null && <span>from {moment(base.value)}</span>}
      </div>
      <canvas class="tl-axis" aria-label="Time; drag to select a range" role="img" />
      <div
        class="tl-scroller"
        onScroll={(event) => {
          timeline.scroll.value = event.currentTarget.scrollTop;
        }}
        role="application"
        aria-roledescription="timeline"
        aria-label={`Timeline of ${units.count(placed.length)} tracks; press ? for the keyboard shortcuts`}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: keys move the timeline
        tabIndex={0}
      >
        <div class="tl-labels" style={{ height: `${height}px` }}>
          {headings.map((heading) => (
            <Button
              key={groupKey(heading.group)}
              class="tl-heading"
              style={{ top: `${heading.top}px` }}
              data-folded={heading.open ? undefined : ""}
              aria-expanded={heading.open}
              onClick={() => timeline.turn(groupKey(heading.group))}
              title={plain(heading.label)}
            >
              <Chevron class="tl-chevron" open={heading.open} />
              <span class="name">{plain(heading.label)}</span>
            </Button>
          ))}
          {placed.map(
            (lane) => !lane.folded && <Label key={lane.track.id} lane={lane} timeline={timeline} />,
          )}
          {!placed.length && !headings.length && (
            <p class="tl-none muted">
              No tracks match.{" "}
              <Button class="plain" onClick={() => change({ tracks: undefined, hidden: undefined }, true)}>
                Show all
              </Button>
            </p>
          )}
        </div>
        <div class="tl-area">
          <canvas />
          <canvas />
          <Tip timeline={timeline} />
        </div>
      </div>
      <Legend timeline={timeline} />
    </div>
  );
}

/** What the colors mean of what was drawn so far. */
function Legend(props: { timeline: Timeline }) {
  const { arrived, palette } = props.timeline;
  arrived.value;
  return (
    <p class="legend tiny tl-legend">
      {COLORS.map(
        ([role, what]) =>
          palette.roles.has(role) && (
            <span key={role}>
              <span class="swatch" style={{ background: `var(--${role})` }} />
              {what}
            </span>
          ),
      )}
    </p>
  );
}

function InView(props: { timeline: Timeline }) {
  const { start, end } = props.timeline.view.value;
  return (
    <>
      <span class="faint">in view</span> <strong>{units.time(end - start)}</strong>
    </>
  );
}

function Label(props: { lane: Lane; timeline: Timeline }) {
  const { lane, timeline } = props;
  const { track } = lane;
  const label = plain(track.label);
  const detail = plain(track.detail);
  const counter = track.sort === "counter";
  const most = counter ? `up to ${quantity(track.high, track.unit)}` : "";
  const about = [
    label,
    detail,
    most || (track.spans ? `${units.count(track.spans)} ${track.runs ? "runs" : "spans"}` : ""),
  ];
  const second = most || (lane.height >= 38 ? detail : "");
  const inner = (
    <>
      {lane.opens ? <Chevron class="tl-chevron" open={lane.open} /> : <span class="tl-chevron" />}
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
      data-pinned={lane.pinned ? "" : undefined}
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
      <span class="tl-acts">
        <Button
          class="plain"
          aria-pressed={lane.pinned}
          aria-label={`Pin ${label}`}
          title={lane.pinned ? "Unpin" : "Pin to the top"}
          onClick={() => timeline.pin(track.id)}
        >
          ⤒
        </Button>
        <Button
          class="plain"
          aria-label={`Hide ${label}`}
          title="Hide this track"
          onClick={() => timeline.hide(track.id)}
        >
          ✕
        </Button>
      </span>
    </div>
  );
}

/** Whether the track stands below that of its thread, which then need not be named again. */
function belongs(lane: Lane, lanes: readonly Lane[]): boolean {
  const { of } = lane.track;
  return typeof of === "number" && lanes.some((other) => other.track.id === of);
}

/** A value of a counter. */
function quantity(value: number | null | undefined, unit = ""): string {
  return /^(?:bytes|ns|%)$/.test(unit) ? units.shown(value, unit) : units.scaled(value, unit);
}

/** What the pointer is at. */
function Tip(props: { timeline: Timeline }) {
  const { pointer, hovered, reading, width, height, layout, palette } = props.timeline;
  const at = pointer.value;
  const box = hovered.value;
  const value = reading.value;
  const lane = value && laneOf(layout.value, value.track);
  if (!at || (!box && !lane)) return null;
  const right = at.x > width.value * 0.6;
  const low = at.y > height.value * 0.7;
  const style = {
    [right ? "right" : "left"]: `${(right ? width.value - at.x : at.x) + 14}px`,
    [low ? "bottom" : "top"]: `${(low ? height.value - at.y : at.y) + 14}px`,
  };
  return (
    <div class="tip" style={style} role="presentation">
      {box ? (
        <>
          <div class="clamp">
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
                {units.time(box.duration)} · zoom in to see them
              </>
            )}
          </div>
        </>
      ) : (
        lane && (
          <>
            <div>{plain(lane.track.label)}</div>
            <strong>{quantity(value.value, lane.track.unit)}</strong>
          </>
        )
      )}
    </div>
  );
}
