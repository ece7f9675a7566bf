/** The keys and what the mouse does. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

const MOUSE: readonly (readonly [string, string])[] = [
  ["Click", "show a span's details"],
  ["Drag", "pan"],
  ["Shift + drag", "select a range and sum what ran in it"],
  ["Ctrl + wheel", "zoom at the pointer"],
  ["Shift + wheel", "pan"],
  ["Double click", "zoom to a span"],
];

const KEYS: readonly (readonly [readonly string[], string])[] = [
  [["w", "s"], "zoom in, out"],
  [["a", "d"], "pan"],
  [["←", "→"], "previous, next span; or pan"],
  [["↑", "↓"], "parent, child span; or scroll"],
  [["f"], "zoom to the selection"],
  [["0"], "the whole trace"],
  [["/"], "search"],
  [["n", "N"], "next, previous match"],
  [["r"], "select the time range of the span"],
  [["Esc"], "clear selection"],
  [["?"], "this help"],
];

const COLORS: readonly (readonly [string, string])[] = [
  ["operator", "operators"],
  ["backward", "backward functions"],
  ["annotation", "record_function ranges"],
  ["python", "Python calls"],
  ["module", "modules"],
  ["runtime", "CUDA / HIP runtime and driver calls"],
  ["sync", "synchronization"],
  ["kernel", "kernels"],
  ["memcpy", "memcpy and memset"],
  ["collective", "collectives and their kernels"],
  ["overhead", "profiling overhead"],
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
    <dialog class="tl-help" ref={dialog} onClose={props.onClose} aria-label="Keyboard and mouse">
      <form method="dialog">
        <h2>Keyboard and mouse</h2>
        <button type="submit" aria-label="Close">
          ✕
        </button>
      </form>
      <Keys />
      <p class="legend tl-colors">
        {COLORS.map(([role, what]) => (
          <span key={role}>
            <span class="swatch" style={{ background: `var(--${role})` }} />
            {what}
          </span>
        ))}
      </p>
    </dialog>
  );
}
