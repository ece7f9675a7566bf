import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { tableOf } from "../../src/source/arrow";

const GOLDEN = JSON.parse(readFileSync("../tests/golden/viewer_arrow.json", "utf-8")) as {
  name: string;
  stream: string;
  rows: number;
  columns: Record<string, unknown[]>;
}[];

const tables = GOLDEN.map((one) => ({
  ...one,
  table: tableOf(Uint8Array.from(Buffer.from(one.stream, "base64"))),
}));

for (const { name, table, rows, columns } of tables) {
  test(`a table is read as it was sent: ${name}`, () => {
    expect(table.facts.map((column) => column.name)).toEqual(Object.keys(columns));
    expect(table.rows).toBe(rows);
    for (const [column, values] of Object.entries(columns))
      expect(Array.from(table.values(column)), column).toEqual(values);
  });
}

test("what is said of a table and its columns comes with it", () => {
  const whole = tables[0]?.table;
  const facts = Object.fromEntries((whole?.facts ?? []).map((column) => [column.name, column]));
  expect(whole?.about.get("all")).toBe("no");
  expect(facts["int64"]).toEqual({ name: "int64", unit: "ns", meaning: "What int64 is.", numeric: true });
  expect(facts["float"]?.numeric && facts["uint8"]?.numeric).toBe(true);
  expect(facts["text"]?.numeric || facts["coded"]?.numeric || facts["truth"]?.numeric).toBe(false);
});

test("texts can be had by code, however they were sent", () => {
  for (const name of ["text", "coded", "small codes"]) {
    const { codes, texts } = tables[0]?.table.coded(name) ?? { codes: [], texts: [] };
    expect(Array.from(codes, (code) => texts[code])).toEqual(tables[0]?.columns[name]);
  }
});
