import { expect, test } from "vitest";
import { lateOnes, limits, ordered, pixels, rampColor } from "../src/ranks/ranks";
import { made } from "../src/source/source";

test("rows are ordered by a column, the largest first, and by places from the smallest on", () => {
  const table = made({ rank: [0, 1, 2, 3], late_ns: [5, null, 9, 5], dp: [1, 0, 1, 0] });
  expect([...ordered(table, "late_ns", ["dp"])]).toEqual([2, 0, 3, 1]);
  expect([...ordered(table, "dp", ["dp"])]).toEqual([1, 3, 0, 2]);
  expect([...ordered(table, "nothing", ["dp"])]).toEqual([0, 1, 2, 3]);
});

test("each cell is a pixel where there is room, in the order of rows", () => {
  const { columns, rows, cell } = pixels([1, 2, 3, 4, 5, Number.NaN], 3, Int32Array.of(1, 0), 100, 100);
  expect([columns, rows]).toEqual([3, 2]);
  expect([...cell]).toEqual([3, 4, -1, 0, 1, 2]);
});

test("of cells that share a pixel the highest is shown", () => {
  const { columns, rows, cell } = pixels([1, 9, 3, 4, 5, 6, 7, 8], 4, Int32Array.of(0, 1), 2, 1);
  expect([columns, rows]).toEqual([2, 1]);
  expect([...cell]).toEqual([1, 7]);
});

test("a thousand ranks by a thousand steps fit on a screen, and no late cell is lost", () => {
  const values = new Float32Array(1_000_000).fill(1);
  values[640_100] = 50;
  const order = Int32Array.from({ length: 1000 }, (_, row) => row);
  const { cell } = pixels(values, 1000, order, 700, 400);
  expect(cell.includes(640_100)).toBe(true);
  expect(cell.length).toBe(280_000);
});

test("colors begin and end at nearly the lowest and the highest value", () => {
  expect(limits([Number.NaN, 1, 2, 3])).toEqual([1, 3]);
  expect(limits([4, 4])).toEqual([4, 5]);
  expect(limits([])).toEqual([0, 1]);
  expect(rampColor("light", 0)).toEqual(rampColor("light", -1));
  expect(rampColor("dark", 1)).toEqual(rampColor("dark", 2));
});

test("late are those far from all others, else the last one", () => {
  expect([...lateOnes([0, 10, 20, 30, 5000, 15, 4000])]).toEqual([4, 6]);
  expect([...lateOnes([0, 10, 20])]).toEqual([2]);
});
