import { expect, test } from "vitest";
import { effect, signal } from "../src/signals";

test("an effect runs again when what it read last has changed", () => {
  const [which, left, right] = [signal("left"), signal(1), signal(10)];
  const seen: number[] = [];
  const end = effect(() => {
    seen.push(which.value === "left" ? left.value : right.value);
  });
  right.value = 11;
  left.value = 2;
  left.value = 2;
  which.value = "right";
  left.value = 3;
  right.value = 12;
  end();
  right.value = 13;
  expect(seen).toEqual([1, 2, 11, 12]);
});

test("what is only peeked at, or read by who is told, is not waited for", () => {
  const [one, other] = [signal(1), signal(10)];
  const seen: number[] = [];
  effect(() => {
    seen.push(one.value + other.peek());
  });
  one.subscribe((value) => seen.push(value * other.value));
  other.value = 20;
  one.value = 2;
  expect(seen).toEqual([11, 10, 22, 40]);
});

test("effects within effects, and those that end each other", () => {
  const [one, other] = [signal(1), signal(1)];
  const seen: string[] = [];
  let end = () => {};
  effect(() => {
    if (one.value > 1) end();
    effect(() => {
      seen.push(`inner ${other.value}`);
    });
  });
  end = effect(() => {
    seen.push(`ended ${one.value}`);
  });
  one.value = 2;
  expect(seen).toEqual(["inner 1", "ended 1", "inner 1"]);
});

test("an effect that fails leaves the others alone", () => {
  const one = signal(1);
  expect(() =>
    effect(() => {
      if (one.value) throw new Error("no");
    }),
  ).toThrow("no");
  const other = signal(1);
  let runs = 0;
  effect(() => {
    runs += other.value;
  });
  expect(() => {
    one.value = 2;
  }).toThrow("no");
  other.value = 5;
  expect(runs).toBe(6);
});
