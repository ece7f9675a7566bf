/** Where each track lies on the screen. Lengths are CSS pixels. */

export type Sort = "steps" | "thread" | "python" | "modules" | "stream" | "counter";

export interface Track {
  id: number;
  label: string;
  sort: Sort;
  /** How deep its spans nest. */
  rows: number;
  spans: number;
  device: string | null;
  detail: string;
  /** True where its boxes are no spans but runs, made from what stacks or modules neighbors share. */
  runs?: boolean;
  /** The track of the thread whose calls or modules these are. */
  of?: number | null;
  /** Of a counter: its unit and how far it goes over the whole trace. */
  unit?: string;
  low?: number | null;
  high?: number | null;
}

export interface Group {
  label: string;
  process: number | null;
  rank: number | null;
  tracks: readonly Track[];
}

export interface Tracks {
  /** Where the first span begins, where that is before the recording did. */
  start_ns?: number;
  duration_ns: number;
  start_realtime_ns: number | null;
  groups: readonly Group[];
}

/** A track in its place. */
export interface Lane {
  track: Track;
  group: number;
  top: number;
  height: number;
  /** Of one row; rows of a closed track are thin, so that its outline still shows what runs where. */
  rowHeight: number;
  open: boolean;
  /** False where opening it would change nothing. */
  opens: boolean;
}

/** The line above the tracks of a process. */
export interface Heading {
  group: number;
  label: string;
  top: number;
  open: boolean;
}

export interface Layout {
  lanes: readonly Lane[];
  headings: readonly Heading[];
  height: number;
}

export const ROW_PX = 18;
export const LANE_PADDING_PX = 3;
export const HEADING_PX = 26;
export const COUNTER_PX = 44;
const CLOSED_PX = 22;
const DEEP_ROWS = 10;

/** Whether a track is open before anybody has said so: deep ones would push all others out of sight. */
export function opensAtFirst(track: Track): boolean {
  return track.sort === "python" || track.sort === "modules" ? track.rows <= 2 : track.rows <= DEEP_ROWS * 3;
}

/** `turned` holds the keys of what the person at the page opened or closed, against `opensAtFirst`. */
export function layout(groups: readonly Group[], turned: ReadonlySet<string>): Layout {
  const lanes: Lane[] = [];
  const headings: Heading[] = [];
  let top = 0;
  groups.forEach((group, index) => {
    const open = !turned.has(groupKey(index));
    if (groups.length > 1) {
      headings.push({ group: index, label: group.label, top, open });
      top += HEADING_PX;
    }
    if (!open) return;
    for (const track of group.tracks) {
      const lane = placed(track, index, top, turned);
      lanes.push(lane);
      top += lane.height;
    }
  });
  return { lanes, headings, height: top };
}

function placed(track: Track, group: number, top: number, turned: ReadonlySet<string>): Lane {
  if (track.sort === "counter")
    return { track, group, top, height: COUNTER_PX, rowHeight: COUNTER_PX, open: true, opens: false };
  const rows = Math.max(track.rows, 1);
  const opens = rows > 1;
  const open = !opens || opensAtFirst(track) !== turned.has(trackKey(track.id));
  const rowHeight = open ? ROW_PX : Math.min(CLOSED_PX / rows, 6);
  const inner = open ? rows * ROW_PX : Math.max(rows * rowHeight, ROW_PX);
  return { track, group, top, height: inner + 2 * LANE_PADDING_PX, rowHeight, open, opens };
}

export function trackKey(id: number): string {
  return String(id);
}

export function groupKey(index: number): string {
  return `g${index}`;
}

/** The lanes that lie between two heights. */
export function lanesWithin(layout: Layout, top: number, bottom: number): readonly Lane[] {
  return layout.lanes.filter((lane) => lane.top < bottom && lane.top + lane.height > top);
}

export function laneAt(layout: Layout, y: number): Lane | undefined {
  return layout.lanes.find((lane) => y >= lane.top && y < lane.top + lane.height);
}

export function laneOf(layout: Layout, track: number): Lane | undefined {
  return layout.lanes.find((lane) => lane.track.id === track);
}

/** The row of a lane at a height; outside its rows there is none. */
export function rowAt(lane: Lane, y: number): number | undefined {
  const row = Math.floor((y - lane.top - LANE_PADDING_PX) / lane.rowHeight);
  return row >= 0 && row < Math.max(lane.track.rows, 1) ? row : undefined;
}

export function rowTop(lane: Lane, row: number): number {
  return lane.top + LANE_PADDING_PX + row * lane.rowHeight;
}
