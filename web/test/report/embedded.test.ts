import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { EmbeddedSource, type Report } from "../../src/source/embedded";
import type { Columns, Query } from "../../src/source/source";

interface Asked {
  path: string;
  query: Query;
  columns?: Record<string, unknown[]>;
  total?: number;
  json?: unknown;
}

const GOLDEN = JSON.parse(readFileSync("../tests/golden/viewer_report.json", "utf-8")) as {
  report: Report;
  blocks: string[];
  asked: Asked[];
}[];

function columnsOf(table: Columns): Record<string, unknown[]> {
  const rows = (name: string) =>
    Array.from(table.values(name), (value) => (typeof value === "bigint" ? Number(value) : value));
  return Object.fromEntries(table.facts.map(({ name }) => [name, rows(name)]));
}

for (const { report, blocks, asked } of GOLDEN) {
  const source = new EmbeddedSource(report, (block) => blocks[block] ?? "");
  const which = report.cut ? "a report that is cut" : "a report";
  for (const path of new Set(asked.map((one) => one.path.replace(/\d+$/, "")))) {
    test(`${which} answers ${path} as the server does`, async () => {
      for (const one of asked.filter((other) => other.path.replace(/\d+$/, "") === path)) {
        const told = `${one.path} ${JSON.stringify(one.query)}`;
        expect(source.has(one.path, one.query)).toBe(true);
        if (one.columns) {
          const found = await source.columns(one.path, one.query);
          expect(columnsOf(found), told).toEqual(one.columns);
          expect(found.total, told).toBe(one.total);
        } else expect(await source.json(one.path, one.query), told).toEqual(one.json);
      }
    });
  }
}

test("what a report does not hold is said in one sentence", async () => {
  const [golden] = GOLDEN;
  if (!golden) throw new Error("there is no report");
  const source = new EmbeddedSource(golden.report, (block) => golden.blocks[block] ?? "");
  expect(source.has("sql", { query: "select 1" })).toBe(false);
  await expect(source.columns("sql", { query: "select 1" })).rejects.toThrow("This report does not hold");
  await expect(source.json("span/999999")).rejects.toThrow("does not hold the span 999999");
});

test("a report that is cut says where its timeline ends", () => {
  const [whole, cut] = GOLDEN.map(({ report }) => new EmbeddedSource(report, () => ""));
  expect(whole?.lacks).toBeUndefined();
  expect(cut?.lacks).toMatch(/^The timeline of this report ends after .*: it holds the first \d+ spans\./);
});
