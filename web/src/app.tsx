/** The frame around all pages: navigation, the choice of the trace, dark or light. */

import { useEffect } from "preact/hooks";
import { PAGES } from "./pages/pages";
import { Problem, SourceContext, version } from "./parts/answer";
import { Mark } from "./parts/mark";
import { theme, turnTheme } from "./parts/theme";
import { address, change, route } from "./router";
import type { Source } from "./source/source";

/** One of the traces that can be looked at. */
export interface Offered {
  name: string;
  /** True while the trace is still being written. */
  live: boolean;
}

export function App(props: { offered: readonly Offered[]; chosen: number; source: Source; told: string }) {
  const { offered, chosen, source } = props;
  const pages = PAGES.filter((page) => source.has(page.needs));
  const page = pages.find((page) => page.name === route.value.page) ?? pages[0];
  const name = offered[chosen]?.name ?? "";
  useEffect(() => {
    document.title = page ? `${page.title} · ${name} · Kinetoscope` : "Kinetoscope";
  }, [page, name]);

  return (
    <SourceContext.Provider value={source}>
      <div class="frame">
        <aside class="side">
          <a class="brand" href={address(pages[0]?.name ?? "")}>
            <Mark />
            <span>Kinetoscope</span>
          </a>
          {offered.length > 1 ? (
            <select
              aria-label="Trace"
              value={String(chosen)}
              onChange={(event) => change({ trace: event.currentTarget.value })}
            >
              {offered.map((one, index) => (
                <option key={one.name} value={String(index)}>
                  {one.name}
                </option>
              ))}
            </select>
          ) : null}
          <nav aria-label="Pages">
            {pages.map((one) => (
              <a
                key={one.name}
                href={address(one.name, { trace: route.value.query["trace"] })}
                aria-current={one === page ? "page" : undefined}
              >
                {one.title}
              </a>
            ))}
          </nav>
          <div class="below">
            <span class="name" title={name}>
              {name}
            </span>
            {offered[chosen]?.live && <span class="warn">still being written</span>}
            <button type="button" onClick={turnTheme}>
              {theme.value === "dark" ? "Light" : "Dark"}
            </button>
          </div>
        </aside>
        <main class={page?.full ? "page full" : "page"} key={`${chosen}:${version.value === -1}`}>
          {page ? <page.show /> : <Problem>{props.told}</Problem>}
        </main>
      </div>
    </SourceContext.Provider>
  );
}
