/**
 * Handing a trace over to Perfetto's page, which opens beside ours. The trace goes from this window to that one and
 * stays in the browser. Perfetto trusts pages of this machine, so nobody is asked.
 */

const PING_MS = 60;
const PATIENCE_MS = 45_000;

/** A window that was opened in answer to a click, and may be handed something. */
export interface Beside {
  readonly closed: boolean;
  postMessage(message: unknown, origin: string): void;
}

/** Where messages of other windows arrive, and when. */
export interface Around {
  listen(heard: (message: MessageEvent) => void): () => void;
  every(ms: number, again: () => void): () => void;
  now(): number;
}

export const browserAround: Around = {
  listen(heard) {
    addEventListener("message", heard);
    return () => removeEventListener("message", heard);
  },
  every(ms, again) {
    const timer = setInterval(again, ms);
    return () => clearInterval(timer);
  },
  now: () => performance.now(),
};

/**
 * Waits until Perfetto's page answers, then gives it the trace. Rejects with a sentence where it never does.
 *
 * It is asked again and again, since nothing says when a page of another origin has loaded.
 */
export function handOver(
  beside: Beside,
  address: string,
  trace: { buffer: ArrayBuffer; title: string; fileName: string },
  around: Around = browserAround,
): Promise<void> {
  const origin = new URL(address).origin;
  const until = around.now() + PATIENCE_MS;
  return new Promise((resolve, reject) => {
    const end = (settle: () => void) => {
      stopListening();
      stopAsking();
      settle();
    };
    const stopListening = around.listen((message) => {
      if (message.source !== (beside as unknown) || message.origin !== origin || message.data !== "PONG")
        return;
      // Nobody but Perfetto gets it, should that window have moved on.
      beside.postMessage({ perfetto: { ...trace, localOnly: true } }, origin);
      end(resolve);
    });
    const stopAsking = around.every(PING_MS, () => {
      if (beside.closed) end(() => reject(new Error("Perfetto's window was closed.")));
      else if (around.now() > until)
        end(() => reject(new Error(`${origin} does not answer. Can this browser reach it?`)));
      else beside.postMessage("PING", origin);
    });
  });
}
