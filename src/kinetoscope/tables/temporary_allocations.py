"""Temporary allocations: memory that was allocated and freed within one operator, one module call, or one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope._errors import ArgumentError, ArgumentTypeError, checked_choice
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.nesting import nest
from kinetoscope.model.schema import Column, SpanKind, Table
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.host.rebuilt_calls import rebuilt_calls, shown_frames
from kinetoscope.tables.memory import memories
from kinetoscope.tables.memory.blocks import NEVER_NS, blocks_of, processes_of
from kinetoscope.tables.memory.categories import CATEGORY_NAMES, judged_blocks
from kinetoscope.tables.memory.peak import GROUPINGS, HOLDERS, grouped, holders, live_at, top_of
from kinetoscope.tables.memory.timeline import device_names, find_device
from kinetoscope.tables.shares import percent

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

    Rows = NDArray[np.int64]

SCOPES = ("operator", "module", "step")
"""What a temporary allocation is freed within, the smallest first."""

TEMPORARY_ALLOCATIONS_SCHEMA = Table(
    "temporary_allocations",
    "Memory of a device that was allocated and freed within one operator, one module call or one step, by category, module, "
    "operator and source line. Most bytes first. An allocation is in one row at most; one whose free was not seen is in none.",
    (
        Column("bytes", "int64", "bytes", "The sum of the sizes of all these allocations, however short they lived.", 0),
        Column("allocated_percent", "float64", "%", "Their share of all bytes that were allocated on the device."),
        Column("allocations", "int64", "", "How many allocations.", 0),
        Column("largest_bytes", "int64", "bytes", "The size of the largest.", 0),
        Column("mean_lifetime_ns", "int64", "ns", "Their mean time from allocation to free."),
        Column("longest_lifetime_ns", "int64", "ns", "The longest of these times."),
        Column("peak_bytes", "int64", "bytes", "What they held at the memory peak of the device.", 0),
        Column("peak_percent", "float64", "%", "Its share of the attributed peak."),
        Column(
            "within",
            "category",
            "",
            "The smallest of these that contains allocation and free: operator (the outermost one, in backward the backward "
            "function), module (the innermost call around the allocation), step.",
        ),
        Column("category", "category", "", f"Their category: {', '.join(CATEGORY_NAMES)}."),
        Column("module", "category", "", "The path of the module they belong to."),
        Column(
            "operator",
            "category",
            "",
            "The operator that allocated them, or that called an operator such as `aten::empty` to do so.",
        ),
        Column(
            "line",
            "category",
            "",
            "The innermost line of the user's code that allocated them, as `file(line): function`; in backward the line "
            "of the forward operator.",
        ),
        Column("largest_ns", "int64", "ns", "When the largest was allocated.", 0),
        Column("span", "int32", "row of spans", "The span that allocated the largest."),
        Column("device", "category", "", "The device as torch writes it, such as `cuda:0`."),
    ),
)  # fmt: skip


def temporary_allocations(
    trace: TraceData,
    *,
    device: str | None = None,
    rows: int | None = None,
    by: str = "all",
    shorter_than_ns: int | None = None,
) -> pyarrow.Table:
    """Return the `temporary_allocations` table.

    Args:
        trace: The trace.
        device: The device, such as `cpu` or `cuda:0`; None: the one that held the most.
        rows: At most this many rows; None: all.
        by: `category`, `module`, `operator` or `line` to group by that alone, and by `within`; the other three are null.
        shorter_than_ns: Only allocations that lived for less than this; None: all.

    Returns:
        The table, without rows if no memory was recorded; the meaning of its columns is in `TEMPORARY_ALLOCATIONS_SCHEMA`.

    Raises:
        ArgumentError: No memory of that device was recorded, another value of `by`, or a number that is not a whole one.
    """
    for name, value in (("rows", rows), ("shorter_than_ns", shorter_than_ns)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
            raise ArgumentTypeError(f"{name}={value!r} is not valid: use a whole number, or None")
        if value is not None and value < 0:
            raise ArgumentError(f"{name}={value} is not valid: use 0 or more")
    place = find_device(trace, device)
    here = np.flatnonzero(blocks_of(trace).device == place)
    at = top_of(trace, place)
    columns = _columns(trace, here, live_at(trace, at), by=by, shorter_than_ns=shorter_than_ns)
    columns["device"] = Labels(np.full(len(columns["bytes"]), place), device_names(trace))
    table = to_arrow(TEMPORARY_ALLOCATIONS_SCHEMA, columns, np.argsort(-columns["bytes"], kind="stable"))
    return table if rows is None else table.slice(0, rows)


def _columns(
    trace: TraceData, here: Rows, live: Rows, *, by: str = "all", shorter_than_ns: int | None = None
) -> dict[str, Any]:
    """Return the columns of `temporary_allocations`, except `device`, for some blocks; unsorted.

    Args:
        trace: The trace.
        here: The blocks of a memory.
        live: Those of them that were live at its peak.
        by: One of `GROUPINGS`.
        shorter_than_ns: Only blocks that lived for less than this.

    Raises:
        ArgumentError: Another value of `by`.
    """
    checked_choice("by", by, tuple(GROUPINGS))
    blocks, scope = blocks_of(trace), freed_within(trace)
    rows = here[scope[here] >= 0]
    lifetime = blocks.end_ns[rows] - blocks.start_ns[rows]
    if shorter_than_ns is not None:
        rows, lifetime = rows[lifetime < shorter_than_ns], lifetime[lifetime < shorter_than_ns]
    found = holders(trace, rows)
    group_of, first = grouped([scope[rows], *(found[name].ids for name in GROUPINGS[by])])
    size = blocks.bytes[rows]
    at_peak = np.isin(rows, live)
    # The largest of each group is the first of it in descending order of size.
    order = np.argsort(-size, kind="stable")
    _, top = np.unique(group_of[order], return_index=True)
    largest = order[top]
    total, count = _core.group_sums(group_of, len(first), size), _core.group_counts(group_of, len(first))
    longest = np.zeros(len(first), np.int64)
    np.maximum.at(longest, group_of, lifetime)
    held = _core.group_sums(group_of, len(first), np.where(at_peak, size, 0))
    recorded = here[blocks.recorded[here]]
    return {
        "bytes": total,
        "allocated_percent": percent(total, int(blocks.bytes[recorded].sum())),
        "allocations": count,
        "largest_bytes": size[largest],
        "mean_lifetime_ns": _core.group_sums(group_of, len(first), lifetime) // np.maximum(count, 1),
        "longest_lifetime_ns": longest,
        "peak_bytes": held,
        "peak_percent": percent(held, int(blocks.bytes[live].sum())),
        "within": Labels(scope[rows][first], SCOPES),
        **dict.fromkeys(HOLDERS),
        **{name: Labels(found[name].ids[first], found[name].texts) for name in GROUPINGS[by]},
        "largest_ns": blocks.start_ns[rows][largest],
        "span": blocks.span[rows][largest],
        "stack": judged_blocks(trace).stack[rows][largest],
    }


def of_memory(
    trace: TraceData, device: str | None = None, *, by: str = "all", shorter_than_ns: int | None = None
) -> pyarrow.Table:
    """Return the table of one of `memories.places`, with the Python stack of the largest allocation of each row.

    Args:
        trace: The trace.
        device: As for `memories.curve`.
        by: One of `GROUPINGS`.
        shorter_than_ns: Only allocations that lived for less than this; None: all.

    Raises:
        ArgumentError: No such device or grouping.
    """
    place = memories.chosen(trace, device)
    live = place.live(place.rank_at(None))
    columns = _columns(trace, place.block, live, by=by, shorter_than_ns=shorter_than_ns)
    hidden = {"device", *(name for name in GROUPINGS["all"] if name not in GROUPINGS[by])}
    shown = tuple(column for column in TEMPORARY_ALLOCATIONS_SCHEMA.columns if column.name not in hidden)
    table = Table("temporary", "Temporary allocations.", (*shown, memories.STACK))
    return to_arrow(table, columns, np.argsort(-columns["bytes"], kind="stable"))


def largest_stacks(trace: TraceData, device: str | None = None) -> NDArray[np.int32]:
    """Return the rows of `stacks` to which the table of a memory refers, -1 for none.

    Raises:
        ArgumentError: No such device.
    """
    place = memories.chosen(trace, device)
    found: NDArray[np.int32] = _columns(trace, place.block, place.live(place.rank_at(None)))["stack"]
    return found


@dataclass(frozen=True)
class TemporarySummary:
    """How much of what was allocated in a memory was temporary, and of how much that is not known.

    Attributes:
        allocations: How many allocations were recorded.
        allocated_bytes: The sum of their sizes.
        within: For each of `SCOPES` the number of allocations that were freed within it, and the sum of their sizes.
        peak_bytes: What was live at the peak.
        temporary_peak_bytes: How much of that was temporary.
        not_freed: How many allocations were not freed during the recording.
        not_freed_bytes: The sum of their sizes.
        unseen_frees: How many were freed at an unknown time: their address was allocated again, but no free was recorded. They count as not
            temporary.
        unseen_free_bytes: The sum of their sizes.
        module_calls: Whether the trace shows when module calls began and ended.
        steps: Whether the trace has steps.
    """

    allocations: int
    allocated_bytes: int
    within: dict[str, tuple[int, int]]
    peak_bytes: int
    temporary_peak_bytes: int
    not_freed: int
    not_freed_bytes: int
    unseen_frees: int
    unseen_free_bytes: int
    module_calls: bool
    steps: bool


def summary(trace: TraceData, device: str | None = None) -> TemporarySummary:
    """Summarize the temporary allocations of one of `memories.places`.

    Args:
        trace: The trace.
        device: As for `memories.curve`.

    Raises:
        ArgumentError: There is no such device.
    """
    place = memories.chosen(trace, device)
    here, live = place.block, place.live(place.rank_at(None))
    blocks, scope = blocks_of(trace), freed_within(trace)
    recorded = here[blocks.recorded[here]]
    size = blocks.bytes
    stays = recorded[blocks.end_ns[recorded] == NEVER_NS]
    unseen = recorded[(blocks.end_ns[recorded] < NEVER_NS) & ~_free_seen(trace)[recorded]]
    return TemporarySummary(
        allocations=len(recorded),
        allocated_bytes=int(size[recorded].sum()),
        within={
            name: (len(rows), int(size[rows].sum()))
            for place, name in enumerate(SCOPES)
            for rows in (recorded[scope[recorded] == place],)
        },
        peak_bytes=int(size[live].sum()),
        temporary_peak_bytes=int(size[live][scope[live] >= 0].sum()),
        not_freed=len(stays),
        not_freed_bytes=int(size[stays].sum()),
        unseen_frees=len(unseen),
        unseen_free_bytes=int(size[unseen].sum()),
        module_calls=len(_module_calls(trace).start_ns) > 0,
        steps=len(trace.columns("steps")) > 0,
    )


@derived
def freed_within(trace: TraceData) -> NDArray[np.int8]:
    """Return for each block the smallest of `SCOPES` in which it was allocated and freed; -1 for blocks that are not temporary."""
    judged, blocks = judged_blocks(trace), blocks_of(trace)
    found = np.full(len(blocks), -1, np.int8)
    known = np.flatnonzero(_free_seen(trace))
    end = blocks.end_ns[known]
    # The smallest scope is written last.
    for scope, until in ((2, _step_ends(trace, known)), (1, _module_ends(trace, known))):
        found[known[end <= until]] = scope
    found[known[judged.gone_with_operator[known]]] = 0
    return found


def _free_seen(trace: TraceData) -> NDArray[np.bool_]:
    """Whether both the allocation and the free of each block were recorded."""
    blocks = blocks_of(trace)
    free = np.append(trace.column("allocations", "match"), np.int32(-1))[blocks.allocation]
    seen: NDArray[np.bool_] = blocks.recorded & (free >= 0)
    return seen


def _step_ends(trace: TraceData, rows: Rows) -> Rows:
    """The end of the step in which each block was allocated; -1 outside all."""
    blocks, steps = blocks_of(trace), trace.columns("steps")
    found = np.full(len(rows), -1, np.int64)
    process = processes_of(trace, "allocations", blocks.allocation[rows])
    of_step = np.maximum(steps["process_row"], 0)
    for one in np.unique(of_step).tolist():
        mine = np.flatnonzero(of_step == one)
        mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
        start = steps["start_ns"][mine]
        end = start + steps["duration_ns"][mine]
        asked = np.flatnonzero(process == one)
        place = np.searchsorted(start, blocks.start_ns[rows[asked]], side="right") - 1
        inside = (place >= 0) & (blocks.start_ns[rows[asked]] <= end[place])
        found[asked[inside]] = end[place[inside]]
    return found


@dataclass(frozen=True)
class _Calls:
    """Calls of modules, sorted by thread and start, outer ones first."""

    thread: NDArray[np.int32]
    start_ns: Rows
    end_ns: Rows
    parent: NDArray[np.int32]


@derived
def _module_calls(trace: TraceData) -> _Calls:
    """The calls of modules: those that were recorded, else those rebuilt from the stacks of operators."""
    spans = trace.columns("spans")
    recorded = np.flatnonzero(spans["kind"] == SpanKind.MODULE)
    if len(recorded):
        thread, start = spans["thread"][recorded], spans["start_ns"][recorded]
        end = start + spans["duration_ns"][recorded]
    else:
        calls = rebuilt_calls(trace, shown_frames(trace))
        if calls is None:
            nothing = np.zeros(0, np.int64)
            return _Calls(nothing.astype(np.int32), nothing, nothing, nothing.astype(np.int32))
        rows = np.flatnonzero(calls.module >= 0)
        thread, start = calls.thread[rows], calls.start_ns[rows]
        end = _until_next(trace, thread, start + calls.duration_ns[rows])
    order = np.lexsort((-(end - start), start, thread))
    thread, start, end = thread[order].astype(np.int32), start[order], end[order]
    return _Calls(thread, start, end, nest(thread, start, end - start).parent)


def _until_next(trace: TraceData, thread: NDArray[np.int32], end_ns: Rows) -> Rows:
    """When the next span of its thread began after each moment: a rebuilt call ends with its last operator, but frees its locals later."""
    spans = trace.columns("spans")
    found = end_ns.copy()
    for one in np.unique(thread).tolist():
        mine = np.flatnonzero(thread == one)
        starts = np.sort(spans["start_ns"][spans["thread"] == one])
        place = np.searchsorted(starts, end_ns[mine])
        known = place < len(starts)
        found[mine[known]] = starts[place[known]]
    return found


def _module_ends(trace: TraceData, rows: Rows) -> Rows:
    """The end of the innermost module call around the allocation of each block; -1 outside all."""
    blocks, calls = blocks_of(trace), _module_calls(trace)
    found = np.full(len(rows), -1, np.int64)
    time = blocks.start_ns[rows]
    thread = trace.column("allocations", "thread")[blocks.allocation[rows]]
    for one in np.unique(calls.thread).tolist():
        mine = np.flatnonzero(calls.thread == one)
        asked = np.flatnonzero(thread == one)
        place = np.searchsorted(calls.start_ns[mine], time[asked], side="right") - 1
        call = np.append(mine, -1)[place]
        while len(over := np.flatnonzero((call >= 0) & (calls.end_ns[call] < time[asked]))):
            call[over] = calls.parent[call[over]]
        inside = call >= 0
        found[asked[inside]] = calls.end_ns[call[inside]]
    return found
