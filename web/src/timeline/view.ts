/** Which stretch of time is shown, and how it moves. Times are nanoseconds from the start of the trace. */

export interface View {
  readonly start: number;
  readonly end: number;
}

/** Nothing is shorter than a nanosecond, so no closer look shows more. */
export const LEAST_NS = 50;

/** The same stretch moved and cut so that it lies within the trace. */
export function clamped(view: View, whole: View): View {
  const most = Math.max(whole.end - whole.start, LEAST_NS);
  const width = Math.min(Math.max(view.end - view.start, LEAST_NS), most);
  const start = Math.min(Math.max(view.start, whole.start), whole.start + most - width);
  return { start, end: start + width };
}

export function panned(view: View, by: number, whole: View): View {
  return clamped({ start: view.start + by, end: view.end + by }, whole);
}

/** Zoomed so that the time `at` stays where it is on the screen; a factor below 1 looks closer. */
export function zoomed(view: View, factor: number, at: number, whole: View): View {
  const width = view.end - view.start;
  const wanted = Math.min(Math.max(width * factor, LEAST_NS), Math.max(whole.end - whole.start, LEAST_NS));
  const share = (at - view.start) / width;
  const start = at - share * wanted;
  return clamped({ start, end: start + wanted }, whole);
}

/** A view that shows a span with some of what is around it. */
export function fitted(start: number, end: number, whole: View): View {
  const margin = Math.max((end - start) * 0.12, LEAST_NS / 4);
  return clamped({ start: start - margin, end: end + margin }, whole);
}

/**
 * A view in which a span can be distinguished from its neighbors: the present one if it can there, the same width
 * moved there if that is enough, a closer one for what would be thinner than a few pixels.
 */
export function revealed(view: View, start: number, end: number, whole: View, pixels: number): View {
  const width = view.end - view.start;
  const length = Math.max(end - start, 1);
  const thin = (length / width) * pixels < 4;
  const wide = length > width;
  if (!thin && !wide) {
    const margin = width * 0.08;
    if (start >= view.start && end <= view.end) return view;
    if (start < view.start) return panned(view, start - margin - view.start, whole);
    return panned(view, Math.min(end + margin - view.end, start - margin - view.start), whole);
  }
  if (wide) return start < view.end && end > view.start ? view : fitted(start, end, whole);
  const shown = (length * pixels) / 24;
  const middle = (start + end) / 2;
  return clamped({ start: middle - shown / 2, end: middle + shown / 2 }, whole);
}

/** A view between two others; zooming goes by equal ratios, so that it looks even. */
export function between(from: View, to: View, share: number): View {
  const before = from.end - from.start;
  const after = to.end - to.start;
  if (share >= 1 || before <= 0) return to;
  const width = before * (after / before) ** share;
  const change = after - before;
  // Where both widths differ, one point of the screen stands still on the way: the way is a plain zoom around it.
  const moved = Math.abs(change) < 1e-9 * before ? share : (width - before) / change;
  const start = from.start + (to.start - from.start) * moved;
  return { start, end: start + width };
}

export function same(a: View, b: View): boolean {
  return a.start === b.start && a.end === b.end;
}

/** `1234.5-5678` as it stands in the address, or undefined where it is no stretch of time. */
export function parsedView(start: string | undefined, end: string | undefined): View | undefined {
  if (start === undefined || end === undefined) return undefined;
  const view = { start: Number(start), end: Number(end) };
  return Number.isFinite(view.start) && Number.isFinite(view.end) && view.end > view.start ? view : undefined;
}
