import { expect, test } from "vitest";
import { sentence } from "../../src/health/health";

test("numbers stand in their places, with their units", () => {
  const said = {
    text: "{} of {} spans, {} off, {} of the time",
    values: [
      [12, ""],
      [34567, ""],
      [2500, "ns"],
      [45.67, "%"],
    ],
  } as const;
  expect(sentence(said)).toBe("12 of 34,567 spans, 2.50 µs off, 45.7 % of the time");
  expect(sentence({ text: "Nothing is missing", values: [] })).toBe("Nothing is missing");
});
