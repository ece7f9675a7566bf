/** The switch that hides what is inside libraries, above flame graphs. */

import { change } from "../router";

/** Hides frames inside torch and Kinetoscope; the state is that of the page's address. */
export function HideTorch(props: { hide: boolean }) {
  return (
    <label class="switch" title="Hide frames inside torch and Kinetoscope">
      <input
        type="checkbox"
        checked={props.hide}
        onChange={() => change({ library: props.hide ? "show" : undefined, at: undefined, zoom: undefined })}
      />
      <span>
        Hide <span class="swatch" style={{ background: "var(--runtime)", margin: "0 0.35em 0 0.15em" }} />
        torch frames
      </span>
    </label>
  );
}
