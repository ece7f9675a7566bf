/** The right edge of what is around it, which the pointer or arrow keys move. */

import { drag } from "../timeline/input";

const KEY_PX = 24;

export function Grip(props: { label: string; onWidth: (width: number) => void }) {
  const widthOf = (grip: HTMLElement) => grip.parentElement?.clientWidth ?? 0;
  return (
    <div
      class="grip"
      role="separator"
      aria-orientation="vertical"
      aria-valuenow={0}
      aria-label={props.label}
      title="Drag to change the width"
      tabIndex={0}
      onPointerDown={(event) => {
        const grip = event.currentTarget;
        const before = widthOf(grip) - event.clientX;
        drag(event, grip, (_dx, _dy, now) => props.onWidth(before + now.clientX));
      }}
      onKeyDown={(event) => {
        const by = { ArrowLeft: -KEY_PX, ArrowRight: KEY_PX }[event.key];
        if (by === undefined) return;
        props.onWidth(widthOf(event.currentTarget) + by);
        event.preventDefault();
        event.stopPropagation();
      }}
    />
  );
}
