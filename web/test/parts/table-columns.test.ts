import { expect, test } from "vitest";
import { moved } from "../../src/parts/table-cells";
import {
  chosenColumns,
  groupSpans,
  leastWidth,
  offeredColumns,
  turn,
  turnedNames,
} from "../../src/parts/table-columns";
import type { Columns } from "../../src/source/source";

function table(values: Record<string, (number | null)[]>): Columns {
  return {
    rows: 2,
    total: 2,
    facts: Object.keys(values).map((name) => ({ name, unit: "", meaning: "", numeric: true })),
    has: (name: string) => name in values,
    values: (name: string) => values[name],
  } as unknown as Columns;
}

const some = table({ a: [1, 2], b: [3, 4], c: [5, 6], empty: [null, 0] });
const columns = [{ name: "a" }, { name: "b", optional: true }, { name: "absent" }];
const shown = (text?: string) => chosenColumns(some, columns, turnedNames(text)).map((column) => column.name);

test("optional columns are shown when they are turned on, others until they are turned off", () => {
  expect(shown()).toEqual(["a"]);
  expect(shown("b")).toEqual(["a", "b"]);
  expect(shown("a,b,c")).toEqual(["b", "c"]);
});

test("one column always stays", () => {
  expect(shown("a")).toEqual(["a"]);
});

test("what the table says something in is offered", () => {
  expect(offeredColumns(some, columns).map((column) => column.name)).toEqual(["a", "b", "c"]);
  expect(offeredColumns(some, columns, ["c"]).map((column) => column.name)).toEqual(["a", "b"]);
});

test("turning twice is as at first", () => {
  const once = turn(turnedNames(undefined), "b");
  expect(once).toBe("b");
  expect(turn(turnedNames(once), "b")).toBeUndefined();
});

test("the least width is that of all tracks", () => {
  expect(leastWidth(["minmax(13rem, 4fr)", "7rem", "1fr", "minmax(min(3rem, 10vw), 1fr)"])).toBe(
    "calc(13rem + 7rem + 4rem + min(3rem, 10vw))",
  );
});

test("a group stretches over its neighbors only", () => {
  const all = [{ name: "a" }, { name: "b", group: "x" }, { name: "c", group: "x" }, { name: "d" }];
  expect(groupSpans([...all, { name: "e", group: "x" }])).toEqual([
    { group: "x", first: 2, beyond: 4 },
    { group: "x", first: 5, beyond: 6 },
  ]);
});

test("keys move within the table", () => {
  const last = { index: 9, column: 2 };
  const go = (from: { index: number; column: number } | null, key: string) => moved(from, key, last, 4, 3);
  expect(go(null, "ArrowDown")).toEqual({ index: 3, column: 0 });
  expect(go({ index: 3, column: 0 }, "ArrowDown")).toEqual({ index: 4, column: 0 });
  expect(go({ index: 9, column: 0 }, "ArrowDown")).toEqual({ index: 9, column: 0 });
  expect(go({ index: 7, column: 1 }, "PageDown")).toEqual({ index: 9, column: 1 });
  expect(go({ index: 7, column: 2 }, "ArrowRight")).toEqual({ index: 7, column: 2 });
  expect(go({ index: 7, column: 2 }, "Home")).toEqual({ index: 0, column: 2 });
  expect(go(null, "a")).toBeNull();
  expect(moved(null, "End", { index: -1, column: 2 }, 4, 0)).toBeNull();
});
