/** Where each track lies on the screen. Lengths are CSS pixels. */

export type Sort = "steps" | "thread" | "python" | "modules" | "compiling" | "stream" | "counter";

export interface Track {
  id: number;
  label: string;
  sort: Sort;
  /** How deep its spans nest. */
  rows: number;
  spans: number;
  device: string | null;
  detail: string;
  /** True where its boxes are no spans but runs, made from what stacks or modules neighbors share, or phases of torch.compile. */
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
  /** When a step that is neither fast nor slow begins and ends, where there are several. */
  median_step?: readonly [number, number] | null;
  groups: readonly Group[];
}

/** A track in its place. */
export interface Lane {
  track: Track;
  group: number;
  top: number;
  height: number;
  /** How many rows it has room for: no more than spans were seen to need, as start-up nests deeper than what follows. */
  rows: number;
  /** Of one row; rows of a closed track are thin, so that its outline still shows what runs where. */
  rowHeight: number;
  open: boolean;
  /** False where opening it would change nothing. */
  opens: boolean;
  /** Whether it stays at the top while the others scroll. */
  pinned: boolean;
  /** Whether it lies beside the heading of its closed process, as the only one of it that is shown. */
  folded: boolean;
}

/** The line above the tracks of a process. */
export interface Heading {
  group: number;
  label: string;
  top: number;
  open: boolean;
}

export interface Layout {
  /** Pinned ones first, which lie over the others. */
  lanes: readonly Lane[];
  headings: readonly Heading[];
  height: number;
  /** The height that would be of use: more room would stay empty. */
  most: number;
  /** The height of the pinned ones. */
  held: number;
}

/** What the person at the page has chosen, and how much room there is. */
export interface Wishes {
  /** The keys of what was opened or closed, against `opensAtFirst`. */
  turned: ReadonlySet<string>;
  /** Numbers of tracks, in the order in which they stand at the top. */
  pinned?: readonly number[];
  hidden?: ReadonlySet<number>;
  /** Only tracks with this text in their name, or in that of their process, are shown. */
  filter?: string;
  /** How many rows of each track have had spans in sight so far. */
  seen?: ReadonlyMap<number, number>;
  /** The height that is there: rows grow to fill it. */
  room?: number;
  /** How much is scrolled out of sight above. */
  scroll?: number;
}

export const ROW_PX = 18;
export const LANE_PADDING_PX = 3;
export const HEADING_PX = 26;
export const COUNTER_PX = 44;
/** Rows are no higher than this, however much room there is. */
const MOST_ROW_PX = 30;
const MOST_COUNTER_PX = 132;
const CLOSED_PX = 22;
/** Rows of a track of which nothing was seen yet. */
const UNSEEN_ROWS = 3;
const DEEP_ROWS = 10;

/** Whether a track is open before anybody has said so: deep ones would push all others out of sight. */
export function opensAtFirst(track: Track): boolean {
  return track.sort === "python" || track.sort === "modules" ? track.rows <= 2 : track.rows <= DEEP_ROWS * 3;
}

export function layout(groups: readonly Group[], wishes: Wishes): Layout {
  const { turned, pinned = [], hidden = new Set(), filter = "", seen, room = 0, scroll = 0 } = wishes;
  const shown = groups.flatMap((group, index) =>
    group.tracks
      .filter((track) => !hidden.has(track.id) && matches(group, track, filter))
      .map((track) => sized(track, index, turned, seen?.get(track.id))),
  );
  const atTop = pinned.flatMap((id) => shown.filter(({ track }) => track.id === id));
  const unpinned = shown.filter(({ track }) => !pinned.includes(track.id));
  const closed = (group: number) => groups.length > 1 && turned.has(groupKey(group));
  const below = unpinned.filter(({ group }) => !closed(group));
  // A process of which the filter leaves nothing is not worth a heading.
  const headed = groups.map((_, index) => !filter || shown.some(({ group }) => group === index));
  const withHeadings = groups.length > 1 ? headed.filter(Boolean).length * HEADING_PX : 0;
  const most = [...atTop, ...below].reduce((sum, lane) => sum + mostOf(lane), withHeadings);
  grow([...atTop, ...below], room - withHeadings);
  let held = 0;
  for (const lane of atTop) {
    lane.top = scroll + held;
    lane.pinned = true;
    held += lane.height;
  }
  const headings: Heading[] = [];
  const folded: Unplaced[] = [];
  let top = held;
  groups.forEach((group, index) => {
    if (groups.length > 1 && headed[index]) {
      headings.push({ group: index, label: group.label, top, open: !closed(index) });
      const main = closed(index) && mainOf(unpinned.filter((lane) => lane.group === index));
      if (main) folded.push(foldedAt(main, top));
      top += HEADING_PX;
    }
    for (const lane of below.filter((one) => one.group === index)) {
      lane.top = top;
      top += lane.height;
    }
  });
  return { lanes: [...atTop, ...below, ...folded], headings, height: top, most, held };
}

/** The track that stands for a closed process: its busiest stream; without streams, its busiest thread. */
function mainOf(lanes: readonly Unplaced[]): Unplaced | undefined {
  for (const sort of ["stream", "thread", "steps"] satisfies Sort[]) {
    const [first, ...others] = lanes.filter(({ track }) => track.sort === sort);
    if (first)
      return others.reduce((most, lane) => (lane.track.spans > most.track.spans ? lane : most), first);
  }
  return undefined;
}

function foldedAt(lane: Unplaced, top: number): Unplaced {
  const rowHeight = (HEADING_PX - 2 * LANE_PADDING_PX) / lane.rows;
  return { ...lane, top, height: HEADING_PX, rowHeight, open: false, opens: false, folded: true };
}

/** Whether a track is among those that a filter leaves; letters of both cases are the same. */
export function matches(group: Group, { label, detail }: Track, filter: string): boolean {
  const wanted = filter.trim().toLowerCase();
  return [label, detail, group.label].some((text) => text.toLowerCase().includes(wanted));
}

type Unplaced = { -readonly [Key in keyof Lane]: Lane[Key] };

function sized(track: Track, group: number, turned: ReadonlySet<string>, seen = UNSEEN_ROWS): Unplaced {
  const rows = Math.max(Math.min(track.rows, seen), 1);
  const base = { track, group, rows, top: 0, pinned: false, folded: false };
  if (track.sort === "counter")
    return { ...base, rows: 1, height: COUNTER_PX, rowHeight: COUNTER_PX, open: true, opens: false };
  const opens = track.rows > 1;
  const open = !opens || opensAtFirst(track) !== turned.has(trackKey(track.id));
  const rowHeight = open ? ROW_PX : Math.min(CLOSED_PX / rows, 6);
  const inner = open ? rows * ROW_PX : Math.max(rows * rowHeight, ROW_PX);
  return { ...base, height: inner + 2 * LANE_PADDING_PX, rowHeight, open, opens };
}

/** How high the rows of a lane can become. */
function mostOf(lane: Unplaced): number {
  const most = lane.track.sort === "counter" ? MOST_COUNTER_PX : MOST_ROW_PX;
  return lane.height + Math.max(most - lane.rowHeight, 0) * lane.rows;
}

/** Use the room that is left: first for the rows of closed tracks, then for all, at last for counters. */
function grow(lanes: readonly Unplaced[], room: number): void {
  const stretch = (some: readonly Unplaced[], most: number) => {
    const rows = some.reduce((sum, lane) => sum + lane.rows, 0);
    const left = room - lanes.reduce((sum, lane) => sum + lane.height, 0);
    if (rows === 0 || left <= 0) return;
    for (const lane of some) {
      const rowHeight = Math.max(lane.rowHeight, Math.min(lane.rowHeight + left / rows, most));
      lane.height += (rowHeight - lane.rowHeight) * lane.rows;
      lane.rowHeight = rowHeight;
    }
  };
  const boxes = lanes.filter(({ track }) => track.sort !== "counter");
  stretch(
    boxes.filter((lane) => !lane.open),
    ROW_PX,
  );
  stretch(boxes, MOST_ROW_PX);
  stretch(
    lanes.filter(({ track }) => track.sort === "counter"),
    MOST_COUNTER_PX,
  );
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
  return row >= 0 && row < lane.rows ? row : undefined;
}

export function rowTop(lane: Lane, row: number): number {
  return lane.top + LANE_PADDING_PX + Math.min(row, lane.rows) * lane.rowHeight;
}
