import { expect, test } from "vitest";
import {
  type Group,
  laneAt,
  lanesWithin,
  layout,
  rowAt,
  rowTop,
  type Sort,
  type Track,
} from "../../src/timeline/layout";

const track = (id: number, sort: Sort, rows: number): Track => ({
  id,
  label: `track ${id}`,
  sort,
  rows,
  spans: 1,
  device: null,
  detail: "",
});
const group = (...tracks: Track[]): Group => ({ label: "a process", process: 1, rank: null, tracks });

test("tracks follow each other without holes", () => {
  const made = layout([group(track(1, "steps", 1), track(2, "thread", 4), track(3, "counter", 1))], {
    turned: new Set(),
  });
  expect(made.headings).toEqual([]);
  let top = 0;
  for (const lane of made.lanes) {
    expect(lane.top).toBe(top);
    top += lane.height;
  }
  expect(made.height).toBe(top);
  expect(lanesWithin(made, 0, 1).map((lane) => lane.track.id)).toEqual([1]);
});

const all = new Map([1, 2, 3].map((id) => [id, 1000]));

test("every pixel of a lane belongs to one row of it", () => {
  const made = layout([group(track(1, "thread", 4), track(2, "python", 40))], {
    turned: new Set(),
    seen: all,
  });
  for (const lane of made.lanes)
    for (let row = 0; row < lane.track.rows; row++) {
      const y = rowTop(lane, row) + lane.rowHeight / 2;
      expect(laneAt(made, y)).toBe(lane);
      expect(rowAt(lane, y)).toBe(row);
    }
  expect(laneAt(made, made.height)).toBeUndefined();
});

test("deep Python is closed at first, and what is turned is kept", () => {
  const groups = [group(track(1, "thread", 4), track(2, "python", 40))];
  const closed = layout(groups, { turned: new Set() });
  expect(closed.lanes.map((lane) => lane.open)).toEqual([true, false]);
  const turned = layout(groups, { turned: new Set(["1", "2"]), seen: all });
  expect(turned.lanes.map((lane) => lane.open)).toEqual([false, true]);
  expect(turned.height).toBeGreaterThan(closed.height);
});

test("processes have headings, and a closed one hides its tracks", () => {
  const groups = [group(track(1, "thread", 1)), group(track(2, "thread", 1))];
  const made = layout(groups, { turned: new Set(["g0"]) });
  expect(made.headings.map((heading) => heading.open)).toEqual([false, true]);
  expect(made.lanes.filter((lane) => !lane.folded).map((lane) => lane.track.id)).toEqual([2]);
});

test("a closed process is one row: its busiest stream, or thread, beside its heading", () => {
  const busy = { ...track(3, "stream", 2), spans: 9 };
  const groups = [
    group(track(1, "thread", 4), track(2, "stream", 1), busy),
    group(track(4, "steps", 1), track(5, "thread", 1)),
    group(track(6, "counter", 1)),
  ];
  const made = layout(groups, { turned: new Set(["g0", "g1", "g2"]), seen: all });
  expect(made.lanes.map((lane) => [lane.track.id, lane.top, lane.folded])).toEqual([
    [3, made.headings[0]?.top, true],
    [5, made.headings[1]?.top, true],
  ]);
  for (const lane of made.lanes)
    for (let row = 0; row < lane.track.rows; row++)
      expect(rowAt(lane, rowTop(lane, row) + lane.rowHeight / 2)).toBe(row);
  expect(layout(groups, { turned: new Set(["g0"]), pinned: [3] }).lanes.map((lane) => lane.track.id)).toEqual(
    [3, 4, 5, 6, 2],
  );
});

test("a filter leaves the tracks that it matches, and processes that have some", () => {
  const named = { ...group(track(3, "thread", 1)), label: "Rank 1" };
  const groups = [group(track(1, "thread", 1), { ...track(2, "python", 1), detail: "Loader" }), named];
  const shown = (filter: string) => {
    const made = layout(groups, { turned: new Set(), filter });
    return [made.headings.map((heading) => heading.group), made.lanes.map((lane) => lane.track.id)];
  };
  expect(shown(" LOADER ")).toEqual([[0], [2]]);
  expect(shown("rank 1")).toEqual([[1], [3]]);
  expect(shown("track")).toEqual([
    [0, 1],
    [1, 2, 3],
  ]);
  expect(shown("none")).toEqual([[], []]);
});

test("rows grow into the room that is left: closed tracks first, and no more than can be read", () => {
  const groups = [group(track(1, "thread", 4), track(2, "python", 40))];
  const small = layout(groups, { turned: new Set(), seen: all });
  const [thread, python] = layout(groups, {
    turned: new Set(),
    seen: all,
    room: small.height + 400,
  }).lanes;
  expect(thread?.rowHeight).toBe(18);
  expect(python?.rowHeight).toBeCloseTo((small.lanes[1]?.rowHeight ?? 0) + 10);
  const large = layout(groups, { turned: new Set(), seen: all, room: 100_000 });
  expect(large.lanes.map((lane) => lane.rowHeight)).toEqual([30, 30]);
  const filled = layout(groups, { turned: new Set(), seen: all, room: 1000 });
  expect(filled.height).toBeCloseTo(1000);
  expect(large.height).toBe(large.most);
});

test("a track has room for the rows that were seen, not for the deepest of the trace", () => {
  const groups = [group(track(1, "thread", 27), track(2, "python", 107))];
  const made = layout(groups, { turned: new Set(), seen: new Map([[1, 7]]), room: 2000 });
  expect(made.lanes.map((lane) => lane.rows)).toEqual([7, 3]);
  expect(made.lanes[0]?.height).toBe(7 * 30 + 6);
  expect(rowAt(made.lanes[0] as never, (made.lanes[0]?.height ?? 0) - 5)).toBe(6);
  expect(made.height).toBe(made.most);
});

test("counters use what rows leave, and no more than they can", () => {
  const groups = [group(track(1, "thread", 1), track(2, "counter", 1))];
  const made = layout(groups, { turned: new Set(), seen: all, room: 140 });
  expect(made.lanes.map((lane) => lane.rowHeight)).toEqual([30, 104]);
  expect(layout(groups, { turned: new Set(), seen: all, room: 900 }).height).toBe(made.most);
});

test("pinned tracks stay at the top, and hidden ones take no room", () => {
  const groups = [group(track(1, "thread", 1), track(2, "thread", 1), track(3, "thread", 1))];
  const made = layout(groups, { turned: new Set(), pinned: [3], hidden: new Set([1]), scroll: 7 });
  expect(made.lanes.map(({ track, top }) => [track.id, top])).toEqual([
    [3, 7],
    [2, made.held],
  ]);
  expect(made.height).toBe(2 * made.held);
  expect(laneAt(made, 8)?.track.id).toBe(3);
});
