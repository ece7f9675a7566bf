import { expect, test } from "vitest";
import { boxName, Fitting, kernelName, plain } from "../../src/timeline/names";
import { Palette, parsedColor, shaded } from "../../src/timeline/palette";

test("kernels are called by what tells them apart", () => {
  expect(
    kernelName(
      "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, float)",
    ),
  ).toBe("vectorized_elementwise_kernel ‹CUDAFunctor_add›");
  expect(kernelName("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>(cutlass_80::Params)")).toBe(
    "cutlass_80_tensorop_s1688gemm_128x128",
  );
  expect(kernelName("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)")).toBe(
    "ncclKernel_AllReduce_RING_LL_Sum_float",
  );
  expect(kernelName("triton_poi_fused_add_0")).toBe("triton_poi_fused_add_0");
  expect(kernelName("void (anonymous namespace)::softmax_warp_forward<float, float, 7>(float*)")).toBe(
    "softmax_warp_forward",
  );
  expect(kernelName("<<<>>>")).not.toBe("");
});

test("Python calls begin with the function", () => {
  expect(boxName("python", "torch/nn/modules/module.py(1518): _call_impl")).toBe(
    "_call_impl  module.py:1518",
  );
  expect(boxName("python", "<built-in method linear>")).toBe("<built-in method linear>");
});

test("hostile names are one short line in one direction", () => {
  expect(plain("a\u202eb\u0000\nc")).toBe("a b c");
  expect(plain("x".repeat(2_000_000)).length).toBe(400);
});

test("texts are cut to the room they have", () => {
  const fitting = new Fitting((text) => 10 * text.length);
  expect(fitting.fit("aten::add", 100)).toBe("aten::add");
  expect(fitting.fit("aten::add", 50)).toBe("add");
  expect(fitting.fit("aten::convolution", 60)).toBe("convo…");
  expect(fitting.fit("aten::convolution", 20)).toBe("");
  expect(fitting.fit("aten::convolution", 5)).toBe("");
  expect(fitting.fit("aten::convolution_backward", 150)).toBe("convolutio…ward");
  expect(fitting.fit("evaluate_everything_twice  model.py:12", 240)).toBe("evaluate_e…  model.py:12");
  expect(fitting.fit("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 200)).toBe(
    "AccumulateGrad",
  );
  expect(fitting.fit("Optimizer.step#AdamW.step", 120)).toBe("AdamW.step");
  expect(fitting.width("abc")).toBe(30);
});

test("one name has one color, and a new theme turns all", () => {
  const palette = new Palette(() => "#3d8fc6");
  const add = palette.label("operator", "aten::add");
  const mul = palette.label("operator", "aten::mul");
  expect(palette.label("operator", "aten::add")).toBe(add);
  expect(palette.fill[add]).not.toBe(palette.fill[mul]);
  const before = palette.fill[add];
  palette.renew(() => "#101010");
  expect(palette.fill[add]).not.toBe(before);
  expect(palette.matches(add, "add")).toBe(true);
  expect(palette.matches(mul, "add")).toBe(false);
  expect(palette.matches(palette.label("operator", "aten::add_"), "add")).toBe(true);
  expect(palette.matches(mul, "")).toBe(true);
});

test("shades stay near their color and within what can be shown", () => {
  const base = parsedColor("#3d8fc6");
  for (let at = 0; at < 1; at += 0.05) {
    const shade = shaded(base, at);
    expect(shade.every((part) => part >= 0 && part <= 255)).toBe(true);
    expect(Math.max(...shade.map((part, index) => Math.abs(part - (base[index] ?? 0))))).toBeLessThan(80);
  }
  expect(parsedColor("none")).toEqual([128, 128, 128]);
});
