/** Threads, streams, Python, modules, steps and counters over time. */

import { useEffect, useMemo, useRef } from "preact/hooks";
import { Nothing, Shown, useJson, useSource } from "../parts/answer";
import { color } from "../parts/theme";
import { onKeys } from "../timeline/keyboard";
import type { Tracks } from "../timeline/layout";
import { Panel } from "../timeline/panel";
import { Timeline } from "../timeline/timeline";
import { Toolbar } from "../timeline/toolbar";
import { TracksView } from "../timeline/tracks-view";
import "../timeline/timeline.css";

export function TimelinePage() {
  const tracks = useJson<Tracks>("tracks");
  if (tracks.value?.groups.some((group) => group.tracks.length > 0)) return <Moving tracks={tracks.value} />;
  return (
    <>
      <header class="title">
        <h1>Timeline</h1>
      </header>
      <Shown answer={tracks}>
        {() => (
          <Nothing>
            The trace has no spans and no counters: nothing ran during the recording.{" "}
            <code>kinetoscope run PROGRAM</code> records a program from its first import of torch to its end.
          </Nothing>
        )}
      </Shown>
    </>
  );
}

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function Moving(props: { tracks: Tracks }) {
  const source = useSource();
  // A live trace gets new tracks and a new end.
  const last = useRef<Timeline | undefined>(undefined);
  const timeline = useMemo(
    () =>
      new Timeline(
        source,
        props.tracks,
        color,
        still,
        last.current?.source === source ? last.current : undefined,
      ),
    [source, props.tracks],
  );
  last.current = timeline;
  useEffect(() => () => timeline.end(), [timeline]);
  useEffect(() => onKeys(timeline), [timeline]);
  return (
    <>
      <Toolbar timeline={timeline} />
      <TracksView timeline={timeline} />
      <Panel timeline={timeline} />
    </>
  );
}
