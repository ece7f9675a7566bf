import { expect, test } from "vitest";
import { type ColumnFacts, Columns, type Value } from "../src/source/source";
import { Flame, fileNames, frameText } from "../src/stacks/flame";

function table(columns: Record<string, Value[]>): Columns {
  const facts = (name: string): ColumnFacts => ({
    name,
    unit: name === "total" ? "ns" : "",
    meaning: "",
    numeric: true,
  });
  return new Columns(new Map(Object.entries(columns).map(([name, values]) => [facts(name), values])));
}

// main calls forward, which calls itself, and something small.
const flame = new Flame(
  table({
    parent: [null, 0, 1, 0],
    function: ["main", "forward", "forward", ""],
    file: ["/a/train.py", "/a/model.py", "/a/model.py", ""],
    line: [3, 7, 9, null],
    user: [true, true, true, false],
    rest: [0, 0, 0, 4],
    total: [1000, 900, 500, 1],
    own: [99, 400, 500, 1],
    count: [9, 5, 2, 1],
  }),
);

test("a search counts each thing once", () => {
  const found = flame.search("Forward", -1);
  expect(found?.frames).toBe(2);
  expect(found?.weight).toBe(900);
  expect(found?.percent).toBeCloseTo(90);
  expect([...(found?.mask ?? [])]).toEqual([0, 1, 1, 0]);
  expect(flame.search("  ", -1)).toBeNull();
});

test("a search within a part knows only that part", () => {
  expect(flame.search("main", 1)?.frames).toBe(0);
  expect(flame.search("model.py:9", 1)?.percent).toBeCloseTo((100 * 500) / 900);
});

test("frames are found as the tables spell them", () => {
  expect(flame.search("/a/model.py(7): forward", -1)?.frames).toBe(1);
});

test("keys depend on the path only", () => {
  const smaller = new Flame(
    table({
      parent: [null, 0],
      function: ["main", "forward"],
      file: ["/a/train.py", "/a/model.py"],
      line: [3, 7],
      user: [true, true],
      rest: [0, 0],
      total: [10, 10],
      own: [0, 10],
      count: [1, 1],
    }),
  );
  expect(smaller.key(1)).toBe(flame.key(1));
  expect(flame.place(smaller.key(1))).toBe(1);
  expect(flame.key(1)).not.toBe(flame.key(2));
  expect(flame.place("nothing")).toBe(-1);
  expect(flame.place(undefined)).toBe(-1);
});

test("frames in words", () => {
  expect(flame.frames.map(frameText)).toEqual([
    "main  train.py:3",
    "forward  model.py:7",
    "forward  model.py:9",
    "4 more",
  ]);
});

test("the files in which most was spent have colors of their own", () => {
  expect([...flame.files]).toEqual([
    ["/a/model.py", "operator"],
    ["/a/train.py", "backward"],
  ]);
  expect(flame.looks.map((look) => look.role)).toEqual(["backward", "operator", "operator", "idle"]);
});

test("files of one name are told apart by their folders", () => {
  expect(fileNames(["/a/net.py", "/b/__init__.py", "C:\\c\\__init__.py", "__init__.py"])).toEqual([
    "net.py",
    "b/__init__.py",
    "c/__init__.py",
    "__init__.py",
  ]);
});
