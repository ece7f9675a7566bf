import { expect, test } from "vitest";
import { type Columns, type Source, made as tableOf, type WindowQuery } from "../../src/source/source";
import { Loader } from "../../src/timeline/loader";
import { neighbor } from "../../src/timeline/neighbors";
import { Palette } from "../../src/timeline/palette";

const WHOLE = { start: 0, end: 1_000_000 };

interface Span {
  row: number;
  start: number;
  duration: number;
}

/** Spans of one track, put together by pixel as a source does it. */
function window(spans: readonly Span[], { start, end, width }: WindowQuery): Columns {
  const pixel = (end - start) / width;
  const rows: { row: number; start: number; duration: number; busy: number; count: number; span: number }[] =
    [];
  spans.forEach((span, index) => {
    if (span.start >= end || span.start + Math.max(span.duration, 1) <= start) return;
    const before = rows.findLast((one) => one.row === span.row);
    const place = (time: number) => Math.floor((time - start) / pixel);
    if (
      before &&
      span.duration < pixel &&
      before.duration < pixel &&
      place(before.start) === place(span.start)
    ) {
      before.count += 1;
      before.duration = span.start + span.duration - before.start;
      before.busy += span.duration;
    } else rows.push({ ...span, busy: span.duration, count: 1, span: index });
  });
  return tableOf({
    track: Int32Array.from(rows, () => 3),
    row: Int32Array.from(rows, (one) => one.row),
    start: Float64Array.from(rows, (one) => one.start),
    duration: Float64Array.from(rows, (one) => one.duration),
    busy: Float64Array.from(rows, (one) => one.busy),
    count: Int32Array.from(rows, (one) => one.count),
    span: Int32Array.from(rows, (one) => one.span),
    name: rows.map(() => "aten::add"),
    kind: rows.map(() => "operator"),
  });
}

function source(spans: readonly Span[], asked: WindowQuery[] = []): Source {
  const unexpected = () => Promise.reject(new Error("not requested"));
  return {
    served: true,
    has: () => true,
    download: () => null,
    info: unexpected,
    table: unexpected,
    counters: unexpected,
    span: unexpected,
    window: (query) => {
      asked.push(query);
      return Promise.resolve(window(spans, query));
    },
  };
}

const SPANS: Span[] = [{ row: 0, start: 0, duration: 900_000 }];
for (let index = 0; index < 5000; index++) SPANS.push({ row: 1, start: 10 + index * 20, duration: 15 });
SPANS.push({ row: 1, start: 800_000, duration: 5 });
const known = (span: number) => ({ span, track: 3, ...(SPANS[span] ?? { row: 0, start: 0, duration: 0 }) });

test("neighbors are found however dense or far they are", async () => {
  const from = source(SPANS);
  expect(await neighbor(from, known(1), "after", WHOLE)).toBe(2);
  expect(await neighbor(from, known(2), "before", WHOLE)).toBe(1);
  expect(await neighbor(from, known(5000), "after", WHOLE)).toBe(5001);
  expect(await neighbor(from, known(5001), "before", WHOLE)).toBe(5000);
  expect(await neighbor(from, known(1), "before", WHOLE)).toBeNull();
  expect(await neighbor(from, known(5001), "after", WHOLE)).toBeNull();
  expect(await neighbor(from, known(777), "outer", WHOLE)).toBe(0);
  expect(await neighbor(from, known(0), "outer", WHOLE)).toBeNull();
  expect(await neighbor(from, known(0), "inner", WHOLE)).toBe(1);
  expect(await neighbor(from, known(3), "inner", WHOLE)).toBeNull();
});

/** Lets everything that waits only for promises happen. */
const settled = () => new Promise((resolve) => setTimeout(resolve));

function loader(from: Source, failed: (error: unknown) => void = () => {}) {
  return new Loader(from, WHOLE, new Palette(() => "#808080").label, () => {}, failed);
}

test("one question is asked at a time, and the newest wish wins", async () => {
  const asked: WindowQuery[] = [];
  const made = loader(source(SPANS, asked));
  const want = (start: number, end: number) =>
    made.want({ view: { start, end }, pixels: 500, tracks: [3], counters: [] });
  want(0, 100_000);
  for (let start = 0; start < 50_000; start += 1000) want(start, start + 100);
  expect(asked.length).toBe(1);
  await settled();
  // The first, the newest, and the coarse whole for when the view moves fast.
  expect(asked.length).toBe(3);
  expect(asked[1]?.start).toBeLessThanOrEqual(49_000);
  expect(asked[1]?.end).toBeGreaterThanOrEqual(49_100);
  expect(asked[2]).toMatchObject({ start: 0, end: 1_000_000 });
  expect(made.boxes(3).length).toBe(2);
  want(49_010, 49_110);
  await settled();
  expect(asked.length).toBe(3);
});

test("an answer that cannot be had is told once, not asked for with every frame", async () => {
  let asked = 0;
  const errors: unknown[] = [];
  const gone: Source = {
    ...source([]),
    window: () => {
      asked += 1;
      return Promise.reject(new Error("gone"));
    },
  };
  const made = loader(gone, (error) => errors.push(error));
  for (let frame = 0; frame < 20; frame++) {
    made.want({ view: { start: frame, end: frame + 100 }, pixels: 500, tracks: [3], counters: [] });
    await settled();
  }
  expect(asked).toBe(1);
  expect(errors.length).toBe(1);
});

test("nothing is taken or asked after the end", async () => {
  const asked: WindowQuery[] = [];
  const made = loader(source(SPANS, asked));
  made.want({ view: WHOLE, pixels: 500, tracks: [3], counters: [] });
  made.end();
  await settled();
  expect(asked.length).toBe(1);
  expect(made.boxes(3)).toEqual([]);
});
