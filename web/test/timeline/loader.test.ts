import { expect, test } from "vitest";
import type { Boxes } from "../../src/timeline/boxes";
import { asked, missing, serves, type Wish } from "../../src/timeline/loader";
import { stepped } from "../../src/timeline/search";

const WHOLE = { start: 0, end: 1_000_000 };
const wish = (start: number, end: number): Wish => ({
  view: { start, end },
  pixels: 1000,
  tracks: [1, 2],
  counters: [],
});
const answered = (of: Wish, whole = false) => {
  const { view, width } = asked(of, WHOLE);
  return { view, pixel: (view.end - view.start) / width, whole } as Boxes;
};

test("what was asked for a view serves it, at any view", () => {
  for (let width = 50; width <= 1_000_000; width *= 1.37)
    for (const start of [0, 1 / 3, 0.77].map((share) => share * (1_000_000 - width))) {
      const view = wish(start, start + width);
      expect(serves(answered(view), view)).toBe(true);
    }
});

test("a short pan is served, a long one and a closer look are not", () => {
  const have = answered(wish(400_000, 500_000));
  expect(serves(have, wish(420_000, 520_000))).toBe(true);
  expect(serves(have, wish(600_000, 700_000))).toBe(false);
  expect(serves(have, wish(440_000, 450_000))).toBe(false);
  expect(serves(undefined, wish(0, 10))).toBe(false);
});

test("where every span came by itself, a closer look asks nothing", () => {
  const have = answered(wish(400_000, 500_000), true);
  expect(serves(have, wish(440_000, 440_100))).toBe(true);
});

test("only the tracks that lack something are asked for", () => {
  const view = wish(400_000, 500_000);
  const have = new Map([[1, answered(view)]]);
  expect(missing(view, WHOLE, (track) => have.get(track))?.tracks).toEqual([2]);
  have.set(2, answered(view));
  expect(missing(view, WHOLE, (track) => have.get(track))).toBeUndefined();
});

test("pixels asked for stay on a grid while the view pans", () => {
  const pixel = 100;
  for (const start of [400_000, 400_010, 412_345]) {
    const { view } = asked(wish(start, start + 100_000), WHOLE);
    expect(view.start % pixel).toBeCloseTo(0);
    expect(view.end % pixel).toBeCloseTo(0);
  }
});

test("search goes on from what is chosen, or from what is in view, and around the end", () => {
  const spans = [5, 9, 2];
  const starts = [10, 20, 30];
  expect(stepped(spans, starts, 1, 9, 0)).toBe(2);
  expect(stepped(spans, starts, 1, 2, 0)).toBe(0);
  expect(stepped(spans, starts, -1, 5, 0)).toBe(2);
  expect(stepped(spans, starts, 1, undefined, 15)).toBe(1);
  expect(stepped(spans, starts, -1, undefined, 15)).toBe(0);
  expect(stepped(spans, starts, 1, undefined, 99)).toBe(0);
});
