import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import * as units from "../src/units";

type Vectors = Record<"time" | "bytes" | "operations" | "percent" | "count", [number, string][]>;

// Written and checked by tests/support/unit_vectors.py: what is printed in a terminal and in a notebook.
const vectors: Vectors = JSON.parse(readFileSync("../tests/golden/units.json", "utf-8"));

const shown: Record<keyof Vectors, (value: number) => string> = {
  time: units.time,
  bytes: units.bytes,
  operations: (value) => units.scaled(value, "FLOP"),
  percent: units.percent,
  count: units.count,
};

test.each(Object.keys(shown) as (keyof Vectors)[])("%s is shown as it is everywhere else", (kind) => {
  expect(vectors[kind].length).toBeGreaterThan(5);
  for (const [value, text] of vectors[kind]) expect(shown[kind](value), `${kind} ${value}`).toBe(text);
});

test("what is not there is a dash", () => {
  for (const value of [null, undefined, Number.NaN, Number.POSITIVE_INFINITY]) {
    expect(units.time(value)).toBe("–");
    expect(units.bytes(value)).toBe("–");
    expect(units.percent(value)).toBe("–");
  }
});

test("a column is shown in its unit and headed without it", () => {
  expect(units.shown(2_500, "ns")).toBe("2.50 µs");
  expect(units.heading("self_ns", "ns")).toBe("Self");
  expect(units.heading("self_percent", "%")).toBe("Self %");
  expect(units.heading("ns", "ns")).toBe("Ns");
  expect(units.shown(1.5e12, "FLOP/s")).toBe("1.50 TFLOP/s");
  expect(units.shown(true, "")).toBe("yes");
});

test("counts one thing in the singular", () => {
  expect([0, 1, 2, 1234].map((value) => units.counted(value, "rank"))).toEqual([
    "0 ranks",
    "1 rank",
    "2 ranks",
    "1,234 ranks",
  ]);
  expect(units.counted(1, "copy", "copies")).toBe("1 copy");
  expect(units.counted(2, "copy", "copies")).toBe("2 copies");
});
