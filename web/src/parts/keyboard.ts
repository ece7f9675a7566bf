/** What keys of all pages share: the dialog that they open, and which of them are typed text. */

import { signal } from "@preact/signals";

/** What lies over the page. */
export const dialog = signal<"help" | "go" | null>(null);

/** Whether a key goes into a field. */
export function isTyping(event: KeyboardEvent): boolean {
  return (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    (event.target instanceof Element && event.target.matches("input:not([type=checkbox]), textarea, select"))
  );
}
