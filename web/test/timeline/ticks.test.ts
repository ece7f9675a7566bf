import { expect, test } from "vitest";
import { moment, ticks } from "../../src/timeline/ticks";

const labels = (start: number, end: number, pixels = 1000) =>
  ticks({ start, end }, pixels).major.map((mark) => mark.label);

test("marks are round times with the unit of the largest", () => {
  expect(labels(0, 1e9)).toEqual([
    "0",
    "0.1 s",
    "0.2 s",
    "0.3 s",
    "0.4 s",
    "0.5 s",
    "0.6 s",
    "0.7 s",
    "0.8 s",
    "0.9 s",
    "1.0 s",
  ]);
  expect(labels(0, 5e6, 300)).toEqual(["0", "2 ms", "4 ms"]);
  expect(labels(1.5e6, 1.9e6, 400)).toEqual(["1.5 ms", "1.6 ms", "1.7 ms", "1.8 ms", "1.9 ms"]);
});

test("far into the trace labels count from a base", () => {
  const marks = ticks({ start: 12_345_678_900, end: 12_345_679_900 }, 1000);
  expect(marks.base).toBe(12_345_678_000);
  expect(marks.major[0]?.label).toBe("+0.9 µs");
  expect(marks.major.every((mark) => mark.label.length <= 8)).toBe(true);
});

test("marks are as far apart as labels need, with finer ones between", () => {
  for (let power = 1.7; power < 13; power += 0.13) {
    const end = 10 ** power;
    const marks = ticks({ start: end / 3, end: end / 3 + end }, 900);
    expect((marks.step / end) * 900).toBeGreaterThanOrEqual(91);
    expect(marks.major.length).toBeGreaterThanOrEqual(3);
    expect(new Set(marks.major.map((mark) => mark.label)).size).toBe(marks.major.length);
    expect(marks.minor.length).toBeGreaterThan(marks.major.length);
  }
});

test("moments are as exact as they can be told apart", () => {
  expect(moment(1_234_567_890)).toBe("1.234\u202f567\u202f890 s");
  expect(moment(1_234_567_890, 1e6)).toBe("1.235 s");
  expect(moment(0)).toBe("0 ns");
  expect(moment(-1500)).toBe("-1.500 µs");
});
