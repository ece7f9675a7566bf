import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { look, rowsOf } from "../../src/source/window";

interface Vector {
  name: string;
  rows: { edges: number[]; start: number[]; duration: number[] };
  windows: { start: number; end: number; width: number; seen: Record<string, number[]> }[];
}

const GOLDEN = JSON.parse(readFileSync("../tests/golden/viewer_window.json", "utf-8")) as Vector[];

for (const { name, rows, windows } of GOLDEN) {
  test(`windows of rows: ${name}`, () => {
    const { edges, start, duration } = rows;
    const row = edges
      .slice(1)
      .flatMap((end, index) => Array(end - (edges[index] ?? 0)).fill(index) as number[]);
    const laid = rowsOf(row, Float64Array.from(start), Float64Array.from(duration), edges.length - 1);
    const count = edges.length - 1;
    for (const window of windows) {
      const seen = look(laid, 0, count, window.start, window.end, window.width);
      const last = seen.item.map((item, index) => item + (seen.count[index] ?? 0) - 1);
      const at = (values: Float64Array, item: number) => values[item] ?? Number.NaN;
      const found = {
        ...seen,
        start: seen.item.map((item) => at(laid.start, item)),
        duration: seen.item.map(
          (item, index) =>
            at(laid.start, last[index] ?? -1) + at(laid.duration, last[index] ?? -1) - at(laid.start, item),
        ),
        busy: seen.item.map(
          (item, index) =>
            at(laid.before, last[index] ?? -1) + at(laid.duration, last[index] ?? -1) - at(laid.before, item),
        ),
      };
      expect(found).toEqual(window.seen);
    }
  });
}

test("rows that are not in order of time are put so", () => {
  const laid = rowsOf([0, 0, 0, 0], Float64Array.of(5, 1, 5, 0), Float64Array.of(0, 2, 3, 1), 1);
  expect([...laid.order]).toEqual([3, 1, 0, 2]);
});
