import { expect, test } from "vitest";
import type { Columns } from "../../src/source/source";
import { made } from "../../src/source/source";
import { type Boxes, boxAt, split, within } from "../../src/timeline/boxes";
import { Dust } from "../../src/timeline/dust";
import { Palette } from "../../src/timeline/palette";

type Row = [track: number, row: number, start: number, duration: number, count: number];

const VIEW = { start: 0, end: 1000 };
const palette = new Palette((name) => (name === "kernel" ? "#1f7fbf" : "#3d8fc6"));

function answer(rows: readonly Row[]): Columns {
  return made({
    track: Int32Array.from(rows, (row) => row[0]),
    row: Int32Array.from(rows, (row) => row[1]),
    start: Float64Array.from(rows, (row) => row[2]),
    duration: Float64Array.from(rows, (row) => row[3]),
    busy: Float64Array.from(rows, (row) => row[3]),
    count: Int32Array.from(rows, (row) => row[4]),
    span: Int32Array.from(rows, (_, index) => index),
    name: rows.map((row) => `name ${row[2]}`),
    kind: rows.map(() => "operator"),
  });
}

function only(rows: readonly Row[]): Boxes {
  const boxes = split(answer(rows), [7], VIEW, 1, palette.label).get(7);
  if (!boxes) throw new Error("no boxes");
  return boxes;
}

test("an answer is split by track and row", () => {
  const parts = split(
    answer([
      [2, 0, 0, 20, 1],
      [2, 0, 30, 5, 4],
      [2, 1, 50, 5, 1],
      [1, 0, 10, 100, 1],
    ]),
    [1, 2, 3],
    VIEW,
    1,
    palette.label,
  );
  expect([...(parts.get(2)?.rows ?? [])]).toEqual([0, 2, 3]);
  expect([...(parts.get(2)?.start ?? [])]).toEqual([0, 30, 50]);
  expect([...(parts.get(1)?.span ?? [])]).toEqual([3]);
  expect(parts.get(1)?.whole).toBe(true);
  expect(parts.get(2)?.whole).toBe(false);
  expect([...(parts.get(3)?.rows ?? [])]).toEqual([0]);
  expect(palette.name(parts.get(1)?.label[0] ?? -1)).toBe("name 10");
});

test.each([
  [
    [
      [1, 0, 5, 1, 1],
      [2, 0, 0, 1, 1],
      [1, 0, 9, 1, 1],
    ],
    "in order",
  ],
  [
    [
      [1, 0, 5, 1, 1],
      [1, 0, 0, 1, 1],
    ],
    "in order",
  ],
  [
    [
      [1, 1, 5, 1, 1],
      [1, 0, 9, 1, 1],
    ],
    "in order",
  ],
] as [Row[], string][])("an answer in another order is told, not drawn wrongly", (rows, told) => {
  expect(() => split(answer(rows), [1, 2], VIEW, 1, palette.label)).toThrow(told);
});

test("a row without boxes between others is empty", () => {
  const boxes = only([
    [7, 0, 10, 5, 1],
    [7, 3, 12, 2, 1],
  ]);
  expect([...boxes.rows]).toEqual([0, 1, 1, 1, 2]);
  expect(within(boxes, 1, VIEW)).toEqual([1, 1]);
  expect(within(boxes, 9, VIEW)).toEqual([0, 0]);
});

test("what reaches into the view belongs to it", () => {
  const boxes = only([
    [7, 0, 0, 90, 1],
    [7, 0, 100, 50, 1],
    [7, 0, 200, 10, 1],
  ]);
  expect(within(boxes, 0, { start: 95, end: 98 })).toEqual([1, 1]);
  expect(within(boxes, 0, { start: 120, end: 130 })).toEqual([1, 2]);
  expect(within(boxes, 0, { start: 80, end: 200 })).toEqual([0, 2]);
});

test("the pointer finds the box it is on, or one very near", () => {
  const boxes = only([
    [7, 0, 0, 90, 1],
    [7, 0, 100, 0, 1],
    [7, 0, 200, 10, 1],
  ]);
  expect(boxAt(boxes, 0, 50, 3)).toBe(0);
  expect(boxAt(boxes, 0, 92, 3)).toBe(0);
  expect(boxAt(boxes, 0, 98, 3)).toBe(1);
  expect(boxAt(boxes, 0, 150, 3)).toBe(-1);
  expect(boxAt(boxes, 0, 205, 0)).toBe(2);
  expect(boxAt(boxes, 4, 205, 0)).toBe(-1);
});

test("thin boxes are mixed into the pixels they lie in", () => {
  const boxes = only([
    [7, 0, 0, 0.5, 1],
    [7, 0, 3, 0.2, 1],
    [7, 0, 3.5, 0.25, 1],
  ]);
  const dust = new Dust();
  dust.reset(8);
  expect(dust.empty).toBe(true);
  for (let index = 0; index < 3; index++) dust.add(boxes, index, boxes.start[index] ?? 0, 1, palette, 1);
  const pixels = new Uint8ClampedArray(8 * 4);
  dust.write(pixels, 0);
  const opacity = Array.from({ length: 8 }, (_, pixel) => pixels[pixel * 4 + 3]);
  expect(opacity.map((value) => (value ?? 0) > 0)).toEqual([
    true,
    false,
    false,
    true,
    false,
    false,
    false,
    false,
  ]);
  dust.reset(8);
  expect(dust.empty).toBe(true);
  // Boxes outside are left out.
  dust.add(boxes, 0, -4, 1, palette, 1);
  dust.add(boxes, 0, 99, 1, palette, 1);
  expect(dust.empty).toBe(true);
});
