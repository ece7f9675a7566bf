import { beforeAll, expect, test, vi } from "vitest";

// The module reads the browser's address when it is loaded.
let router: typeof import("../src/router");
beforeAll(async () => {
  vi.stubGlobal("location", { hash: "" });
  vi.stubGlobal("addEventListener", () => undefined);
  router = await import("../src/router");
});

test("an address says the page and what of it is shown, and is read back", () => {
  const query = { name: "aten::mm & more", "ops.sort": "-self_ns" };
  const address = router.address("operators", query);
  expect(router.parsed(address)).toEqual({ page: "operators", query });
});

test("what is empty is not in the address", () => {
  expect(router.address("timeline", { span: undefined, find: "" })).toBe("#/timeline");
});

test("an empty address is the overview", () => {
  expect(router.parsed("")).toEqual({ page: "overview", query: {} });
});
