import { describe, expect, it } from "vitest";
import {
  extent,
  highestNear,
  marks,
  reading,
  room,
  rowAt,
  stacked,
  timeAt,
  xOf,
  yOf,
} from "../../src/parts/chart-scale";

describe("marks", () => {
  it("are round in the unit that people read", () => {
    expect(marks(3.4 * 2 ** 30, 4)).toEqual([0, 2 ** 30, 2 * 2 ** 30, 3 * 2 ** 30]);
    expect(marks(700 * 2 ** 20, 2)).toEqual([0, 500 * 2 ** 20]);
  });

  it("are never finer than a byte and never too many", () => {
    expect(marks(3, 10)).toEqual([0, 1, 2, 3]);
    for (const high of [1, 1023, 1024, 1e6, 2 ** 40, 7.7e15])
      expect(marks(high, 6).length).toBeLessThanOrEqual(7);
  });
});

describe("places", () => {
  const inside = room(500, 200);
  const shown = extent([100, 200, 300], [[1, null, 50]]);

  it("reach from one edge to the other and back", () => {
    expect(xOf(100, inside, shown)).toBe(inside.left);
    expect(xOf(300, inside, shown)).toBe(inside.right);
    expect(timeAt(xOf(217, inside, shown), inside, shown)).toBeCloseTo(217);
    expect(timeAt(-50, inside, shown)).toBe(100);
    expect(timeAt(9999, inside, shown)).toBe(300);
    expect(yOf(0, inside, shown)).toBe(inside.bottom);
    expect(yOf(50, inside, shown)).toBeGreaterThan(inside.top);
  });

  it("exist for no values and one moment", () => {
    expect(extent([], [])).toEqual({ start: 0, end: 1, high: 1 });
    expect(extent([5], [[0]])).toEqual({ start: 5, end: 6, high: 1 });
  });
});

describe("rows", () => {
  const time = [0, 10, 10, 20, 100];

  it("are the last that began", () => {
    expect([-5, 0, 9, 10, 19, 20, 1000].map((at) => rowAt(time, at))).toEqual([0, 0, 0, 2, 2, 3, 4]);
    expect(rowAt([], 5)).toBe(0);
  });

  it("near the pointer are those of the highest value", () => {
    const value = [1, 9, 2, 7, 3];
    expect(highestNear(time, value, 12, 4)).toBe(1);
    expect(highestNear(time, value, 18, 4)).toBe(3);
    expect(highestNear(time, value, 60, 4)).toBe(3);
    expect(highestNear(time, value, -20, 4)).toBe(0);
  });
});

it("layers lie on top of each other", () => {
  const layers = stacked(
    [
      [1, 2],
      [10, null],
      [100, 200],
    ],
    2,
  );
  expect(layers.map((layer) => Array.from(layer))).toEqual([
    [1, 2],
    [11, 2],
    [111, 202],
  ]);
});

it("values read with their unit", () => {
  expect([
    reading(2 ** 20, "bytes"),
    reading(0, "bytes/s"),
    reading(12.34, "%"),
    reading(236.46, "W"),
    reading(null, "W"),
  ]).toEqual(["1 MiB", "0 B/s", "12.3 %", "236 W", "–"]);
});
