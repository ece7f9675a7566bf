import { expect, test } from "vitest";
import { stepBoxes } from "../src/compare/step-boxes";
import { made } from "../src/source/source";

const SEEN = made({
  track: [8, 8, 8, 16],
  row: [0, 0, 1, 0],
  start: [90, 150, 160, 190],
  duration: [20, 40, 10, 30],
  count: [1, 3, 1, 1],
  span: [4, 5, 9, 7],
  name: ["aten::a", "aten::b", "aten::c", "aten::d"],
  kind: ["operator", "operator", "operator", "backward"],
});
const STEP = {
  step: 3,
  start_ns: 100,
  duration_ns: 100,
  tracks: [
    { id: 24, label: "idle" },
    { id: 8, label: "main" },
    { id: 16, label: "autograd" },
  ],
};

test("tracks follow each other, each below its heading, and those without a box are left out", () => {
  const { all, boxes } = stepBoxes(SEEN, STEP, 250);
  expect(all.map((box) => box.name)).toEqual([
    "main",
    "aten::a",
    "aten::b",
    "aten::c",
    "autograd",
    "aten::d",
  ]);
  expect([...boxes.row]).toEqual([0, 1, 1, 2, 3, 4]);
  expect([...boxes.parent]).toEqual([-1, 0, 0, 2, -1, 4]);
  expect(boxes.rows).toBe(5);
});

test("times count from the start of the step, and what reaches out of it is cut", () => {
  const { all, boxes } = stepBoxes(SEEN, STEP, 250);
  expect([...boxes.start]).toEqual([0, 0, 50, 60, 0, 90]);
  expect([...boxes.end]).toEqual([100, 10, 90, 70, 100, 100]);
  // The axis is that of the longer step, and the time of a span is its own.
  expect(boxes.whole).toBe(250);
  expect(all.map((box) => box.duration)).toEqual([100, 20, 40, 10, 100, 30]);
  expect(all.map((box) => [box.span, box.count])[2]).toEqual([5, 3]);
});
