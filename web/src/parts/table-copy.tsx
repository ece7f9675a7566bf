/** The small button that lies on the cell under the pointer and copies it. */

import { useSignal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect } from "preact/hooks";

export function CopyOne(props: { body: RefObject<HTMLElement | null>; onCopy: (cell: HTMLElement) => void }) {
  const place = useSignal<{ cell: HTMLElement; top: number; left: number; done: boolean } | null>(null);
  const { body, onCopy } = props;
  useEffect(() => {
    const element = body.current;
    if (!element) return;
    const over = (event: PointerEvent) => {
      if (event.pointerType !== "mouse") return;
      const cell = (event.target as Element).closest<HTMLElement>(".cell");
      if (!cell || cell === place.peek()?.cell) return;
      const around = element.getBoundingClientRect();
      const box = cell.getBoundingClientRect();
      // Numbers stand at the right of their cells, texts at the left.
      const left = cell.classList.contains("number") ? box.left + 3 : box.right - 25;
      place.value = { cell, top: box.top - around.top, left: left - around.left, done: false };
    };
    const away = () => {
      place.value = null;
    };
    element.addEventListener("pointerover", over);
    element.addEventListener("pointerleave", away);
    return () => {
      element.removeEventListener("pointerover", over);
      element.removeEventListener("pointerleave", away);
    };
  }, []);
  const shown = place.value;
  if (!shown?.cell.isConnected) return null;
  return (
    <button
      key={`${shown.top} ${shown.left}`}
      type="button"
      class="copy-one"
      tabIndex={-1}
      title="Copy this value"
      aria-label="Copy this value"
      style={{ top: `${shown.top}px`, left: `${shown.left}px` }}
      onClick={(event) => {
        event.stopPropagation();
        onCopy(shown.cell);
        place.value = { ...shown, done: true };
      }}
    >
      <svg width="13" height="13" viewBox="0 0 13 13" fill="none" stroke="currentColor" aria-hidden="true">
        {shown.done ? (
          <path d="M2 7l3 3 6-7" stroke-width="1.8" />
        ) : (
          <path d="M4.5 4.5h7v7h-7zM2 8.5h-.5v-7h7V2" stroke-width="1.1" />
        )}
      </svg>
    </button>
  );
}
