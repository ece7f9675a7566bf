/** Lengths on the page, and what follows them. */

import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** The pixels of one rem. */
export function rem(): number {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize) || 14;
}

/** Calls `look` with an element when it is there, and whenever its size has changed. */
export function useSized<T extends HTMLElement>(look: (element: T) => void): RefObject<T | null> {
  const element = useRef<T>(null);
  useLayoutEffect(() => {
    const { current } = element;
    if (!current) return;
    const watcher = new ResizeObserver(() => look(current));
    watcher.observe(current);
    look(current);
    return () => watcher.disconnect();
  }, []);
  return element;
}

/** An element and its width in whole pixels, 0 before there is one. */
export function useWidth<T extends HTMLElement>() {
  const [width, setWidth] = useState(0);
  const element = useSized<T>((element) => setWidth(Math.floor(element.clientWidth)));
  return [element, width] as const;
}

/** Scrolls a stretch from `top` on into sight, below a head that stays where it is. */
export function reveal(scroller: HTMLElement | null, top: number, height: number, head = 0): void {
  if (!scroller) return;
  const { scrollTop, clientHeight } = scroller;
  scroller.scrollTop = Math.min(Math.max(scrollTop, top + height + head - clientHeight), top);
}

/** Where words beside a place in an element of a width stand: on the side that has more room. */
export function beside(x: number, y: number, width: number): Record<string, string> {
  const right = x > width / 2;
  return { [right ? "right" : "left"]: `${(right ? width - x : x) + 14}px`, top: `${y + 16}px` };
}
