import { expect, test } from "vitest";
import { type Around, type Beside, handOver } from "../src/parts/perfetto";

const UI = "https://ui.perfetto.dev/some/page";
const ORIGIN = "https://ui.perfetto.dev";
const trace = { buffer: new ArrayBuffer(8), title: "run", fileName: "run.pftrace" };

/** A window that notes what it is sent, and a browser whose time passes when a test says so. */
function stage() {
  const sent: { message: unknown; origin: string }[] = [];
  const beside = {
    closed: false,
    postMessage: (message: unknown, origin: string) => sent.push({ message, origin }),
  };
  let heard: ((message: MessageEvent) => void) | undefined;
  let again: (() => void) | undefined;
  let now = 0;
  const around: Around = {
    listen(listener) {
      heard = listener;
      return () => {
        heard = undefined;
      };
    },
    every(_, asked) {
      again = asked;
      return () => {
        again = undefined;
      };
    },
    now: () => now,
  };
  return {
    sent,
    beside: beside as Beside & { closed: boolean },
    around,
    pass(ms: number) {
      now += ms;
      again?.();
    },
    answer: (data: unknown, origin = ORIGIN, source: unknown = beside) =>
      heard?.({ data, origin, source } as MessageEvent),
    idle: () => heard === undefined && again === undefined,
  };
}

test("it asks until there is an answer, then hands the trace over once", async () => {
  const on = stage();
  const done = handOver(on.beside, UI, trace, on.around);
  on.pass(60);
  on.pass(60);
  expect(on.sent).toEqual([
    { message: "PING", origin: ORIGIN },
    { message: "PING", origin: ORIGIN },
  ]);
  on.answer("PONG");
  await done;
  expect(on.sent[2]).toEqual({ message: { perfetto: { ...trace, localOnly: true } }, origin: ORIGIN });
  expect(on.idle()).toBe(true);
});

test("nobody but Perfetto's window gets the trace", () => {
  const on = stage();
  handOver(on.beside, UI, trace, on.around);
  on.answer("PONG", "https://evil.example");
  on.answer("PONG", ORIGIN, {});
  on.answer("something else");
  expect(on.sent).toEqual([]);
});

test("a window that was closed, or never answers, is told", async () => {
  const closed = stage();
  const first = handOver(closed.beside, UI, trace, closed.around);
  (closed.beside as { closed: boolean }).closed = true;
  closed.pass(60);
  await expect(first).rejects.toThrow("was closed");
  const silent = stage();
  const second = handOver(silent.beside, UI, trace, silent.around);
  silent.pass(60_000);
  await expect(second).rejects.toThrow("https://ui.perfetto.dev does not answer");
  expect(silent.idle()).toBe(true);
});
