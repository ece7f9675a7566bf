/** Trace files that are dropped on the page: the server opens them. */

import { requested } from "./source/server";

/** Calls `show` with the number of each trace that was dropped, while the page lives. */
export function onDrop(show: (trace: number) => void): void {
  const sign = document.createElement("div");
  sign.className = "drop";
  sign.setAttribute("role", "status");
  document.body.append(sign);
  const tell = (text: string) => {
    sign.textContent = text;
    sign.classList.toggle("shown", text !== "");
  };
  addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    tell("Drop a trace to open it");
  });
  addEventListener("dragleave", (event) => {
    // Only when the pointer leaves the window, not one element for another.
    if (!event.relatedTarget) tell("");
  });
  addEventListener("drop", async (event) => {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    for (const file of files) {
      tell(`Opening ${file.name}…`);
      try {
        const address = `api/open?name=${encodeURIComponent(file.name)}`;
        const response = await requested(address, { method: "POST", body: file });
        show(((await response.json()) as { trace: number }).trace);
        tell("");
      } catch (error) {
        tell(error instanceof Error ? error.message : String(error));
      }
    }
  });
  // What went wrong stays until it has been seen.
  addEventListener("pointerdown", () => tell(""));
}
