import "./theme.css";
import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { App, type Offered } from "./app";
import { onDrop } from "./drop";
import { version } from "./parts/answer";
import { route } from "./router";
import { reportInPage } from "./source/report";
import { lookAgain, onLookAgain, requested, ServerSource } from "./source/server";

const LOOK_AGAIN_MS = 2000;
const root = document.getElementById("app") as HTMLElement;

async function start(): Promise<void> {
  const found = reportInPage();
  if (found) {
    const { source, report } = found;
    if (report.start && !location.hash) location.replace(report.start);
    const offered = [{ name: report.name, live: false }];
    const empty = "The report is empty.";
    render(<App offered={offered} chosen={0} source={source} empty={empty} notice={report.notice} />, root);
    return;
  }
  const offered = signal(await asked<Offered[]>("api/traces"));
  const gone = signal(false);
  const sources: ServerSource[] = [];
  const sourceOf = (index: number) => {
    sources[index] ??= new ServerSource(index, offered.value[index]?.job);
    return sources[index];
  };
  const chosen = () => {
    const wanted = Number(route.value.query["trace"] ?? 0);
    return offered.value[wanted] ? wanted : 0;
  };
  onLookAgain(async () => {
    offered.value = await asked<Offered[]>("api/traces");
  });
  onDrop(async (trace) => {
    await lookAgain();
    location.hash = `#/overview?trace=${trace}`;
  });
  effect(() => {
    const source = sourceOf(chosen());
    const empty = "The server has no trace.";
    if (source)
      render(
        <App offered={offered.value} chosen={chosen()} source={source} empty={empty} gone={gone.value} />,
        root,
      );
  });

  setInterval(async () => {
    // A page that nobody sees asks when it is seen again.
    if (document.visibilityState === "hidden") return;
    const now = await asked<Offered[]>("api/traces").catch(() => undefined);
    gone.value = now === undefined;
    if (!now || JSON.stringify(now) === JSON.stringify(offered.peek())) return;
    const before = offered.peek()[chosen()]?.version;
    offered.value = now;
    if (now[chosen()]?.version !== before) version.value += 1;
  }, LOOK_AGAIN_MS);
}

async function asked<T>(path: string): Promise<T> {
  return (await requested(path)).json() as Promise<T>;
}

start().catch((error: unknown) => {
  root.textContent = `Kinetoscope could not start: ${String(error)}`;
});
