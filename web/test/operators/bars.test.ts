import { expect, test } from "vitest";
import { barOf, bars, type Durations, described, marks, nameOf, place } from "../../src/operators/bars";

function durations(edges: number[], counts: number[]): Durations {
  const calls = counts.reduce((sum, count) => sum + count, 0);
  return {
    edges_ns: edges,
    counts,
    calls,
    total_ns: 0,
    mean_ns: null,
    min_ns: edges[0] ?? null,
    median_ns: null,
    p95_ns: null,
    max_ns: edges.at(-1) ?? null,
  };
}

test("bars stand side by side on a logarithmic axis, the highest fills it", () => {
  const found = bars(durations([10, 100, 1000], [4, 2]));
  expect(found.map((bar) => [bar.left, bar.right, bar.height])).toEqual([
    [0, expect.closeTo(0.5), 1],
    [expect.closeTo(0.5), 1, 0.5],
  ]);
});

test("calls that take no time have a place", () => {
  const some = durations([0, 1, 100], [1, 1]);
  expect(place(some, 0)).toBe(0);
  expect(bars(some)[0]?.right).toBeGreaterThan(0);
});

test("one length stands in the middle, and no calls make no bars", () => {
  expect(place(durations([7, 7], [1]), 7)).toBe(0.5);
  expect(bars(durations([], []))).toEqual([]);
  expect(marks(durations([], []), 0.1)).toEqual([]);
});

test("marks are round, rising and have room", () => {
  for (const [low, high] of [
    [1, 10],
    [900, 1100],
    [1e3, 1e9],
    [12, 40],
    [65_000, 4_800_000],
  ] as const) {
    const found = marks(durations([low, high], [1]), 0.15);
    for (let index = 1; index < found.length; index++)
      expect((found[index]?.at ?? 0) - (found[index - 1]?.at ?? 0)).toBeGreaterThanOrEqual(0.15);
    for (const mark of found) expect(mark.text).toMatch(/^[\d.]+ (ns|µs|ms|s)$/);
  }
});

test("a bar is found by its name in the address", () => {
  const found = bars(durations([10, 100, 1000], [4, 2]));
  const second = found[1];
  expect(second && barOf(found, nameOf(second))).toBe(second);
  expect(barOf(found, "1-2")).toBeUndefined();
  expect(barOf(found, undefined)).toBeUndefined();
});

test("a bar is described in words", () => {
  const [bar] = bars(durations([1000, 2000], [1]));
  expect(bar && described(bar)).toBe("1 call from 1 µs to 2 µs");
});
