/** The overview above the timeline: the outermost row of the main tracks over the whole trace. */

import { words } from "../parts/answer";
import { type Boxes, split } from "./boxes";
import type { Timeline } from "./timeline";

const MOST_TRACKS = 12;
const PIXELS = 900;

export class Whole {
  boxes: readonly Boxes[] = [];
  /** Counts up with each new answer. */
  version = 0;
  private asked = false;

  constructor(
    private readonly timeline: Timeline,
    private readonly arrived: () => void,
  ) {}

  /** Ask for it, once. */
  look(): void {
    if (this.asked) return;
    this.asked = true;
    const { source, tracks, whole, palette } = this.timeline;
    const all = tracks.groups.flatMap((group) => group.tracks);
    const streams = all.filter((track) => track.sort === "stream");
    const threads = all.filter((track) => track.sort === "thread");
    const kept = Math.max(MOST_TRACKS - streams.length, Math.ceil(MOST_TRACKS / 2));
    const chosen = [...threads.slice(0, kept), ...streams].slice(0, MOST_TRACKS).map((track) => track.id);
    if (!chosen.length) {
      this.version = 1;
      return;
    }
    const query = { start: whole.start, end: whole.end, width: PIXELS, tracks: chosen.join() };
    source.columns("window", query).then(
      (answer) => {
        const parts = split(answer, chosen, whole, (whole.end - whole.start) / PIXELS, palette.label);
        this.boxes = chosen.flatMap((id) => parts.get(id) ?? []);
        this.version += 1;
        this.arrived();
      },
      (error: unknown) => {
        this.timeline.problem.value = words(error);
      },
    );
  }
}
