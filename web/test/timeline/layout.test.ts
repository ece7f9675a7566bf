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
  const made = layout(
    [group(track(1, "steps", 1), track(2, "thread", 4), track(3, "counter", 1))],
    new Set(),
  );
  expect(made.headings).toEqual([]);
  let top = 0;
  for (const lane of made.lanes) {
    expect(lane.top).toBe(top);
    top += lane.height;
  }
  expect(made.height).toBe(top);
  expect(lanesWithin(made, 0, 1).map((lane) => lane.track.id)).toEqual([1]);
});

test("every pixel of a lane belongs to one row of it", () => {
  const made = layout([group(track(1, "thread", 4), track(2, "python", 40))], new Set());
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
  const closed = layout(groups, new Set());
  expect(closed.lanes.map((lane) => lane.open)).toEqual([true, false]);
  const turned = layout(groups, new Set(["1", "2"]));
  expect(turned.lanes.map((lane) => lane.open)).toEqual([false, true]);
  expect(turned.height).toBeGreaterThan(closed.height);
});

test("processes have headings, and a closed one hides its tracks", () => {
  const groups = [group(track(1, "thread", 1)), group(track(2, "thread", 1))];
  const made = layout(groups, new Set(["g0"]));
  expect(made.headings.map((heading) => heading.open)).toEqual([false, true]);
  expect(made.lanes.map((lane) => lane.track.id)).toEqual([2]);
});
