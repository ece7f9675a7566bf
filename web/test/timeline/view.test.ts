import { expect, test } from "vitest";
import { Motion } from "../../src/timeline/motion";
import { between, clamped, fitted, panned, parsedView, revealed, zoomed } from "../../src/timeline/view";

const WHOLE = { start: -100, end: 10_000 };

test("a view stays within the trace", () => {
  expect(clamped({ start: -500, end: 500 }, WHOLE)).toEqual({ start: -100, end: 900 });
  expect(clamped({ start: 9_500, end: 11_000 }, WHOLE)).toEqual({ start: 8_500, end: 10_000 });
  expect(clamped({ start: -1e9, end: 1e9 }, WHOLE)).toEqual(WHOLE);
  expect(panned({ start: 0, end: 100 }, -1e6, WHOLE)).toEqual({ start: -100, end: 0 });
});

test("zooming keeps the time under the pointer in its place, as far as the trace goes", () => {
  const view = zoomed({ start: 1000, end: 2000 }, 0.5, 1250, WHOLE);
  expect(view).toEqual({ start: 1125, end: 1625 });
  expect(zoomed(view, 1e9, 1250, WHOLE)).toEqual(WHOLE);
  const closest = zoomed(view, 1e-9, 1250, WHOLE);
  expect(closest.end - closest.start).toBe(50);
  expect(closest.start).toBeLessThan(1250);
  expect(closest.end).toBeGreaterThan(1250);
});

test("a trace shorter than the closest look is shown whole", () => {
  expect(clamped({ start: 0, end: 10 }, { start: 0, end: 3 })).toEqual({ start: 0, end: 50 });
});

test("what is revealed can be seen, and the view moves no more than it must", () => {
  const view = { start: 1000, end: 2000 };
  expect(revealed(view, 1200, 1300, WHOLE, 1000)).toEqual(view);
  const later = revealed(view, 2500, 2600, WHOLE, 1000);
  expect(later.end - later.start).toBe(1000);
  expect(later.start).toBeLessThan(2500);
  expect(later.end).toBeGreaterThan(2600);
  const thin = revealed({ start: 0, end: 10_000 }, 5000, 5001, WHOLE, 1000);
  expect(thin.end - thin.start).toBeLessThan(60);
  expect(revealed(view, 0, 9000, WHOLE, 1000)).toEqual(view);
  const wide = revealed(view, 4000, 9000, WHOLE, 1000);
  expect(wide.start).toBeLessThan(4000);
  expect(wide.end).toBeGreaterThan(9000);
  expect(fitted(4000, 9000, WHOLE)).toEqual(wide);
});

test("gliding begins and ends where it should, and zooms evenly", () => {
  const from = { start: 0, end: 10_000 };
  const to = { start: 4000, end: 4100 };
  expect(between(from, to, 0)).toEqual(from);
  expect(between(from, to, 1)).toEqual(to);
  const half = between(from, to, 0.5);
  expect(half.end - half.start).toBeCloseTo(1000);
  expect(between({ start: 0, end: 100 }, { start: 50, end: 150 }, 0.5)).toEqual({
    start: 50 * 0.5,
    end: 125,
  });
});

test("addresses that are no stretch of time are none", () => {
  expect(parsedView("5", "9")).toEqual({ start: 5, end: 9 });
  for (const [start, end] of [
    ["9", "5"],
    ["x", "5"],
    [undefined, "5"],
    ["1", "Infinity"],
  ] as const)
    expect(parsedView(start, end)).toBeUndefined();
});

test("a key moves for as long as it is held, and a tap moves a little", () => {
  const motion = new Motion(WHOLE, () => false);
  let view = { start: 1000, end: 2000 };
  motion.hold("later", 0);
  motion.release("later");
  view = motion.step(view, 1500, 50);
  expect(motion.moving).toBe(true);
  view = motion.step(view, 1500, 500);
  expect(motion.moving).toBe(false);
  expect(view.start).toBeGreaterThan(1050);
  expect(view.start).toBeLessThan(1200);
  motion.hold("closer", 1000);
  for (let now = 1000; now <= 2000; now += 16) view = motion.step(view, 1500, now);
  expect(motion.moving).toBe(true);
  expect(view.end - view.start).toBeLessThan(150);
});

test("a glide arrives, and none is made where motion is not wished for", () => {
  const motion = new Motion(WHOLE, () => false);
  const from = { start: 0, end: 1000 };
  const to = { start: 200, end: 300 };
  expect(motion.glideTo(from, to, 0)).toEqual(from);
  expect(motion.aim).toEqual(to);
  expect(motion.step(from, 0, 1000)).toEqual(to);
  expect(motion.moving).toBe(false);
  expect(new Motion(WHOLE, () => true).glideTo(from, to, 0)).toEqual(to);
});
