import { expect, test } from "vitest";
import {
  allAten,
  frameLine,
  frames,
  kernelLine,
  kernelNames,
  kindWord,
  lineName,
} from "../../src/operators/kinds";
import { made } from "../../src/source/source";

test("kernels are shown without what is the same in all of them", () => {
  expect(
    kernelLine(
      "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float*)",
    ),
  ).toBe("vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>");
  expect(kernelLine("void at::native::(anonymous namespace)::cunn_SoftMax<8>(float*)")).toBe(
    "cunn_SoftMax<8>",
  );
  expect(kernelLine("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(Params)")).toBe(
    "cutlass_80_tensorop_s1688gemm",
  );
  expect(kernelLine("volta_sgemm_64x64_nt")).toBe("volta_sgemm_64x64_nt");
});

test("a strange name is still shown", () => {
  for (const name of ["(", "<<<", "", "((((", "a".repeat(100_000), "\u202eevil"])
    expect(kernelLine(name).length).toBeLessThanOrEqual(400);
  expect(kernelLine("()")).toBe("()");
});

test("frames begin with file and line", () => {
  expect(frameLine("/src/net/model.py(12): Net.forward")).toBe("model.py:12 Net.forward");
  expect(frameLine("C:\\src\\model.py(3): f")).toBe("model.py:3 f");
  expect(frames("a.py(1): f ← b/c.py(2): g")).toEqual(["a.py:1 f", "c.py:2 g"]);
  expect(frames("…")).toEqual(["…"]);
});

test("names are shown as their kind is", () => {
  expect(lineName("operator", "aten::mm")).toBe("aten::mm");
  expect(lineName("python", "src/a.py(12): forward")).toContain("a.py:12");
  expect(kindWord("user_annotation")).toBe("range");
});

test("kernels have short names that tell them apart", () => {
  const add = (type: string) =>
    `void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<${type}>>(int)`;
  const relu = "void at::native::elementwise_kernel<128, at::native::relu_kernel_cuda>(int)";
  expect(kernelNames([add("float"), relu, relu])).toEqual([
    "vectorized_elementwise_kernel ‹CUDAFunctor_add›",
    "elementwise_kernel ‹relu_kernel_cuda›",
    "elementwise_kernel ‹relu_kernel_cuda›",
  ]);
  expect(kernelNames([add("float"), add("int")])).toEqual([
    "vectorized_elementwise_kernel ‹CUDAFunctor_add›  float",
    "vectorized_elementwise_kernel ‹CUDAFunctor_add›  int",
  ]);
});

test("kernels that even the type does not tell apart are numbered, whatever their order", () => {
  const copy = (size: number) => `void elementwise_kernel<${size}, direct_copy_kernel_cuda<float>>(int)`;
  expect(kernelNames([copy(128), copy(64)])).toEqual([
    "elementwise_kernel ‹direct_copy_kernel_cuda›  float  #1",
    "elementwise_kernel ‹direct_copy_kernel_cuda›  float  #2",
  ]);
  expect(kernelNames([copy(64), copy(128)])[0]).toMatch(/#2$/);
});

test("aten:: is dropped where all operators have it", () => {
  const kind = ["operator", "backward", "operator"];
  expect(allAten(made({ name: ["aten::mm", "AddmmBackward0", "aten::add"], kind }))).toBe(true);
  expect(allAten(made({ name: ["aten::mm", "AddmmBackward0", "mine::add"], kind }))).toBe(false);
  const engine = "autograd::engine::evaluate_function: AddmmBackward0";
  expect(allAten(made({ name: ["aten::mm", "AddmmBackward0", engine], kind }))).toBe(true);
  expect(lineName("operator", "aten::mm", true)).toBe("mm");
  expect(lineName("backward", "aten::mm", true)).toBe("aten::mm");
  expect(lineName("operator", "aten::", true)).toBe("aten::");
});
