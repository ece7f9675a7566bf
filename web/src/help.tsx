/** The keys and what the mouse does, and what the colors of the timeline mean. */

import { useLayoutEffect, useRef } from "preact/hooks";

type Line = readonly [keys: readonly string[], does: string];

const GROUPS: readonly (readonly [title: string, lines: readonly Line[]])[] = [
  [
    "Every page",
    [
      [["Ctrl K"], "go to a page, or search for a name"],
      [["/"], "search on this page"],
      [["Esc"], "clear selection"],
      [["?"], "this help"],
    ],
  ],
  [
    "Tables",
    [
      [["↑", "↓", "←", "→"], "walk through the cells"],
      [["Enter"], "select the row"],
      [["c"], "copy the cell"],
    ],
  ],
  [
    "Stacks and modules",
    [
      [["↑", "↓", "←", "→"], "walk through the boxes"],
      [["Enter"], "zoom in"],
      [["Backspace"], "zoom out"],
      [["Double click"], "zoom in"],
    ],
  ],
  [
    "Stacks over time",
    [
      [["w", "s"], "zoom into the chart, out of it"],
      [["a", "d"], "pan"],
      [["f"], "zoom to the box"],
      [["0"], "all of the thread"],
      [["n", "N"], "next, previous call found"],
      [["Drag"], "pan"],
      [["Ctrl + wheel"], "zoom at the pointer"],
    ],
  ],
  [
    "Map of ranks",
    [
      [["↑", "↓", "←", "→"], "walk through ranks and steps"],
      [["Esc"], "clear selection"],
    ],
  ],
  [
    "Timeline, mouse",
    [
      [["Click"], "show a span's details"],
      [["Double click"], "zoom to a span"],
      [["Drag"], "pan"],
      [["Shift + drag"], "select a range and sum what ran in it"],
      [["Ctrl + wheel"], "zoom at the pointer"],
      [["Shift + wheel"], "pan"],
    ],
  ],
  [
    "Timeline, keys",
    [
      [["w", "s"], "zoom in, out"],
      [["a", "d"], "pan"],
      [["←", "→"], "previous, next span; or pan"],
      [["↑", "↓"], "parent, child span; or scroll"],
      [["f"], "zoom to the selection"],
      [["0"], "the whole trace"],
      [["n", "N"], "next, previous match"],
      [["r"], "select the time range of the span"],
      [["m"], "measure the time from the span to others"],
    ],
  ],
];

/** What the colors of the timeline mean, by their names in the theme. */
export const COLORS: readonly (readonly [string, string])[] = [
  ["operator", "operators"],
  ["backward", "backward functions"],
  ["annotation", "record_function ranges"],
  ["python", "Python calls"],
  ["module", "modules"],
  ["runtime", "CUDA / HIP runtime and driver calls"],
  ["sync", "synchronization"],
  ["kernel", "kernels, fused kernels of torch.compile"],
  ["memcpy", "memcpy and memset"],
  ["collective", "collectives and their kernels"],
  ["overhead", "profiling overhead"],
];

export function Help(props: { onClose: () => void }) {
  const element = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => element.current?.showModal(), []);
  return (
    <dialog class="help" ref={element} onClose={props.onClose} aria-label="Keyboard and mouse">
      <form method="dialog">
        <h2>Keyboard and mouse</h2>
        <button type="submit" aria-label="Close">
          ✕
        </button>
      </form>
      <div class="help-keys">
        {GROUPS.map(([title, lines]) => (
          <section key={title}>
            <h3>{title}</h3>
            {lines.map(([keys, does]) => (
              <p key={does}>
                <span>
                  {keys.map((key) => (
                    <kbd key={key}>{key}</kbd>
                  ))}
                </span>
                <span class="muted">{does}</span>
              </p>
            ))}
          </section>
        ))}
      </div>
      <p class="legend">
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
