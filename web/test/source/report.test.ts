import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { type Report, ReportSource } from "../../src/source/report";
import type { WindowQuery } from "../../src/source/source";

/** Reports with what the server responds about the same traces. */
const GOLDEN = JSON.parse(readFileSync("../tests/golden/viewer_report.json", "utf-8")) as {
  report: Report;
  blocks: string[];
  windows: { query: WindowQuery; columns: Record<string, unknown[]> }[];
  spans: { id: number }[];
  lacking: number;
}[];

for (const { report, blocks, windows, spans, lacking } of GOLDEN) {
  const source = new ReportSource(report, (block) => blocks[block] ?? "");
  const which = report.cut ? "a report that is cut" : "a report";

  test(`${which} shows the windows that the server shows`, async () => {
    for (const { query, columns } of windows) {
      const found = await source.window(query);
      for (const [name, values] of Object.entries(columns))
        expect(Array.from(found.values(name)), `${name} ${JSON.stringify(query)}`).toEqual(values);
    }
  });

  test(`${which} has the details of spans that the server has`, async () => {
    for (const span of spans) expect(await source.span(span.id)).toEqual(span);
  });

  test(`${which} says in one sentence what it does not include`, async () => {
    expect(source.has("search", { text: "mm" })).toBe(false);
    await expect(source.table("search", { text: "mm" })).rejects.toThrow("open the trace with");
    await expect(source.span(lacking)).rejects.toThrow(`does not include span ${lacking}`);
  });
}

test("a report that is cut says where its timeline ends", () => {
  const [whole, cut] = GOLDEN.map(({ report }) => new ReportSource(report, () => ""));
  expect(whole?.lacks).toBeUndefined();
  expect(cut?.lacks).toMatch(/^The timeline of this report ends after .*: it has the first \d+ spans\./);
});
