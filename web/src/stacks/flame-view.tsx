/** The picture of a flame graph with its search and the way to what is shown. */

import { useMemo } from "preact/hooks";
import { Button } from "../parts/button";
import { Icicle } from "../parts/icicle";
import { pathTo } from "../parts/icicle-rows";
import { Excerpt } from "../parts/source-text";
import { change, route } from "../router";
import { plain } from "../timeline/names";
import * as units from "../units";
import { type Flame, type Frame, fileNames, frameText } from "./flame";

export function FlameView(props: { flame: Flame; title: string }) {
  const { flame, title } = props;
  const query = route.value.query;
  const zoom = flame.place(query["zoom"]);
  const chosen = flame.place(query["at"]);
  const text = query["find"] ?? "";
  const found = useMemo(() => flame.search(text, zoom), [flame, text, zoom]);
  const names = fileNames([...flame.files.keys()]);
  const shown = (value: number | undefined) => units.shown(value ?? 0, flame.unit);
  const percent = (index: number) =>
    flame.whole > 0 ? units.percent((100 * (flame.total[index] ?? 0)) / flame.whole) : "–";
  return (
    <>
      <div class="stacks-bar">
        <Way flame={flame} zoom={zoom} />
        <div class="stacks-search">
          <span class={found && found.frames === 0 ? "warn" : "muted"} aria-live="polite">
            {found &&
              (found.frames > 0
                ? `${units.counted(found.frames, "frame")} · ${shown(found.weight)} · ${units.percent(found.percent)}`
                : zoom < 0
                  ? "no such frame"
                  : "not in the zoomed part")}
          </span>
          <input
            type="search"
            placeholder="Search function or file"
            aria-label="Search frames"
            value={text}
            onInput={(event) => change({ find: event.currentTarget.value || undefined }, true)}
          />
        </div>
      </div>
      {flame.files.size > 1 && (
        <p class="legend tiny stacks-files">
          {[...flame.files].map(([file, color], index) => (
            <span key={file} title={plain(file)}>
              <span class="swatch" style={{ background: `var(--${color})` }} />
              {plain(names[index] ?? "")}
            </span>
          ))}
        </p>
      )}
      <Icicle
        fits
        boxes={flame.boxes}
        looks={flame.looks}
        label={`${title} by Python stack`}
        zoom={zoom}
        chosen={chosen}
        found={found?.mask ?? null}
        onChoose={(index, byKey) => change({ at: flame.key(index) }, byKey)}
        onZoom={(index) => change({ zoom: flame.key(index), at: flame.key(index) ?? query["at"] })}
        said={(index) => {
          const frame = flame.frames[index];
          return frame ? `${frameText(frame)}, ${shown(flame.total[index])}, ${percent(index)}` : "";
        }}
        tip={(index) => {
          const frame = flame.frames[index];
          if (!frame) return null;
          const own = flame.own[index] ?? 0;
          return (
            <>
              <strong>{heading(frame)}</strong>
              {frame.file && (
                <div class="muted">
                  {plain(frame.file)}
                  {frame.line === null ? "" : `:${frame.line}`}
                </div>
              )}
              {frame.line !== null && <Excerpt file={frame.file} line={frame.line} />}
              <div>
                <strong>{shown(flame.total[index])}</strong> · {percent(index)}
                {!flame.callers && own > 0 && own < (flame.total[index] ?? 0) && ` · ${shown(own)} self`}
              </div>
              <div class="muted">
                {units.count(flame.count[index])} {flame.unit === "bytes" ? "allocations" : "spans"}
                {frame.rest === 0 && " · double-click to zoom in"}
              </div>
            </>
          );
        }}
      />
    </>
  );
}

function heading(frame: Frame): string {
  if (frame.rest > 0) return `${units.count(frame.rest)} more, each below 0.1 % of all`;
  return plain(frame.function) || frameText(frame);
}

const MOST_STEPS = 6;

/** The frames around the part that is shown, each a way back. */
function Way(props: { flame: Flame; zoom: number }) {
  const { flame, zoom } = props;
  const path = pathTo(flame.boxes, zoom);
  // Of a long path the program's own frames are shown, of a longer one its ends.
  const telling =
    path.length > MOST_STEPS ? path.filter((index) => index === zoom || flame.frames[index]?.user) : path;
  const kept =
    telling.length > MOST_STEPS ? [...telling.slice(0, 1), -1, ...telling.slice(2 - MOST_STEPS)] : telling;
  return (
    <nav class="stacks-way" aria-label="Metric">
      <Button class="plain" disabled={zoom < 0} onClick={() => change({ zoom: undefined })}>
        all
      </Button>
      {kept.map((index) => {
        if (index < 0)
          return (
            <span key="…" class="stacks-step faint">
              › …
            </span>
          );
        const frame = flame.frames[index];
        const name = frame ? plain(frame.function) || frameText(frame) : "";
        return (
          <span key={index} class="stacks-step">
            <span class="faint">›</span>
            <Button
              class="plain name"
              title={frame && frameText(frame)}
              disabled={index === zoom}
              onClick={() => change({ zoom: flame.key(index) })}
            >
              {name}
            </Button>
          </span>
        );
      })}
    </nav>
  );
}
