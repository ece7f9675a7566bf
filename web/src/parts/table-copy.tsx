/** The small button that lies on the cell under the pointer and copies it. */

import { type Signal, useSignal } from "@preact/signals";
import { Button } from "./button";

interface Place {
  cell: HTMLElement;
  top: number;
  left: number;
  done?: boolean;
}

/** Where the button lies, and what the body of the table does to move it. */
export function useCopyPlace() {
  const place = useSignal<Place | null>(null);
  return {
    place,
    onPointerOver: (event: PointerEvent & { currentTarget: HTMLElement }) => {
      const cell = (event.target as Element).closest<HTMLElement>(".cell");
      if (event.pointerType !== "mouse" || !cell || cell === place.peek()?.cell) return;
      const around = event.currentTarget.getBoundingClientRect();
      const box = cell.getBoundingClientRect();
      // Numbers stand at the right of their cells, texts at the left.
      const left = cell.classList.contains("number") ? box.left + 3 : box.right - 25;
      place.value = { cell, top: box.top - around.top, left: left - around.left };
    },
    onPointerLeave: () => {
      place.value = null;
    },
  };
}

export function CopyOne(props: { place: Signal<Place | null>; onCopy: (cell: HTMLElement) => void }) {
  const { place, onCopy } = props;
  const shown = place.value;
  if (!shown?.cell.isConnected) return null;
  const { cell, top, left, done } = shown;
  return (
    <Button
      key={`${top} ${left}`}
      class="copy-one"
      tabIndex={-1}
      title="Copy this value"
      aria-label="Copy this value"
      style={{ top: `${top}px`, left: `${left}px` }}
      onClick={(event) => {
        event.stopPropagation();
        onCopy(cell);
        place.value = { ...shown, done: true };
      }}
    >
      <svg width="13" height="13" viewBox="0 0 13 13" fill="none" stroke="currentColor" aria-hidden="true">
        <path d={done ? "M2 7l3 3 6-7" : "M4.5 4.5h7v7h-7zM2 8.5h-.5v-7h7V2"} stroke-width="1.2" />
      </svg>
    </Button>
  );
}
