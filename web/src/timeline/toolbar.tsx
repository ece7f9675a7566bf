/** The line above the timeline: search, what is drawn, and moving about without a keyboard. */

import { Button } from "../parts/button";
import { dialog } from "../parts/keyboard";
import { change } from "../router";
import * as units from "../units";
import type { Timeline } from "./timeline";
import { zoomed } from "./view";

export function Toolbar(props: { timeline: Timeline }) {
  const { timeline } = props;
  const zoom = (factor: number) => {
    const view = timeline.motion.aim ?? timeline.view.peek();
    timeline.glide(zoomed(view, factor, (view.start + view.end) / 2, timeline.whole));
  };
  const { headings } = timeline.layout.value;
  const folded = headings.length > 0 && headings.every((heading) => !heading.open);
  const nothing = !timeline.chosen.value && !timeline.range.value;
  return (
    <header class="title tl-title">
      <h1>Timeline</h1>
      <SearchBox timeline={timeline} />
      <div class="tools">
        {timeline.source.has("arrows") && (
          <label
            class="switch"
            title="Draw arrows from launches to device work, and from forward to backward"
          >
            <input
              type="checkbox"
              checked={timeline.allArrows.value}
              onChange={(event) => change({ arrows: event.currentTarget.checked ? "all" : undefined }, true)}
            />
            All arrows
          </label>
        )}
        {timeline.tracks.groups.length > 1 && (
          <Button
            title={
              folded ? "Show all tracks of each process" : "Show each process as one row, to compare them"
            }
            onClick={() => timeline.foldAll(!folded)}
          >
            {folded ? "Expand all" : "Collapse all"}
          </Button>
        )}
        {timeline.hidden.value.size > 0 && (
          <Button title="Show all tracks" onClick={() => timeline.hide(null)}>
            Show {timeline.hidden.value.size} hidden
          </Button>
        )}
        <span class="choice">
          <Button title="Zoom out (s)" aria-label="Zoom out" onClick={() => zoom(2)}>
            −
          </Button>
          <Button title="Zoom in (w)" aria-label="Zoom in" onClick={() => zoom(0.5)}>
            +
          </Button>
          <Button title="Zoom to the selection (f)" disabled={nothing} onClick={() => timeline.fit()}>
            Fit
          </Button>
          <Button title="Show the whole trace (0)" onClick={() => timeline.showAll()}>
            All
          </Button>
        </span>
        <Button
          title="Keyboard and mouse (?)"
          aria-label="Keyboard and mouse"
          onClick={() => {
            dialog.value = "help";
          }}
        >
          ?
        </Button>
      </div>
    </header>
  );
}

const STEPS = [
  [-1, "Previous match", "Shift+Enter, N", "↑"],
  [1, "Next match", "Enter, n", "↓"],
] as const;

function SearchBox(props: { timeline: Timeline }) {
  const { timeline } = props;
  const { search } = timeline;
  const step = (by: 1 | -1) => {
    const { start, end } = timeline.view.peek();
    search.step(by, timeline.chosen.peek()?.span, start >= timeline.whole.start ? start : end);
  };
  const none = !search.found.value?.rows;
  return (
    <search class="tl-search">
      <input
        type="search"
        placeholder="Search names  ( / )"
        aria-label="Search spans by name"
        value={search.text.value}
        onInput={(event) => change({ find: event.currentTarget.value || undefined }, true)}
        onKeyDown={(event) => {
          if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
          else if (event.key === "Escape") {
            change({ find: undefined }, true);
            event.currentTarget.blur();
          }
        }}
      />
      {timeline.source.has("search") && (
        <span class="choice">
          {STEPS.map(([by, label, keys, sign]) => (
            <Button
              key={by}
              disabled={none}
              aria-label={label}
              title={`${label} (${keys})`}
              onClick={() => step(by)}
            >
              {sign}
            </Button>
          ))}
        </span>
      )}
      <span class="muted tl-found" role="status">
        <SearchStatus timeline={timeline} />
      </span>
    </search>
  );
}

/** What can be done with what is chosen. */
export function FitOrClose(props: { timeline: Timeline; onClose: () => void }) {
  const { timeline } = props;
  return (
    <>
      <Button title="Zoom to it (f)" onClick={() => timeline.fit()}>
        Fit
      </Button>
      <Button title="Clear selection (Esc)" aria-label="Close" onClick={props.onClose}>
        ✕
      </Button>
    </>
  );
}

/** How many were found, and which of them is chosen. */
function SearchStatus(props: { timeline: Timeline }) {
  const { timeline } = props;
  const { search, chosen } = timeline;
  if (search.problem.value) return <span class="warn">{search.problem.value}</span>;
  if (!search.text.value.trim())
    return <span class="faint tl-hint">Ctrl+wheel: zoom · Shift+drag: range · ?: help</span>;
  if (!timeline.source.has("search"))
    return (
      <span title="To step through them, open the trace with `kinetoscope view`">
        matches are highlighted
      </span>
    );
  const found = search.found.value;
  if (!found) return <>{search.waiting.value ? "Searching…" : ""}</>;
  if (found.rows === 0) return <>no matches</>;
  const place = Array.prototype.indexOf.call(found.numbers("span"), chosen.value?.span ?? -1);
  const total = `${units.count(found.total)}${found.total > found.rows ? `, of which ${units.count(found.rows)} can be stepped through` : ""}`;
  return <>{place >= 0 ? `${units.count(place + 1)} of ${total}` : `${total} found`}</>;
}
