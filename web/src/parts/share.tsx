/**
 * What can be taken away: a link to what is shown, and files of the trace or of a part of it.
 * Any page can show it; which part is meant stands in the address.
 */

import { useState } from "preact/hooks";
import { route } from "../router";
import type { Query, Source } from "../source/source";
import * as units from "../units";
import { useJson, useSource, words } from "./answer";
import { Button } from "./button";
import { pngOf, svgOf } from "./picture";
import { save } from "./save";
import "./share.css";

const FORMATS = [
  ["ktrace", "Kinetoscope", ".ktrace: lossless and small"],
  ["json", "Chrome JSON", ".json.gz: for ui.perfetto.dev and tools that read torch.profiler traces"],
  ["report", "Report", ".html: these pages in one file, without a server"],
  ["speedscope", "speedscope", ".speedscope.json: for speedscope.app"],
] as const;

/** A part of the trace that can be taken. */
interface Part {
  key: string;
  title: string;
  query: Query;
}

interface About {
  spans: number;
  steps: [number, number] | null;
}

export function Share() {
  const source = useSource();
  const [at, setAt] = useState<DOMRect | null>(null);
  return (
    <>
      <Button
        aria-expanded={at !== null}
        aria-haspopup="dialog"
        popovertarget="share"
        title={source.served ? "Save or share" : "Share this view"}
        onClick={(event) => setAt(event.currentTarget.getBoundingClientRect())}
      >
        Export
      </Button>
      <div
        id="share"
        class="share"
        popover="auto"
        role="dialog"
        aria-label="Export"
        style={at ? place(at) : {}}
        onToggle={(event) => event.newState === "closed" && setAt(null)}
      >
        {at && <Link />}
        {at && <Pictures />}
        {at && source.has("export/about") && <Files source={source} />}
      </div>
    </>
  );
}

function Link() {
  const [copied, setCopied] = useState(false);
  return (
    <div class="share-row">
      <Button
        onClick={() =>
          navigator.clipboard?.writeText(location.href).then(
            () => setCopied(true),
            () => prompt("Copy:", location.href),
          )
        }
      >
        Copy link to this view
      </Button>
      <span class="muted" role="status">
        {copied ? "Copied." : ""}
      </span>
    </div>
  );
}

/** The page as it is seen. */
function Pictures() {
  const [problem, setProblem] = useState("");
  const page = () => document.querySelector("main") as HTMLElement;
  const named = (suffix: string) => `${route.value.page}.${suffix}`;
  const png = () =>
    pngOf(page()).then(
      (picture) => save(named("png"), picture, "image/png"),
      (error: unknown) => setProblem(words(error)),
    );
  return (
    <div class="share-row">
      <Button onClick={png}>PNG</Button>
      <Button onClick={() => save(named("svg"), svgOf(page()).text, "image/svg+xml")}>SVG</Button>
      <span class="muted" role="status">
        {problem || "a picture of this page"}
      </span>
    </div>
  );
}

function Files(props: { source: Source }) {
  const { source } = props;
  const parts = partsOf(route.value.query);
  const [key, setKey] = useState(parts[0]?.key ?? "all");
  const [steps, setSteps] = useState("");
  const part = parts.find((one) => one.key === key);
  const query: Query | null = part ? part.query : steps.trim() ? { steps: steps.trim() } : null;
  const about = useJson<About>(query && "export/about", query ?? {});
  const known = useJson<About>("export/about");

  const radio = (value: string) =>
    ({ type: "radio", name: "share-part", checked: key === value, onChange: () => setKey(value) }) as const;
  return (
    <>
      <fieldset>
        <legend>What</legend>
        {parts.map((one) => (
          <label key={one.key}>
            <input {...radio(one.key)} />
            {one.title}
          </label>
        ))}
        {known.value?.steps && (
          <label>
            <input {...radio("steps")} />
            Steps
            <input
              type="text"
              aria-label="Step numbers"
              placeholder={[...new Set(known.value.steps)].join("-")}
              value={steps}
              onFocus={() => setKey("steps")}
              onInput={(event) => setSteps(event.currentTarget.value)}
            />
          </label>
        )}
        <p class={about.error === undefined ? "muted" : "warn"} role="status">
          {about.error ?? (query && about.value ? units.counted(about.value.spans, "span") : "\u00a0")}
        </p>
      </fieldset>
      <ul>
        {FORMATS.map(([form, title, hint]) => {
          const href = query && !about.error && source.download(`export/${form}`, query);
          return (
            <li key={form}>
              {href ? (
                <a class="button" download href={href}>
                  {title}
                </a>
              ) : (
                <Button disabled>{title}</Button>
              )}
              <span class="muted">{hint}</span>
            </li>
          );
        })}
      </ul>
    </>
  );
}

/** What the address says is looked at, the closest first; the whole trace last. */
export function partsOf(query: Readonly<Record<string, string>>): Part[] {
  const parts: Part[] = [];
  const [from, to] = (query["range"] ?? "").split("-").map(Number);
  const add = (key: string, title: string, start: number | undefined, end: number | undefined) => {
    if (start === undefined || end === undefined || !(end > start && end > 0)) return;
    const whole = { start: Math.max(0, Math.floor(start)), end: Math.ceil(end) };
    parts.push({
      key,
      title: `${title}: ${units.time(whole.end - whole.start)} from ${units.time(whole.start)}`,
      query: whole,
    });
  };
  add("range", "The selected range", from, to);
  if (query["start"] !== undefined)
    add("view", "The current view", Number(query["start"]), Number(query["end"]));
  parts.push({ key: "all", title: "The whole trace", query: {} });
  return parts;
}

/** Beside the button, on the side where there is more room. */
function place({ left, right, top, bottom }: DOMRect): Record<string, string> {
  return {
    ...(left > innerWidth / 2 ? { right: `${innerWidth - right}px` } : { left: `${left}px` }),
    ...(top > innerHeight / 2 ? { bottom: `${innerHeight - top + 6}px` } : { top: `${bottom + 6}px` }),
  };
}
