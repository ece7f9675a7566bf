import { describe, expect, test } from "vitest";
import {
  axisTop,
  barOf,
  barsOf,
  barTitle,
  compared,
  counted,
  kindsOf,
  marks,
  placesOf,
  quantile,
  roundUp,
  rowsTop,
  type Step,
  summed,
} from "../../src/overview/steps";

function step(number: number | null, parts: readonly number[], more: Partial<Step> = {}): Step {
  const duration = parts.reduce((a, b) => a + b, 0);
  return {
    number,
    process: 42,
    name: "",
    rank: null,
    device: "cuda:0",
    startUp: false,
    kind: null,
    start: (number ?? 0) * 1000,
    duration,
    parts,
    unrecorded: 0,
    ...more,
  };
}

const many = (count: number) =>
  Array.from({ length: count }, (_, number) => step(number, [50, 10, 0, 5, 20, number % 7]));

describe("sums", () => {
  test("parts add up to the time of the steps, and of every bar", () => {
    const steps = many(1234);
    const sum = summed(steps);
    expect(sum.parts.reduce((a, b) => a + b, 0)).toBe(sum.duration);
    const bars = barsOf(steps, 100);
    for (const bar of bars) expect(bar.parts.reduce((a, b) => a + b, 0)).toBeCloseTo(bar.duration, 9);
    expect(bars.reduce((all, bar) => all + bar.duration * bar.steps.length, 0)).toBeCloseTo(sum.duration, 6);
  });
});

describe("kinds of steps", () => {
  test("each has its count, its mean and its share, the one with most time first", () => {
    const steps = [
      step(0, [10], { kind: 1 }),
      step(1, [100], { kind: 0 }),
      step(2, [330], { kind: 0 }),
      step(3, [170], { kind: 0 }),
      step(4, [30], { kind: 1 }),
      step(5, [360]),
    ];
    expect(kindsOf(steps)).toEqual([
      { kind: 0, count: 3, mean: 200, share: 60, middle: 3 },
      { kind: 1, count: 2, mean: 20, share: 4, middle: 0 },
    ]);
  });
  test("there are none where all steps are of one", () => {
    expect(kindsOf(many(5))).toEqual([]);
    expect(kindsOf([step(0, [1], { kind: 0 }), step(1, [1], { kind: 0 })])).toEqual([]);
  });
});

describe("bars", () => {
  test("there is one for each step where there is room", () => {
    expect(barsOf(many(40), 40).map((bar) => bar.steps.length)).toEqual(Array(40).fill(1));
  });
  test("many steps share bars of 1, 2, 5, 10 ... steps, and none is left out", () => {
    const bars = barsOf(many(3000), 200);
    expect(bars).toHaveLength(150);
    expect(bars[0]?.steps).toHaveLength(20);
    expect(bars.flatMap((bar) => bar.steps.map((one) => one.number))).toEqual(
      many(3000).map((one) => one.number),
    );
  });
  test("one reaches from the start of its first step to the end of its last", () => {
    const bar = barOf([step(4, [10]), step(5, [30])]);
    expect([bar.start, bar.end, bar.least, bar.most, bar.duration]).toEqual([4000, 5030, 10, 30, 20]);
    expect(barTitle(bar)).toBe("Steps 4 to 5");
    expect(barTitle(barOf([step(7, [1])]))).toBe("Step 7");
    expect(barTitle(barOf([step(null, [1])]))).toBe("Whole trace");
    const [train, more, evaluate] = [0, 0, 1].map((kind, number) => step(number, [1], { kind }));
    expect(barTitle(barOf([train, more] as Step[]))).toBe("Steps 0 to 1 · kind 0");
    expect(barTitle(barOf([more, evaluate] as Step[]))).toBe("Steps 1 to 2");
  });
  test("numbers are rounded up to 1, 2 or 5", () => {
    expect([0, 0.3, 1, 1.2, 2, 3, 5, 7, 15.2, 100, 101].map(roundUp)).toEqual([
      1, 1, 1, 2, 2, 5, 5, 10, 20, 100, 200,
    ]);
  });
});

describe("axis", () => {
  test("it ends a little above the longest", () => {
    expect(axisTop([barOf([step(0, [100])]), barOf([step(1, [80])])])).toBe(105);
  });
  test("a few far above all others are cut", () => {
    const bars = barsOf([step(0, [5000]), ...many(50)], 100);
    expect(axisTop(bars)).toBeLessThan(150);
    expect(axisTop(bars)).toBeGreaterThan(91);
  });
  test("nothing is cut where long steps are common", () => {
    const bars = barsOf([...many(20), ...Array.from({ length: 10 }, (_, n) => step(n, [900]))], 100);
    expect(axisTop(bars)).toBeGreaterThan(900);
  });
  test("of a few bars only one that is not compared is cut, and only far above the others", () => {
    const bars = (...durations: number[]) => durations.map((one, number) => barOf([step(number, [one])]));
    expect(rowsTop(bars(900, 80, 100), [80, 100])).toBe(125);
    expect(rowsTop(bars(190, 80, 100), [80, 100])).toBe(190);
    expect(rowsTop(bars(900, 80, 100), [900, 80, 100])).toBe(900);
    expect(rowsTop(bars(900), [])).toBe(900);
  });
  test("marks are round and begin with 0", () => {
    expect(marks(105, 200)).toEqual([0, 50, 100]);
    expect(marks(0, 200)).toEqual([]);
    expect(axisTop([])).toBe(0);
  });
});

test("every step counts in the distribution, those above the axis in its last place", () => {
  expect(counted([0, 10, 55, 99, 100, 1e9], 100, 10)).toEqual([1, 1, 0, 0, 0, 1, 0, 0, 0, 3]);
  expect(counted([1, 2], 0, 3)).toEqual([0, 0, 0]);
});

test("quantiles lie between values in proportion, as numpy has them", () => {
  expect(quantile([1, 2, 3, 4], 0.5)).toBe(2.5);
  expect(quantile([10, 20, 30, 40, 50], 0.95)).toBeCloseTo(48);
  expect(quantile([], 0.5)).toBeNaN();
});

test("places are those of ranks and devices, in their order", () => {
  const steps = [
    step(1, [1], { rank: 10, device: "cuda:2" }),
    step(1, [1], { rank: 2, device: "cuda:10" }),
    step(1, [1], { rank: 2, device: "cuda:9" }),
    step(2, [1], { rank: 2, device: "cuda:9" }),
  ];
  expect(placesOf(steps).map((place) => [place.title, place.steps.length])).toEqual([
    ["rank 2 · cuda:9", 2],
    ["rank 2 · cuda:10", 1],
    ["rank 10 · cuda:2", 1],
  ]);
});

test("processes of one rank are places of their own, those without steps by their name", () => {
  const steps = [
    step(0, [1], { process: 7, name: "train.py", device: "cpu" }),
    step(null, [9], { process: 8, name: "DataLoader worker 0", device: "cpu" }),
    step(0, [1], { process: 9, name: "train.py", rank: 1, device: "cpu" }),
  ];
  expect(placesOf(steps).map((place) => place.title)).toEqual([
    "train.py · cpu",
    "DataLoader worker 0 · cpu",
    "rank 1 · cpu",
  ]);
  expect(compared(steps)).toEqual([steps[0], steps[2]]);
  expect(compared(steps.slice(1, 2))).toEqual([steps[1]]);
});

test("start-up is compared with no step", () => {
  const steps = [step(0, [100], { startUp: true }), step(1, [1])];
  expect(compared(steps)).toEqual([steps[1]]);
});
