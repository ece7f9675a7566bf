import { expect, test } from "vitest";
import { type ColumnFacts, Columns, type Value } from "../src/source/source";
import { Chart } from "../src/stacks/chart";

function table(columns: Record<string, Value[]>): Columns {
  const facts = (name: string): ColumnFacts => ({ name, unit: "", meaning: "", numeric: true });
  return new Columns(new Map(Object.entries(columns).map(([name, values]) => [facts(name), values])));
}

// main calls a module, in which an operator and three short ones run.
const chart = new Chart(
  table({
    parent: [null, 0, 1, 1],
    start_ns: [100, 200, 250, 600],
    duration_ns: [1000, 700, 300, 3],
    self_ns: [300, 397, 300, 3],
    count: [1, 1, 1, 3],
    kind: ["python", "module", "operator", null],
    name: ["main", "layers.0", "aten::gelu", null],
    class: [null, "Block", null, null],
    file: ["/code/train.py", "/code/model.py", "/code/model.py", "/code/model.py"],
    line: [3, 7, 9, 9],
    user: [true, false, false, false],
    rebuilt: [true, true, false, false],
    span: [null, null, 41, null],
  }),
);

test("boxes stand at their times, inside what called them", () => {
  expect([...chart.boxes.start]).toEqual([100, 200, 250, 600]);
  expect([...chart.boxes.row]).toEqual([0, 1, 2, 2]);
  expect([chart.boxes.rows, chart.boxes.whole]).toEqual([3, 1100]);
  expect(chart.looks.map((look) => look.text)).toEqual([
    "main  train.py:3",
    "layers.0  Block",
    "aten::gelu",
    "",
  ]);
  expect(chart.looks.map((look) => look.role)).toEqual(["python", "module", "operator", "idle"]);
});

test("a box has the same name in another window", () => {
  const places = chart.calls.map((_, index) => chart.place(chart.key(index)));
  expect(places).toEqual([0, 1, 2, 3]);
  expect(chart.key(2)).toBe("2-250");
  expect(chart.place("2-251")).toBe(-1);
  expect(chart.place(undefined)).toBe(-1);
});

test("a search looks into names, classes and files, but not into joined boxes", () => {
  expect(chart.search("GELU")?.found).toEqual([2]);
  expect(chart.search("block")?.found).toEqual([1]);
  expect(chart.search("model.py:9")?.found).toEqual([2]);
  expect([...(chart.search("nothing")?.mask ?? [])]).toEqual([0, 0, 0, 0]);
  expect(chart.search(" ")).toBeNull();
});
