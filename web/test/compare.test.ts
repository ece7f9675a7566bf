import { beforeAll, expect, test, vi } from "vitest";
import { made } from "../src/source/source";

// The module of addresses, on which it depends, reads the browser's address when it is loaded.
let compare: typeof import("../src/compare/compare");
beforeAll(async () => {
  vi.stubGlobal("location", { hash: "" });
  vi.stubGlobal("addEventListener", () => undefined);
  compare = await import("../src/compare/compare");
});

const TIMES = made({
  kind: ["step", "module", "module", "module", "operator"],
  name: ["step", "net.head", "net.body.first", "", "aten::mm"],
  base_ns: [1000, 100, 50, 7, 400],
  change_ns: [100, -20, 30, 1, 5],
});

test("modules hold those within their paths, and what these changed by", () => {
  const { boxes, rows, names, changes } = compare.moduleBoxes(TIMES);
  expect(names).toEqual(["net", "net.head", "net.body", "net.body.first"]);
  expect(rows).toEqual([-1, 1, -1, 2]);
  expect(changes).toEqual([10, -20, 30, 30]);
  expect([...boxes.parent]).toEqual([-1, 0, 0, 2]);
  // As wide as on the side where each takes longer.
  expect([...boxes.end].map((end, box) => end - (boxes.start[box] ?? 0))).toEqual([180, 100, 80, 80]);
});

test("no modules are no boxes", () => {
  const none = made({ kind: ["step"], name: ["step"], base_ns: [1], change_ns: [0] });
  expect(compare.moduleBoxes(none).names).toEqual([]);
});

test("a row leads to its page of one of the traces", () => {
  expect(compare.leadsTo("operator", "aten::mm", "", -1, 1)).toBe("#/operators?trace=1&name=aten%3A%3Amm");
  expect(compare.leadsTo("line", "f", "/code/net.py", 7, 0)).toBe("#/stacks?trace=0&find=net.py%287%29");
  expect(compare.leadsTo("collective", "all_reduce", "", -1, 0)).toBeUndefined();
});
