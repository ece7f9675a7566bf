import { expect, test } from "vitest";
import { summaryRows, summaryText, type Temporaries } from "../../src/memory/temporary";

const found: Temporaries = {
  allocations: 20,
  allocated_bytes: 1000,
  within: { operator: [5, 100], module: [0, 0], step: [3, 500] },
  peak_bytes: 800,
  temporary_peak_bytes: 200,
  not_freed: 4,
  not_freed_bytes: 150,
  unseen_frees: 2,
  unseen_free_bytes: 50,
  module_calls: false,
  steps: true,
};

test("the rows add up to all that was allocated", () => {
  const rows = summaryRows(found);
  expect(rows.map(({ title, count, bytes }) => [title, count, bytes])).toEqual([
    ["Within one operator", 5, 100],
    ["Within one step", 3, 500],
    ["Freed later", 6, 200],
    ["Not freed during the recording", 4, 150],
    ["Free not seen", 2, 50],
  ]);
  expect(rows.reduce((sum, row) => sum + row.bytes, 0)).toBe(found.allocated_bytes);
});

test("what is not known is said", () => {
  expect(summaryText(found)).toBe(
    "At the peak, short-lived allocations held 200 B of 800 B (25.0 %). 2 allocations of 50 B ended without a recorded free: " +
      "only their address was allocated again. They count as not short-lived. Module calls were not recorded.",
  );
  expect(summaryText({ ...found, peak_bytes: 0, unseen_frees: 0, module_calls: true, steps: false })).toBe(
    "The trace has no steps.",
  );
});
