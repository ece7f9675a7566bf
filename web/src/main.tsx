import "./theme.css";
import { effect } from "@preact/signals";
import { render } from "preact";
import { App, type Offered } from "./app";
import { version } from "./parts/answer";
import { route } from "./router";
import { HttpSource } from "./source/http";

const LOOK_AGAIN_MS = 2000;

async function start(): Promise<void> {
  const root = document.getElementById("app");
  if (!root) throw new Error("the page has no place for the app");
  let offered: Offered[] = await traces();
  const sources = offered.map((_, index) => new HttpSource(index));
  const told = "The server was given no trace.";

  effect(() => {
    const wanted = Number(route.value.query["trace"] ?? 0);
    const chosen = sources[wanted] ? wanted : 0;
    const source = sources[chosen];
    version.value;
    if (source) render(<App offered={offered} chosen={chosen} source={source} told={told} />, root);
  });

  if (offered.some((trace) => trace.live)) {
    setInterval(async () => {
      const before = JSON.stringify(offered);
      offered = await traces().catch(() => offered);
      if (JSON.stringify(offered) !== before) version.value += 1;
    }, LOOK_AGAIN_MS);
  }
}

async function traces(): Promise<Offered[]> {
  const response = await fetch("api/traces");
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return (await response.json()) as Offered[];
}

start().catch((error: unknown) => {
  const root = document.getElementById("app");
  if (root) root.textContent = `Kinetoscope could not start: ${String(error)}`;
});
