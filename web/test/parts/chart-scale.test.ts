import { describe, expect, it } from "vitest";
import { byteMarks, highestNear, reading, rowAt, stacked } from "../../src/parts/chart-scale";

describe("marks", () => {
  it("are round in the unit that people read", () => {
    expect(byteMarks(3.4 * 2 ** 30, 4)).toEqual([0, 2 ** 30, 2 * 2 ** 30, 3 * 2 ** 30]);
    expect(byteMarks(700 * 2 ** 20, 2)).toEqual([0, 500 * 2 ** 20]);
  });

  it("are never finer than a byte and never too many", () => {
    expect(byteMarks(3, 10)).toEqual([0, 1, 2, 3]);
    for (const high of [1, 1023, 1024, 1e6, 2 ** 40, 7.7e15])
      expect(byteMarks(high, 6).length).toBeLessThanOrEqual(7);
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
