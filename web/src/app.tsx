/** The frame around all pages: navigation, the choice of the trace, dark or light. */

import { useEffect, useMemo } from "preact/hooks";
import { Keys } from "./keys";
import { PAGES, type Page } from "./pages/pages";
import { Problem, SourceContext, useJson, useSource, version } from "./parts/answer";
import { Button } from "./parts/button";
import { Select } from "./parts/choice";
import { Mark } from "./parts/mark";
import { PartChooser } from "./parts/part";
import { Share } from "./parts/share";
import { SourceText } from "./parts/source-text";
import { theme, turnTheme } from "./parts/theme";
import { address, go, route } from "./router";
import { PartSource } from "./source/part";
import type { Source } from "./source/source";

/** One of the traces that can be looked at. */
export interface Offered {
  name: string;
  /** True while the trace is still being written. */
  live: boolean;
  /** Counts the readings of it. */
  version?: number;
  /** False where it could not be read at all. */
  readable?: boolean;
  /** True for the summaries of a job. */
  job?: boolean;
  /** Why it cannot be read, or not again since its file changed. */
  problem?: string | null;
}

export function App(props: {
  offered: readonly Offered[];
  chosen: number;
  source: Source;
  /** What is shown where there is no page. */
  empty: string;
  /** True while the server does not answer. */
  gone?: boolean;
  /** A text above all pages. */
  notice?: string;
}) {
  const { offered, chosen } = props;
  const { part } = route.value.query;
  const source = useMemo(
    () => (part && props.source.served ? new PartSource(props.source, part) : props.source),
    [props.source, part],
  );
  const { live = false, problem = null, readable = true } = offered[chosen] ?? {};
  const traces = offered.filter(({ job }) => !job).length;
  const pages = PAGES.filter(
    (page) => source.has(page.needs) && !(page.ofTwo && source.served && traces < 2),
  );
  const page = pages.find((page) => page.name === route.value.page) ?? pages[0];
  const name = offered[chosen]?.name ?? "";
  useEffect(() => {
    document.title = page ? `${page.title} · ${name} · Kinetoscope` : "Kinetoscope";
  }, [page, name]);

  return (
    <SourceContext.Provider value={source}>
      <Keys pages={pages} />
      <SourceText />
      <div class="frame">
        <aside class="side">
          <a class="brand" href={address(pages[0]?.name ?? "")}>
            <Mark />
            <span>Kinetoscope</span>
          </a>
          {offered.length > 1 ? (
            <Select
              label="Trace"
              options={offered.map((one, index) => [String(index), one.name])}
              chosen={String(chosen)}
              onChoice={(trace) => go(route.value.page, { trace })}
            />
          ) : null}
          <Navigation pages={pages} current={page} />
          <PartChooser />
          <div class="below">
            <span class="name" title={name}>
              {name}
            </span>
            <span class="warn" title={problem?.slice(0, 2000)}>
              {live && <p>still being written</p>}
              {problem && readable && (
                <p>The file has changed and cannot be read now; this page shows its previous content.</p>
              )}
              {source.lacks && <p>{source.lacks}</p>}
              {props.gone && <p>The server has stopped.</p>}
            </span>
            <div class="pair">
              <Share />
              <Button onClick={turnTheme}>{theme.value === "dark" ? "Light" : "Dark"}</Button>
            </div>
          </div>
        </aside>
        <main class={page?.full ? "page full" : "page"} key={`${chosen}:${version.value === -1}`}>
          {props.notice && <pre class="notice">{props.notice}</pre>}
          {problem && !readable ? (
            <Problem>{problem}</Problem>
          ) : page ? (
            <page.show />
          ) : (
            <Problem>{props.empty}</Problem>
          )}
        </main>
      </div>
    </SourceContext.Provider>
  );
}

/** The pages; those that have nothing to show of this trace are dimmed, with the reason. */
function Navigation(props: { pages: readonly Page[]; current: Page | undefined }) {
  const empty = useJson<Record<string, string>>(useSource().has("empty") ? "empty" : null).value ?? {};
  return (
    <nav aria-label="Pages">
      {props.pages.map((one) => (
        <a
          key={one.name}
          class={empty[one.name] && "empty"}
          title={empty[one.name]}
          href={address(one.name)}
          aria-current={one === props.current ? "page" : undefined}
        >
          {one.title}
        </a>
      ))}
    </nav>
  );
}
