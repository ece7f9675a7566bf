/** What ran in a step, track below track, as boxes in rows. */

import type { Look } from "../parts/icicle-paint";
import type { Boxes } from "../parts/icicle-rows";
import type { Columns } from "../source/source";
import { boxName } from "../timeline/names";
import { roleOf } from "../timeline/palette";

/** A step of a trace, and the tracks of its process on the timeline. */
export interface DrawnStep {
  /** Null in a trace without steps. */
  step: number | null;
  start_ns: number;
  duration_ns: number;
  tracks: readonly { id: number; label: string }[];
}

/** A box: the heading of a track, or spans that begin in the same pixel. */
export interface StepBox {
  /** When it begins and ends, from the start of the step, cut to the step. */
  start: number;
  end: number;
  row: number;
  /** The box around it, -1 for none. */
  parent: number;
  /** The name of the track, or of the first span. */
  name: string;
  /** How long it takes, also before and after the step. */
  duration: number;
  /** How many spans it stands for. */
  count: number;
  /** The first of them; -1 for what is none. */
  span: number;
  look: Look;
}

export interface StepBoxes {
  all: readonly StepBox[];
  boxes: Boxes;
  looks: readonly Look[];
}

/**
 * Lay out what a window of the timeline has of a step. Each track begins with a box that is as long as the step.
 *
 * @param seen The window.
 * @param step The step.
 * @param whole Where the axis ends: the longer one of two steps.
 */
export function stepBoxes(seen: Columns, step: DrawnStep, whole: number): StepBoxes {
  const [tracks, rows, starts] = [seen.numbers("track"), seen.numbers("row"), seen.numbers("start")];
  const [durations, counts, spans] = [seen.numbers("duration"), seen.numbers("count"), seen.numbers("span")];
  const [names, kinds] = [seen.texts("name"), seen.texts("kind")];
  const all: StepBox[] = [];
  let top = 0;
  for (const { id, label } of step.tracks) {
    const mine = Array.from(tracks, (track, index) => (track === id ? index : -1))
      .filter((index) => index >= 0)
      .sort((a, b) => (starts[a] ?? 0) - (starts[b] ?? 0) || (rows[a] ?? 0) - (rows[b] ?? 0));
    if (mine.length === 0) continue;
    const end = step.duration_ns;
    const heading = all.length;
    const look = { text: label, role: "sunken", shade: "" };
    all.push({ start: 0, end, row: top, parent: -1, name: label, duration: end, count: 1, span: -1, look });
    /** The last box of each row so far: what begins next in the row below is within it. */
    const open: number[] = [];
    for (const index of mine) {
      const depth = rows[index] ?? 0;
      const [start, duration] = [(starts[index] ?? 0) - step.start_ns, durations[index] ?? 0];
      const [name, kind] = [names[index] ?? "", kinds[index] ?? ""];
      open[depth] = all.length;
      all.push({
        start: Math.max(start, 0),
        end: Math.min(start + duration, end),
        row: top + 1 + depth,
        parent: open[depth - 1] ?? heading,
        name: boxName(kind, name),
        duration,
        count: counts[index] ?? 1,
        span: spans[index] ?? -1,
        look: { text: boxName(kind, name), role: roleOf(kind, name), shade: name },
      });
    }
    top += open.length + 1;
  }
  return {
    all,
    looks: all.map((box) => box.look),
    boxes: {
      start: Float64Array.from(all, (box) => box.start),
      end: Float64Array.from(all, (box) => box.end),
      row: Int32Array.from(all, (box) => box.row),
      parent: Int32Array.from(all, (box) => box.parent),
      rows: top,
      whole,
    },
  };
}
