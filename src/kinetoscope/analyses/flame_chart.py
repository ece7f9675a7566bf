"""Call stacks over time, as a flame chart: Python functions, modules and operators of one thread, each inside what called it.

In contrast to a flame graph, calls are not merged: what is further left ran earlier. Calls that were not recorded are rebuilt from the
stacks of operators, see `tables.host.rebuilt_calls`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.nesting import nest
from kinetoscope.model.schema import KIND_NAMES, Column, SpanKind, Table
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.host.rebuilt_calls import rebuilt_calls, shown_frames
from kinetoscope.tables.stacks import user_frames, user_stacks

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.host.rebuilt_calls import RebuiltCalls

LEAST_SHARE = 2_000
"""What lasts for less than the window divided by this has no box of its own."""

FLAME_CHART_SCHEMA = Table(
    "flame_chart",
    "A box of a flame chart: a call of a Python function or module, an operator or another span, or several short ones. Outer ones first, "
    "then by time.",
    (
        Column("parent", "int32", "row", "The row of the box around it."),
        Column("start_ns", "int64", "ns", "When it began.", 0),
        Column("duration_ns", "int64", "ns", "How long it lasted.", 0),
        Column("self_ns", "int64", "ns", "The part of it in which nothing that is inside it ran.", 0),
        Column("count", "int64", "", "How many it stands for: 1, or more where they are too short to be drawn.", 0),
        Column("kind", "category", "", f"Its kind: {', '.join(KIND_NAMES)}; null for several."),
        Column("name", "category", "", "Its name; of the call of a module its path."),
        Column("class", "category", "", "The class of the module."),
        Column("file", "category", "", "The file of the function; of anything else, that of the innermost line of the user's code."),
        Column("line", "int64", "", "The line in that file."),
        Column("user", "bool", "", "Whether it is a function of the user's code.", 0),
        Column("rebuilt", "bool", "", "Whether it was rebuilt from the stacks of operators, so that it begins and ends with operators.", 0),
        Column("span", "int32", "row of spans", "The span."),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class _Boxes:
    """All boxes of a thread, outer ones first, then by time."""

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    self_ns: NDArray[np.int64]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    module: NDArray[np.int32]
    frame: NDArray[np.int32]
    span: NDArray[np.int32]


@dataclass(frozen=True)
class ChartThread:
    """A thread that has a flame chart.

    Attributes:
        thread: Its row in `threads`.
        start_ns: When its first span began.
        end_ns: When its last one ended.
        spans: How many spans it has.
        overlapping: How many of them have no box, because they overlap others without being inside them.
    """

    thread: int
    start_ns: int
    end_ns: int
    spans: int
    overlapping: int


def chart_threads(trace: TraceData) -> list[ChartThread]:
    """Return the threads that have a flame chart, the one with most spans first."""
    spans = trace.columns("spans")
    host = _on_host(trace)
    found = []
    for thread in np.unique(spans["thread"][host]).tolist():
        mine = np.flatnonzero(host & (spans["thread"] == thread))
        start = spans["start_ns"][mine]
        found.append(
            ChartThread(
                thread,
                int(start.min()),
                int((start + spans["duration_ns"][mine]).max()),
                len(mine),
                int((spans["lane"][mine] != 0).sum()),
            )
        )
    return sorted(found, key=lambda one: (-one.spans, one.thread))


def flame_chart(
    trace: TraceData,
    *,
    thread: int | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    library: bool = True,
    least_ns: int | None = None,
) -> pyarrow.Table:
    """Return the flame chart of a thread.

    Args:
        trace: The trace.
        thread: The row of the thread in `threads`; None: the one with most spans.
        start_ns: Only boxes that end after this time; None: all.
        end_ns: Only boxes that begin before this time; None: all.
        library: Whether to show Python functions of torch itself.
        least_ns: What is shorter is joined with its neighbors inside the same box, and has nothing inside; None: the window divided by
            `LEAST_SHARE`. 0 shows everything.

    Returns:
        The boxes; the meaning of the columns is in `FLAME_CHART_SCHEMA`. Times are those of the trace, also outside of the window.

    Raises:
        ArgumentError: There is no such thread.
    """
    known = [one.thread for one in chart_threads(trace)]
    if thread is None:
        thread = known[0] if known else -1
    elif thread not in known:
        raise ArgumentError(f"thread={thread} is not valid: no spans of the host were recorded on it")
    boxes = _boxes(trace, thread, library)
    first = int(boxes.start_ns.min(initial=0)) if start_ns is None else start_ns
    last = int((boxes.start_ns + boxes.duration_ns).max(initial=1)) if end_ns is None else end_ns
    least = max(last - first, 0) // LEAST_SHARE if least_ns is None else least_ns
    inside = (boxes.start_ns < last) & (boxes.start_ns + boxes.duration_ns > first)
    inside |= (boxes.duration_ns == 0) & (boxes.start_ns == first)
    long = inside & (boxes.duration_ns >= least)
    # A box of which the outer one is too short is part of that.
    short = inside & ~long & np.append(long, True)[boxes.parent]
    return _table(trace, boxes, np.flatnonzero(long), np.flatnonzero(short), max(least, 1))


def _table(
    trace: TraceData, boxes: _Boxes, long: NDArray[np.int64], short: NDArray[np.int64], least_ns: int
) -> pyarrow.Table:
    """Make the table of some boxes; short ones that begin in the same interval inside the same box are one."""
    interval = boxes.start_ns[short] // least_ns
    parent = boxes.parent[short]
    fresh = np.ones(len(short), bool)
    order = np.lexsort((boxes.start_ns[short], parent))
    short, parent, interval = short[order], parent[order], interval[order]
    fresh[1:] = (parent[1:] != parent[:-1]) | (interval[1:] != interval[:-1])
    heads = np.flatnonzero(fresh)
    count = np.diff(np.append(heads, len(short)))
    end = boxes.start_ns[short] + boxes.duration_ns[short]
    until = np.maximum.reduceat(end, heads) if len(heads) else end
    row = np.concatenate((long, short[heads]))
    start = boxes.start_ns[row]
    duration = np.concatenate((boxes.duration_ns[long], until - start[len(long) :]))
    many = np.concatenate((np.zeros(len(long), np.int64), count)) > 1
    # Boxes come before those inside them: the depth decides between those that begin together.
    sorting = np.lexsort((boxes.depth[row], start))
    row, duration, many = row[sorting], duration[sorting], many[sorting]
    place = np.full(len(boxes.start_ns) + 1, -1, np.int32)
    place[row] = np.arange(len(row), dtype=np.int32)
    frames, modules, strings = trace.columns("frames"), trace.columns("modules"), trace.strings
    kind, frame, module = (np.where(many, none, values[row]) for none, values in (
        (-1, boxes.kind.astype(np.int32)), (-1, boxes.frame), (-1, boxes.module),
    ))  # fmt: skip
    is_function = kind == SpanKind.PYTHON
    is_module = (kind == SpanKind.MODULE) & (module >= 0)
    paths = modules["path"]
    columns: dict[str, Any] = {
        "parent": place[boxes.parent[row]],
        "start_ns": boxes.start_ns[row],
        "duration_ns": duration,
        "self_ns": np.where(many, duration, boxes.self_ns[row]),
        "count": np.concatenate((np.ones(len(long), np.int64), count))[sorting],
        "kind": Labels(kind, KIND_NAMES),
        "name": Labels(
            np.where(many, -1, np.where(is_module, len(strings) + module, boxes.name[row])),
            [*strings, *(path or "(the model)" for path in paths)],
        ),
        "class": Labels(np.where(is_module, np.append(modules["class"], -1)[module], -1), strings),
        "file": Labels(np.append(frames["file"], -1)[frame], strings),
        "line": np.append(frames["line"], -1)[frame],
        "user": is_function & (np.append(user_frames(trace), False)[frame] if len(frames) else False),
        "rebuilt": ~many & (boxes.span[row] < 0),
        "span": np.where(many, -1, boxes.span[row]),
    }
    return to_arrow(FLAME_CHART_SCHEMA, columns)


def _on_host(trace: TraceData) -> NDArray[np.bool_]:
    """Which spans ran on threads; not steps, which begin in one call and end in another."""
    spans = trace.columns("spans")
    found: NDArray[np.bool_] = (spans["stream"] < 0) & (spans["kind"] != SpanKind.STEP)
    return found


@derived
def _calls(trace: TraceData) -> RebuiltCalls | None:
    """The calls of a trace that were rebuilt."""
    return rebuilt_calls(trace, shown_frames(trace))


def _boxes(trace: TraceData, thread: int, library: bool) -> _Boxes:
    """Return the boxes of a thread; those of the last one are cached."""
    kept: dict[tuple[int, bool], _Boxes] = trace.cached("flame chart: boxes", dict)
    found = kept.get((thread, library))
    if found is None:
        found = _made(trace, thread, library)
        kept.clear()
        kept[thread, library] = found
    return found


def _made(trace: TraceData, thread: int, library: bool) -> _Boxes:
    """Nest spans and rebuilt calls of a thread."""
    spans, stacks = trace.columns("spans"), trace.columns("stacks")
    frame_of = np.append(stacks["frame"], np.int32(-1))
    rows = np.flatnonzero(_on_host(trace) & (spans["thread"] == thread) & (spans["lane"] == 0))
    kind = spans["kind"][rows]
    own = frame_of[spans["own_stack"][rows]]
    in_code = frame_of[np.append(user_stacks(trace), np.int32(-1))[spans["stack"][rows]]]
    parts: dict[str, list[NDArray[Any]]] = {
        "start_ns": [spans["start_ns"][rows]],
        "duration_ns": [np.maximum(spans["duration_ns"][rows], 0)],
        "kind": [kind],
        "name": [spans["name"][rows]],
        "module": [spans["module"][rows]],
        "frame": [np.where(kind == SpanKind.PYTHON, own, in_code)],
        "span": [rows.astype(np.int32)],
        # At the same time, a call is around what runs in it.
        "level": [spans["depth"][rows].astype(np.int64) + (1 << 20)],
    }
    calls = _calls(trace)
    if calls is not None:
        mine = np.flatnonzero(calls.thread == thread)
        parts["start_ns"].append(calls.start_ns[mine])
        parts["duration_ns"].append(calls.duration_ns[mine])
        parts["kind"].append(calls.kind[mine])
        parts["name"].append(calls.name[mine])
        parts["module"].append(calls.module[mine])
        parts["frame"].append(frame_of[calls.stack[mine]])
        parts["span"].append(np.full(len(mine), -1, np.int32))
        parts["level"].append(calls.depth[mine].astype(np.int64))
    found = {name: np.concatenate(values) for name, values in parts.items()}
    if not library and len(trace.columns("frames")):
        own_code = np.append(user_frames(trace), False)[found["frame"]]
        shown = (found["kind"] != SpanKind.PYTHON) | own_code
        found = {name: values[shown] for name, values in found.items()}
    order = np.lexsort((found["level"], -found["duration_ns"], found["start_ns"]))
    found = {name: values[order] for name, values in found.items()}
    nested = nest(np.zeros(len(order), np.int32), found["start_ns"], found["duration_ns"])
    kept = np.flatnonzero(nested.lane == 0)
    place = np.full(len(order) + 1, -1, np.int32)
    place[kept] = np.arange(len(kept), dtype=np.int32)
    return _Boxes(
        start_ns=found["start_ns"][kept],
        duration_ns=found["duration_ns"][kept],
        self_ns=nested.self_ns[kept],
        parent=place[nested.parent[kept]],
        depth=nested.depth[kept],
        kind=found["kind"][kept].astype(np.uint8),
        name=found["name"][kept].astype(np.int32),
        module=found["module"][kept].astype(np.int32),
        frame=found["frame"][kept].astype(np.int32),
        span=found["span"][kept].astype(np.int32),
    )
