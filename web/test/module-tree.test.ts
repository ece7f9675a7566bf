import { expect, test } from "vitest";
import { inSight, openedAtFirst, rowsAround, shortPath, treeOf } from "../src/modules/tree";
import { summed } from "../src/parts/summed";
import { byColumn, filtered } from "../src/parts/table-rows";
import { type ColumnFacts, Columns, type Value } from "../src/source/source";

function table(columns: Record<string, Value[]>): Columns {
  const facts = (name: string): ColumnFacts => ({ name, unit: "", meaning: "", numeric: true });
  return new Columns(new Map(Object.entries(columns).map(([name, values]) => [facts(name), values])));
}

const NET = table({
  id: [0, 5, 7, 8, 2],
  parent: [null, 0, 5, 5, 0],
  path: ["Net", "body", "body.first", "body.second", "head"],
  class: ["Net", "Body", "Linear", "ReLU", "Linear"],
  total_ns: [100, 80, 30, 50, 20],
});
const tree = treeOf(NET);
const asIs = (a: number, b: number) => a - b;
const shown = (opened: number[], found: ArrayLike<number> | null = null, order = asIs) => [
  ...inSight(tree, new Set(opened), found, order),
];

test("the outline opens level by level as far as there is room", () => {
  expect([...tree.depth]).toEqual([0, 1, 2, 2, 1]);
  expect([...openedAtFirst(tree, 3)]).toEqual([0]);
  expect([...openedAtFirst(tree, 40)].sort()).toEqual([0, 1]);
  expect(rowsAround(tree, 3)).toEqual([0, 1, 3]);
});

test("closed rows hide what they hold", () => {
  expect(shown([])).toEqual([0]);
  expect(shown([0])).toEqual([0, 1, 4]);
  expect(shown([0, 1])).toEqual([0, 1, 2, 3, 4]);
});

test("siblings are sorted, each followed by what it holds", () => {
  expect(shown([0, 1], null, byColumn(NET, "total_ns", false))).toEqual([0, 4, 1, 2, 3]);
  expect(shown([0, 1], null, byColumn(NET, "absent", true))).toEqual([0, 1, 2, 3, 4]);
});

test("a filter keeps what is around what it finds, opened or not", () => {
  const found = filtered(NET, ["path", "class"], "linear");
  expect([...found]).toEqual([2, 4]);
  expect(shown([], found)).toEqual([0, 1, 2, 4]);
});

test("a table that was cut has rows without what holds them", () => {
  const cut = treeOf(table({ id: [7, 8], parent: [5, 7] }));
  expect([...cut.parent]).toEqual([-1, 0]);
});

test("the last part of a path", () => {
  expect(shortPath("body.first")).toBe("first");
  expect(shortPath("Net")).toBe("Net");
});

test("rows are put together by their texts", () => {
  const rows = table({ name: ["mm", "add", "mm"], kind: ["a", null, "a"], ns: [10, 5, 25], span: [1, 2, 3] });
  const sums = summed(rows, ["name", "kind"], ["ns"], (row) => row >= 0, "ns", ["span"]);
  expect(sums.texts("name")).toEqual(["mm", "add"]);
  expect(sums.numbers("ns")).toEqual([35, 5]);
  expect(sums.values("span")).toEqual([3, 2]);
  expect(sums.values("share")).toEqual([87.5, 12.5]);
  expect(summed(rows, ["name"], ["ns"], () => false, "ns").rows).toBe(0);
});
