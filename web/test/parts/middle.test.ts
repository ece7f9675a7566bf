import { expect, test } from "vitest";
import { parted } from "../../src/parts/middle";

test("a file with its line stays whole", () => {
  expect(parted("modeling_owlv2.py:410 Owlv2Attention.forward")).toEqual([
    "modeling_owlv2.py:410",
    " Owlv2Attention.forward",
    "head",
  ]);
  expect(parted("/home/someone/transformers/modeling_owlv2.py:410")).toEqual([
    "/home/someone/transformers/",
    "modeling_owlv2.py:410",
    "tail",
  ]);
  expect(parted("/home/someone/transformers/owl.py(41): forward")[1]).toBe("owl.py(41): forward");
  expect(parted("/a/modeling_owlv2.py:410")).toEqual(["/a/", "modeling_owlv2.py:410", "tail"]);
  expect(parted("modeling_owlv2.py(410): forward")).toEqual(["modeling_owlv2.py(410): forward", "", "tail"]);
});

test("of other texts the last word stays, or at least some letters", () => {
  expect(parted("autograd::engine::evaluate_function: AddmmBackward0")[1]).toBe("AddmmBackward0");
  expect(parted("aten::mm")).toEqual(["aten::mm", "", "tail"]);
  for (const text of ["", "x".repeat(100), ":".repeat(100), "/".repeat(23), `${"a ".repeat(30)}b`]) {
    const [head, tail] = parted(text);
    expect(head + tail).toBe(text);
    expect(tail.length).toBeLessThanOrEqual(36);
  }
});
