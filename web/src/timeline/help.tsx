/** The keys and what the mouse does. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

const MOUSE: readonly (readonly [string, string])[] = [
  ["Click", "all about a span"],
  ["Drag", "pan"],
  ["Shift + drag", "choose a range: what ran in it"],
  ["Ctrl + wheel", "zoom at the pointer"],
  ["Shift + wheel", "pan"],
  ["Double click", "fit a span into the view"],
];

const KEYS: readonly (readonly [readonly string[], string])[] = [
  [["w", "s"], "zoom in, out"],
  [["a", "d"], "pan"],
  [["←", "→"], "span before, after; or pan"],
  [["↑", "↓"], "span around, inside; or scroll"],
  [["f"], "fit what is chosen"],
  [["0"], "the whole trace"],
  [["/"], "search"],
  [["n", "N"], "next found, the one before"],
  [["r"], "range of the chosen span"],
  [["Esc"], "choose nothing"],
  [["?"], "this help"],
];

const COLOURS: readonly (readonly [string, string])[] = [
  ["operator", "operators"],
  ["backward", "backward functions"],
  ["annotation", "ranges of the program"],
  ["python", "Python calls"],
  ["module", "modules"],
  ["runtime", "calls of the runtime and the driver"],
  ["sync", "waits for a device"],
  ["kernel", "kernels"],
  ["memcpy", "copies and fills of memory"],
  ["collective", "collectives and their kernels"],
  ["overhead", "overhead of profiling"],
];

function Keys() {
  return (
    <div class="tl-keys">
      <div>
        {MOUSE.map(([what, does]) => (
          <Line key={what} does={does}>
            <kbd>{what}</kbd>
          </Line>
        ))}
      </div>
      {[KEYS.slice(0, 6), KEYS.slice(6)].map((part) => (
        <div key={part[0]?.[1]}>
          {part.map(([keys, does]) => (
            <Line key={does} does={does}>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </Line>
          ))}
        </div>
      ))}
    </div>
  );
}

function Line(props: { does: string; children: ComponentChildren }) {
  return (
    <p>
      <span class="tl-kbds">{props.children}</span>
      <span class="muted">{props.does}</span>
    </p>
  );
}

/** The same as a dialogue over the page. */
export function Help(props: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog class="tl-help" ref={dialog} onClose={props.onClose} aria-label="Keys and mouse">
      <form method="dialog">
        <h2>Keys and mouse</h2>
        <button type="submit" aria-label="Close">
          ✕
        </button>
      </form>
      <Keys />
      <p class="legend tl-colours">
        {COLOURS.map(([role, what]) => (
          <span key={role}>
            <span class="swatch" style={{ background: `var(--${role})` }} />
            {what}
          </span>
        ))}
      </p>
    </dialog>
  );
}
