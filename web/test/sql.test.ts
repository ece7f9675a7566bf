import { expect, test } from "vitest";
import { completions, pieces } from "../src/sql/words";

const tables = [
  { name: "spans", columns: [{ name: "name" }, { name: "self_ns" }, { name: "start_ns" }] },
  { name: "steps", columns: [{ name: "number" }] },
];
const names = new Set(["spans", "name", "self_ns"]);

test("a query is made of its parts", () => {
  const query = "select name, 'it''s' -- why\nfrom spans where self_ns > 1.5e3 /* open";
  const found = pieces(query, names);
  expect(found.map(({ text }) => text).join("")).toBe(query);
  const of = (kind: string) => found.filter((one) => one.kind === kind).map(({ text }) => text);
  expect(of("keyword")).toEqual(["select", "from", "where"]);
  expect(of("name")).toEqual(["name", "spans", "self_ns"]);
  expect(of("text")).toEqual(["'it''s'"]);
  expect(of("comment")).toEqual(["-- why", "/* open"]);
  expect(of("number")).toEqual(["1.5e3"]);
  for (const odd of ["", "'", '"', "/*", "\u0000é😀", "1..2"])
    expect(
      pieces(odd, names)
        .map(({ text }) => text)
        .join(""),
    ).toBe(odd);
});

test("columns of the tables that the query names come first", () => {
  const typed = "select s from spans";
  expect(completions(typed, 8, tables).slice(0, 2)).toEqual(["self_ns", "start_ns"]);
  expect(completions("select number from s", 20, tables)).toEqual(["spans", "steps"]);
  expect(completions("sel", 3, tables)).toContain("select");
  for (const quiet of ["'s", "-- s", "", "select "])
    expect(completions(quiet, quiet.length, tables)).toEqual([]);
  expect(completions("selfish", 4, tables)).toEqual([]);
});
