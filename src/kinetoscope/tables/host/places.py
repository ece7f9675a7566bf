"""Spans of one name grouped by place (input shapes, line, stack or module), their durations, and the spans one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError, checked_choice, checked_whole
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import operator_spans
from kinetoscope.model.names import frame_texts, stack_frames
from kinetoscope.model.rows import Mask, Rows, StackRow, mask_of
from kinetoscope.model.schema import KIND_NAMES, SpanKind
from kinetoscope.model.steps import STEP_KEY
from kinetoscope.model.strings import to_utf8
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.stacks import user_frames, user_stacks
from kinetoscope.tables.stored import Shown

PLACES = ("shape", "line", "stack", "module")

CALLER = " ← "
"""Separates the frames of a stack in one text, innermost first."""

_MOST_FRAMES = 16


@derived
def place_labels(trace: TraceData, by: str) -> Labels:
    """The label of every span's place, of the kind `by` (one of `PLACES`); -1 for none."""
    spans = trace.columns("spans")
    if by == "shape":
        return _each_once(shapes_of(trace), trace.columns("shapes")["dims"])
    if by == "module":
        return _each_once(spans["module"], trace.columns("modules")["path"])
    stacks = user_stacks(trace)
    user_stack = np.append(stacks, np.int32(-1))[spans["stack"]]
    used = np.unique(user_stack[user_stack >= 0])
    texts = [""] * len(stacks)
    is_user, frames = user_frames(trace), frame_texts(trace)
    for row in used.tolist():
        texts[row] = _stack_text(trace, StackRow(row), 1 if by == "line" else _MOST_FRAMES, is_user, frames)
    return _each_once(user_stack, texts)


def _stack_text(trace: TraceData, stack: StackRow, most: int, is_user: Mask, frames: Sequence[str]) -> str:
    """The user's frames of a stack as text, innermost first. The innermost frame must be the user's."""
    rows = stack_frames(trace, stack, None if most > 1 else 1)
    visible = [rows[0], *(row for row in rows[1:] if is_user[row])] if rows else []
    texts = [frames[row] for row in visible[:most]]
    return CALLER.join(texts if len(visible) <= most else [*texts, "…"])


def _each_once(ids: NDArray[Any], texts: Sequence[str]) -> Labels:
    """Labels with one number per distinct text; an empty text becomes null."""
    numbers: dict[str, int] = {}
    number_of = np.full(len(texts) + 1, -1, dtype=np.int32)
    for row in np.unique(ids[ids >= 0]).tolist():
        if texts[row]:
            number_of[row] = numbers.setdefault(texts[row], len(numbers))
    return Labels(number_of[ids], list(numbers))


def spans_of(
    trace: TraceData,
    name: str | None,
    kind: str | None = None,
    by: str | None = None,
    place: str | None = None,
) -> Rows:
    """Return the rows of `spans` behind one row of the table `ops`.

    Args:
        trace: The trace.
        name: Their name; None for all operators and backward functions.
        kind: Their kind; None for all kinds.
        by: The kind of place, one of `PLACES`; None for all places.
        place: With `by`, the place as in the table; None for spans without one.

    Raises:
        ArgumentError: Unknown kind or place, a kind or place without a name, or `place` without `by`.
    """
    if name is None:
        if (kind, by, place) != (None, None, None):
            raise ArgumentError("a kind or place needs the name of the spans, such as span='aten::mm'")
        return np.flatnonzero(operator_spans(trace).mask)
    if place is not None and by is None:
        raise ArgumentError(f"place={place!r} needs by=, which says what kind of place it is")
    if kind is not None:
        checked_choice("kind", kind, KIND_NAMES)
    spans = trace.columns("spans")
    if name == STEP_KEY:
        rows = np.flatnonzero(spans["kind"] == SpanKind.STEP)
    else:
        order, edges = _by_string(trace)
        same = [order[edges[text] : edges[text + 1]] for text in _strings(trace).get(name, [])]
        rows = np.sort(np.concatenate(same)) if same else np.zeros(0, np.int64)
    if kind is not None:
        rows = rows[spans["kind"][rows] == KIND_NAMES.index(kind)]
    if by is None:
        return rows
    labels = place_labels(trace, checked_choice("by", by, PLACES))
    if place is None:
        return rows[labels.ids[rows] < 0]
    numbers = [number for number, text in enumerate(labels.texts) if to_utf8(text) == place]
    return rows[np.isin(labels.ids[rows], numbers)]


@derived
def _by_string(trace: TraceData) -> tuple[Rows, Rows]:
    """The spans sorted by name, and where those of each string begin and end."""
    return Groups(trace.column("spans", "name"), len(trace.strings)).rows()


@derived
def _strings(trace: TraceData) -> dict[str, list[int]]:
    """Map each name of spans, as valid UTF-8, to its rows of `strings`."""
    used = mask_of(trace.column("spans", "name"), len(trace.strings))
    rows_of: dict[str, list[int]] = {}
    for row in np.flatnonzero(used).tolist():
        rows_of.setdefault(to_utf8(trace.strings[row]), []).append(row)
    return rows_of


_BARS = 40


def durations(trace: TraceData, rows: Rows) -> dict[str, Any]:
    """Return statistics on the durations of some rows of `spans`.

    Returns:
        `edges_ns`: the edges of the histogram's buckets; empty without spans. `counts`: the number of spans in each bucket. `calls`: the
        number of spans. `total_ns`: the sum. `mean_ns`, `min_ns`, `median_ns`, `p95_ns` (95 % took at most this long) and `max_ns`: None
        without spans.
    """
    sorted_ns = np.sort(trace.column("spans", "duration_ns")[rows])
    edges, calls = histogram_edges(sorted_ns), len(sorted_ns)
    counts = np.diff(np.searchsorted(sorted_ns, edges)) if calls else edges
    ranks = {"min_ns": 0, "median_ns": calls // 2, "p95_ns": int(calls * 0.95), "max_ns": calls - 1}
    return {
        "edges_ns": edges.tolist(),
        "counts": counts.tolist(),
        "calls": calls,
        "total_ns": int(sorted_ns.sum()),
        "mean_ns": float(sorted_ns.mean()) if calls else None,
        **{name: int(sorted_ns[rank]) if calls else None for name, rank in ranks.items()},
    }


def histogram_edges(durations: Rows) -> Rows:
    """The logarithmic bucket edges for sorted durations. Durations of zero have their own bucket."""
    if len(durations) == 0:
        return np.zeros(0, np.int64)
    low, high = max(int(durations[0]), 1), int(durations[-1]) + 1
    between = np.geomspace(low, max(high, low), _BARS + 1)[1:-1].round().astype(np.int64)
    ends = [0, 1] if durations[0] <= 0 else [low]
    return np.asarray(np.unique(np.concatenate((ends, np.clip(between, low, high), [high]))))


def histogram(
    trace: TraceData,
    *,
    span: str | None = None,
    kind: str | None = None,
    by: str | None = None,
    place: str | None = None,
) -> ArrowTable:
    """Return the `histogram` table.

    Args:
        trace: The trace.
        span: The name of the spans, as in `ops`; None for all operators and backward functions.
        kind: Their kind; None for all kinds.
        by: Only spans of one place: `shape`, `line`, `stack` or `module`.
        place: With `by`, the place, as in `table("ops", by=...)`; None for spans without one.

    Returns:
        The table, the shortest first; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: Unknown kind, `by` or place, or one of them without a name.
    """
    lasted = durations(trace, spans_of(trace, span, kind, by, place))
    edges, counts = (np.array(lasted[name], np.int64) for name in ("edges_ns", "counts"))
    return to_arrow("histogram", {"from_ns": edges[:-1], "below_ns": edges[1:], "count": counts})


def instances(
    trace: TraceData,
    *,
    span: str | None = None,
    kind: str | None = None,
    by: str | None = None,
    place: str | None = None,
    from_ns: int | None = None,
    below_ns: int | None = None,
    limit: int | None = None,
) -> ArrowTable:
    """Return the `instances` table: the individual spans behind a row of `ops` or `histogram`.

    Args:
        trace: The trace.
        span: The name of the spans, as in `ops`; None for all operators and backward functions.
        kind: Their kind; None for all kinds.
        by: Only spans of one place: `shape`, `line`, `stack` or `module`.
        place: With `by`, the place, as in `table("ops", by=...)`; None for spans without one.
        from_ns: Only durations from here on.
        below_ns: Only durations below this.
        limit: The largest number of rows; None for all.

    Returns:
        The table, the longest first; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: Unknown kind, `by` or place, or one of them without a name; or a number that is negative or not an integer.
    """
    for name, number in (("from_ns", from_ns), ("below_ns", below_ns), ("limit", limit)):
        if number is not None:
            checked_whole(name, number, 0)
    rows = lasting(trace, spans_of(trace, span, kind, by, place), from_ns, below_ns)
    return instances_of(trace, rows, limit)


def lasting(trace: TraceData, rows: Rows, from_ns: float | None, below_ns: float | None) -> Rows:
    """The rows of `spans` among `rows` with durations in [`from_ns`, `below_ns`); None for no bound."""
    duration = trace.column("spans", "duration_ns")[rows]
    least, beyond = -np.inf if from_ns is None else from_ns, np.inf if below_ns is None else below_ns
    return rows[(duration >= least) & (duration < beyond)]


def instances_of(trace: TraceData, rows: Rows, limit: int | None = None) -> ArrowTable:
    """Return the rows of `instances` for some rows of `spans`: the longest `limit`, or all."""
    spans = trace.columns("spans")
    if limit is not None and len(rows) > limit:
        rows = rows[np.argpartition(-spans["duration_ns"][rows], limit)[:limit]]
    rows = rows[np.lexsort((rows, -spans["duration_ns"][rows]))]
    columns = Shown(trace, "spans", rows)
    columns |= {"span": rows, "shapes": Labels(shapes_of(trace)[rows], trace.columns("shapes")["dims"])}
    return to_arrow("instances", columns)
