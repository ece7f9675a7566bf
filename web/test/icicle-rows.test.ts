import { expect, test } from "vitest";
import { beyond, boxAt, forkRow, laidOut, neighbor, pathTo } from "../src/parts/icicle-rows";

// 0 holds 1 and 3, 1 holds 2; 4 stands beside 0.
const PARENT = [-1, 0, 1, 0, -1];
const boxes = laidOut(PARENT, [10, 6, 5, 3, 2]);

test("boxes stand side by side within the one around them", () => {
  expect([...boxes.start]).toEqual([0, 0, 0, 6, 10]);
  expect([...boxes.end]).toEqual([10, 6, 5, 9, 12]);
  expect([...boxes.row]).toEqual([0, 1, 2, 1, 0]);
  expect([boxes.rows, boxes.whole]).toEqual([3, 12]);
});

test("the box at a place, and none in a gap", () => {
  expect(boxAt(boxes, 0, 11)).toBe(4);
  expect(boxAt(boxes, 1, 6)).toBe(3);
  expect(boxAt(boxes, 1, 9.5)).toBe(-1);
  expect(boxAt(boxes, 7, 1)).toBe(-1);
});

test("what is within a box follows it", () => {
  expect([0, 1, 2, 3, 4].map((index) => beyond(boxes, index))).toEqual([4, 3, 3, 4, 5]);
  expect(pathTo(boxes, 2)).toEqual([0, 1, 2]);
  expect(pathTo(boxes, -1)).toEqual([]);
});

test("arrow keys lead to what is seen there", () => {
  expect(neighbor(boxes, -1, "ArrowDown")).toBe(0);
  expect(neighbor(boxes, 0, "ArrowDown")).toBe(1);
  expect(neighbor(boxes, 2, "ArrowDown")).toBe(2);
  expect(neighbor(boxes, 2, "ArrowUp")).toBe(1);
  expect(neighbor(boxes, 0, "ArrowUp")).toBe(0);
  expect(neighbor(boxes, 1, "ArrowRight")).toBe(3);
  expect(neighbor(boxes, 3, "ArrowLeft")).toBe(1);
  expect(neighbor(boxes, 4, "ArrowRight")).toBe(4);
  expect(neighbor(laidOut([], []), -1, "ArrowDown")).toBe(-1);
});

test("the row where a trunk forks", () => {
  expect(forkRow(boxes)).toBe(0);
  expect(forkRow(laidOut([-1, 0, 1, 1], [100, 100, 60, 40]))).toBe(2);
  expect(forkRow(laidOut([], []))).toBe(0);
});
