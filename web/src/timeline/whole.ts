/** The overview above the timeline: the outermost row of the main tracks over the whole trace. */

import { type Boxes, windowOf } from "./boxes";
import type { Timeline } from "./timeline";

const MOST_TRACKS = 12;
const PIXELS = 900;

export class Whole {
  boxes: readonly Boxes[] = [];
  /** Whether its boxes have arrived. */
  loaded = false;
  #requested = false;
  readonly #timeline: Timeline;
  readonly #arrived: () => void;

  constructor(timeline: Timeline, arrived: () => void) {
    this.#timeline = timeline;
    this.#arrived = arrived;
  }

  /** Request it, once. */
  async look(): Promise<void> {
    if (this.#requested) return;
    this.#requested = true;
    const { source, tracks, whole, palette, fail } = this.#timeline;
    const all = tracks.groups.flatMap((group) => group.tracks);
    const streams = all.filter((track) => track.sort === "stream");
    const threads = all.filter((track) => track.sort === "thread");
    const kept = Math.max(MOST_TRACKS - streams.length, Math.ceil(MOST_TRACKS / 2));
    const chosen = [...threads.slice(0, kept), ...streams].slice(0, MOST_TRACKS).map((track) => track.id);
    try {
      if (chosen.length)
        this.boxes = [...(await windowOf(source, whole, PIXELS, chosen, palette.label)).values()];
      this.loaded = true;
      this.#arrived();
    } catch (error) {
      fail(error);
    }
  }
}
