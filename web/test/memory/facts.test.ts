import { expect, it } from "vitest";
import { countsFit, type Device, shortFrame, tail } from "../../src/memory/facts";

it("the end of a long path stays", () => {
  expect(tail("model.layers")).toBe("model.layers");
  expect(tail("Owlv2Model_0.Owlv2VisionTransformer_0.Owlv2Encoder_0")).toBe("…Owlv2Encoder_0");
  expect(tail("transformer.blocks.11.attention.qkv", 20)).toBe("…11.attention.qkv");
  expect(tail("x".repeat(90))).toBe("x".repeat(90));
});

it("a frame is shown without the folders of its file", () => {
  expect(shortFrame("/a/b/train.py(41): step")).toBe("train.py(41): step");
  expect(shortFrame("C:\\code\\train.py(41): step")).toBe("train.py(41): step");
  expect(shortFrame("train.py(41): <built-in method f/g of x>")).toBe(
    "train.py(41): <built-in method f/g of x>",
  );
  expect(shortFrame("no frame/at all")).toBe("no frame/at all");
});

it("the allocator's lines are shown where they do not press the curve flat", () => {
  const device = { peak_bytes: 100, allocated_bytes: null, reserved_bytes: null } as unknown as Device;
  expect(countsFit(device)).toBe(false);
  expect(countsFit({ ...device, reserved_bytes: 300 })).toBe(true);
  expect(countsFit({ ...device, allocated_bytes: 300, reserved_bytes: 10_000 })).toBe(false);
});
