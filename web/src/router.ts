/** The address of what is shown: `#/operators?sort=self_ns`. It works on a server and in a file alike. */

import { signal } from "@preact/signals";

export interface Route {
  /** The name of the page. */
  page: string;
  /** What of it is shown. */
  query: Readonly<Record<string, string>>;
}

export const route = signal<Route>(parsed(location.hash));

addEventListener("hashchange", () => {
  route.value = parsed(location.hash);
});

export function parsed(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { page: path || "overview", query: Object.fromEntries(new URLSearchParams(query)) };
}

/** The address of a page of the trace, and of the part of it, that is looked at. */
export function address(page: string, query: Readonly<Record<string, string | undefined>> = {}): string {
  const { trace, part } = route.value.query;
  const whole = { trace, part, ...query };
  const kept = Object.entries(whole).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const text = new URLSearchParams(kept).toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

/** Go to a page; a new entry in the history. */
export function go(page: string, query: Readonly<Record<string, string | undefined>> = {}): void {
  location.hash = address(page, query);
}

/**
 * Change what is shown of the page; undefined takes a key away. With `replace` the back button does not stop here: for
 * what changes many times a second, such as a window that is dragged.
 */
export function change(changes: Readonly<Record<string, string | undefined>>, replace = false): void {
  const { page, query } = route.value;
  const next = address(page, { ...query, ...changes });
  if (next === location.hash) return;
  if (replace) {
    history.replaceState(history.state, "", next);
    route.value = parsed(next);
  } else location.hash = next;
}
