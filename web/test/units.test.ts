import { expect, test } from "vitest";
import * as units from "../src/units";

test.each([
  [0, "0"],
  [1, "1 ns"],
  [999, "999 ns"],
  [1_000, "1 µs"],
  [1_234, "1.23 µs"],
  [12_345, "12.3 µs"],
  [999_960, "1.00 ms"],
  [123_456_789, "123 ms"],
  [61e9, "61 s"],
  [null, "–"],
  [Number.NaN, "–"],
])("%s ns is shown as %s", (ns, text) => {
  expect(units.time(ns)).toBe(text);
});

test.each([
  [0, "0"],
  [1_023, "1023 B"],
  [1_536, "1.50 KiB"],
  [-3 * 2 ** 30, "-3 GiB"],
])("%s bytes are shown as %s", (count, text) => {
  expect(units.bytes(count)).toBe(text);
});

test("a column is shown in its unit and headed without it", () => {
  expect(units.shown(2_500, "ns")).toBe("2.50 µs");
  expect(units.heading("self_ns", "ns")).toBe("Self");
  expect(units.heading("self_percent", "%")).toBe("Self %");
  expect(units.heading("ns", "ns")).toBe("Ns");
  expect(units.shown(1.5e12, "FLOP/s")).toBe("1.50 TFLOP/s");
  expect(units.shown(true, "")).toBe("yes");
});
