"""The tracks of the timeline, their order and labels."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope._errors import ArgumentError
from kinetoscope.model.hierarchy import requested_calls
from kinetoscope.model.kinds import is_call, is_operator
from kinetoscope.model.names import device_name
from kinetoscope.model.nesting import spread_down
from kinetoscope.model.processes import processes, thread_processes
from kinetoscope.model.rows import ends_run, mask_of
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.steps import MARK
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.host.compiling import compile_phases
from kinetoscope.tables.host.rebuilt_calls import shown_frames
from kinetoscope.tables.step_kinds import kinds_of_steps, main_kind
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Query
from kinetoscope.viewer.timeline.counters import counters_of
from kinetoscope.viewer.timeline.rows import (
    COMPILING,
    MODULES,
    PYTHON,
    STEPS,
    STREAM,
    THREAD,
    Track,
    span_tracks,
    track_id,
    tracks_of_items,
)

_OF_THREADS = (THREAD, PYTHON, MODULES, COMPILING)
_SORT_NAMES = ("thread", "python", "modules", "stream", "steps", "counter", "memory", "compiling")


@derived
def timeline(trace: Trace) -> list[Track]:
    """Return all tracks that have rows of items, in the order of the page, by process; they are cached."""
    process = thread_processes(trace)
    unsorted = list(span_tracks(trace).tracks)
    for sort in (PYTHON, MODULES):
        unsorted += run_tracks(trace, sort, process)
    unsorted += _compile_tracks(trace, process)
    unsorted += _step_tracks(trace)
    busy = {track.number: track.busy_ns for track in unsorted if track.sort == THREAD}
    streams = trace.columns("streams")
    where = [streams[name].tolist() for name in ("device_type", "device_index", "number")]

    def place(track: Track) -> tuple[Any, ...]:
        if track.sort == STEPS:
            return (track.process, 0, track.number)
        if track.sort == STREAM:
            return (track.process, 3, *(column[track.number] for column in where), track.number)
        # Above the threads, which are deep while something is compiled.
        rank = 1 if track.sort == COMPILING else 2
        return (track.process, rank, -busy.get(track.number, 0), track.number, track.sort)

    return sorted(unsorted, key=place)


def tracks(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `tracks`: the tracks of the timeline by process, and start and end of the trace."""
    threads, rows = trace.columns("threads"), processes(trace).to_pylist()
    groups: list[dict[str, Any]] = [
        {"label": process_label(row), "process": row["process"], "rank": row["rank"], "tracks": []}
        for row in rows
    ]
    for track in timeline(trace):
        label, detail, device = _described(trace, threads, track)
        groups[min(track.process, len(groups) - 1)]["tracks"].append({
            "id": track.id,
            "label": label,
            "sort": _SORT_NAMES[track.sort],
            "rows": track.count,
            "spans": track.items,
            "device": device,
            "detail": detail,
            "of": track_id(THREAD, track.number) if track.sort in (PYTHON, MODULES) else None,
            "runs": track.rows.spans is None,
        })  # fmt: skip
    for counter in counters_of(trace):
        groups[min(counter.process, len(groups) - 1)]["tracks"].append(counter.track())
    start, end = whole_of(trace)
    return {
        "start_ns": start,
        "duration_ns": end,
        "start_realtime_ns": trace.run_info.start_realtime_ns,
        "median_step": median_step(trace),
        "groups": [group for group in groups if group["tracks"]],
    }


def median_step(trace: Trace) -> list[int] | None:
    """Return start and end of the step with the median duration of the main kind, ignoring the first ones; None unless there are several."""
    steps, counted = trace.columns("steps"), np.flatnonzero(kinds_of_steps(trace) == max(main_kind(trace), 0))
    if len(counted) < 2:
        return None
    by_duration = counted[np.argsort(steps["duration_ns"][counted], kind="stable")]
    row = by_duration[(len(counted) - 1) // 2]
    start = int(steps["start_ns"][row])
    return [start, start + int(steps["duration_ns"][row])]


def whole_of(trace: Trace) -> tuple[int, int]:
    """Return start and end of the timeline, which contains every span."""
    start = min(0, int(trace.column("spans", "start_ns").min(initial=0)))
    return start, max(trace.duration_ns, start + 1)


def chosen(trace: Trace, query: Query) -> list[Track]:
    """Return the tracks of the option `tracks`; by default all.

    Raises:
        ArgumentError: One of them is not the number of a track.
    """
    track_of = {track.id: track for track in timeline(trace)}
    text = query.get("tracks")
    if text is None:
        return list(track_of.values())
    numbers = []
    for part in filter(None, text.split(",")):
        if not part.isdecimal() or len(part) > 12 or int(part) not in track_of:
            raise ArgumentError(
                f"tracks={text[:50]!r}: there is no track {part[:12]!r}; request `tracks` for the list"
            )
        numbers.append(int(part))
    return [track_of[number] for number in dict.fromkeys(numbers)]


def _step_tracks(trace: Trace) -> list[Track]:
    """Return tracks of steps that were inferred from the optimizer instead of being marked by spans, one for each process."""
    steps = trace.columns("steps")
    unmarked = np.flatnonzero(
        np.append(trace.column("spans", "kind"), np.uint8(0))[steps["span"]] != SpanKind.STEP
    )
    process = np.maximum(steps["process_row"][unmarked], 0)
    taken = [track.number for track in span_tracks(trace).tracks if track.sort == STEPS]
    step_rows, process = (values[~np.isin(process, taken)] for values in (unmarked, process))
    order = np.lexsort((steps["start_ns"][step_rows], process))
    step_rows, process = step_rows[order], process[order]
    start = steps["start_ns"][step_rows]
    # A step ends where the next one begins.
    limit = np.where(ends_run(process), np.iinfo(np.int64).max, np.diff(start, append=0))
    duration = np.clip(steps["duration_ns"][step_rows], 0, limit)
    texts = [f"{MARK}{number}" for number in steps["number"][step_rows].tolist()]
    labels = (np.arange(len(step_rows), dtype=np.int32), texts, SpanKind.STEP)
    return tracks_of_items(STEPS, process, np.zeros(len(step_rows), np.int64), start, duration, labels)


def _compile_tracks(trace: Trace, process: NDArray[np.int32]) -> list[Track]:
    phases, spans = compile_phases(trace), trace.columns("spans")
    start, duration = spans["start_ns"][phases.span], np.maximum(spans["duration_ns"][phases.span], 0)
    labels = (np.arange(len(phases.span), dtype=np.int32), phases.text, SpanKind.USER_ANNOTATION)
    return tracks_of_items(
        COMPILING, spans["thread"][phases.span], phases.level, start, duration, labels, process
    )


def _described(trace: Trace, threads: Any, track: Track) -> tuple[str, str, str | None]:
    if track.sort == STEPS:
        details = "" if track.rows.spans is not None else "derived from optimizer calls"
        return "Steps", details, None
    if track.sort == STREAM:
        streams = trace.columns("streams")
        kind, index, number = (
            int(streams[name][track.number]) for name in ("device_type", "device_index", "number")
        )
        device = device_name(kind, index)
        label = f"stream {number}" if number >= 0 else "stream"
        name = streams["name"][track.number]
        return label, " · ".join(filter(None, (device, "" if name == label else name))), device
    name = thread_labels(trace)[track.thread]
    if track.sort == THREAD:
        tid = str(int(threads["os_tid"][track.thread]))
        return name, "" if name.endswith(tid) else f"thread {tid}", None
    if track.sort == COMPILING:
        return "torch.compile", f"phases on {name}", None
    runs = track.rows.spans is None
    if track.sort == PYTHON:
        detail = "from operators' stacks" if runs else "recorded calls"
        return f"{name} · Python", detail, None
    detail = "from operators" if runs else "recorded module calls"
    return f"{name} · modules", detail, None


@derived
def thread_labels(trace: Trace) -> dict[int, str]:
    """Return the labels of threads; with their number if two threads of a process have the same name."""
    threads = trace.columns("threads")
    used = {track.thread: track.process for track in timeline(trace) if track.sort in _OF_THREADS}
    names = {thread: threads["name"][thread] for thread in used}
    often = collections.Counter((used[thread], name) for thread, name in names.items())
    labels = {}
    for thread, name in names.items():
        tid = int(threads["os_tid"][thread])
        alone = often[used[thread], name] == 1
        labels[thread] = (name if alone else f"{name} {tid}") if name else f"thread {tid}"
    return labels


def process_label(row: dict[str, Any]) -> str:
    """Return the label of a process."""
    parts = [] if row["rank"] is None else [f"rank {row['rank']}"]
    parts.append(row["name"] or "process")
    if row["process"] is not None:
        parts.append(f"({row['process']})")
    return " ".join(parts)


# Runs: Python functions and modules over time if their calls were not recorded, reconstructed from the stacks of operators.
#
# Consecutive operators of a thread with a common function (or module) in their stacks are one run of it, from the start of the
# first to the end of the last. Two calls in a row without an operator between them become one run; a call without operators has
# none.


def run_tracks(trace: Trace, sort: int, process: NDArray[np.int32]) -> list[Track]:
    """Return the tracks of runs, one for each thread that has runs.

    Args:
        trace: The trace.
        sort: `PYTHON` or `MODULES`. A thread whose calls were recorded has no runs.
        process: For each thread the row of its process.
    """
    if len(trace.columns("stacks" if sort == PYTHON else "modules")) == 0:
        return []
    nodes, parent, names, texts = _functions(trace) if sort == PYTHON else _modules(trace)
    of_threads = _operators(trace, nodes, sort)
    if not (of_threads[-1] >= 0).any():
        return []
    runs = joined(*of_threads, parent)
    kind = SpanKind.PYTHON if sort == PYTHON else SpanKind.MODULE
    labels = (names[runs["node"]], texts, kind)
    where, times = (runs["thread"], runs["depth"]), (runs["start_ns"], runs["duration_ns"])
    return tracks_of_items(sort, *where, *times, labels, process)


def joined(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    node: NDArray[np.int32],
    parent: NDArray[np.int32],
) -> dict[str, NDArray[Any]]:
    """Join consecutive spans of the same nodes into runs.

    Args:
        thread: The thread of each span, ascending. Spans of one thread are nested, and sorted by start, outer ones first.
        start_ns: Start of each span.
        end_ns: End of each span.
        node: The innermost node of each span in the tree; -1 for none.
        parent: The tree: for each node its parent, -1 for a root.

    Returns:
        The columns of the runs: `thread`, `depth` (their nesting: runs of one thread and depth do not overlap), `start_ns`, `duration_ns`
        and `node`, in order of the first three. A run ends with its last span, but not after the start of the next span that is not part of it.
    """
    distinct, path = np.unique(node, return_inverse=True)
    above = parent.tolist()
    begins, steps = [0], list[int]()
    for innermost in distinct.tolist():
        around = []
        while innermost >= 0:
            around.append(innermost)
            innermost = above[innermost]
        steps += reversed(around)
        begins.append(len(steps))
    keys = np.array(steps, np.int32)
    calls = _core.rebuild_calls(
        thread,
        start_ns,
        end_ns - start_ns,
        path.astype(np.int32),
        # Nothing says where one call ended and the next began.
        np.zeros(len(thread), np.uint16),
        np.array(begins, np.int32),
        keys,
        np.zeros_like(keys),
    )
    order = np.lexsort((calls["start_ns"], calls["depth"], calls["thread"]))
    columns = {name: calls[name][order] for name in ("thread", "depth", "start_ns", "duration_ns")}
    return columns | {"node": keys[calls["step"][order]]}


def _operators(
    trace: Trace, nodes: NDArray[np.int32], sort: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    spans = trace.columns("spans")
    kind = spans["kind"]
    # A runtime call has no stack of its own, so it gets that of the span around it.
    node = spread_down(spans["parent"], spans["depth"], nodes, -1)
    used = (spans["lane"] == 0) & (spans["stream"] < 0) & ~is_call(kind)
    recorded = SpanKind.PYTHON if sort == PYTHON else SpanKind.MODULE
    calls = (kind == recorded) & requested_calls(trace)
    used &= ~mask_of(spans["thread"][calls], len(trace.columns("threads")) + 1)[spans["thread"]]
    has_node = node >= 0
    if sort == MODULES:
        # Without a module, these are known to be outside of all.
        has_node |= is_operator(kind) | (kind == SpanKind.USER_ANNOTATION) | (kind == SpanKind.COLLECTIVE)
    used &= has_node
    rows = np.flatnonzero(used)
    start = spans["start_ns"][rows]
    return spans["thread"][rows], start, start + np.maximum(spans["duration_ns"][rows], 0), node[rows]


def _functions(trace: Trace) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], list[str]]:
    """For each span its innermost call, the call tree, and the names of its nodes. A call is identified by its caller's line, function and file."""
    stacks, frames = trace.columns("stacks"), trace.columns("frames")
    tree = shown_frames(trace)
    rows = np.flatnonzero(tree.row[:-1] == np.arange(len(stacks)))
    frame = stacks["frame"][rows]
    function, file = np.append(frames["function"], 0)[frame], np.append(tree.file, 0)[frame]
    called, name = np.unique(function * np.int64(len(tree.strings)) + file, return_inverse=True)
    around = tree.parent[rows].astype(np.int64) + 1
    keys, of_row = np.unique(around * max(len(called), 1) + name, return_inverse=True)
    node_of = np.full(len(stacks) + 1, -1, np.int32)
    node_of[rows] = of_row
    above, names = np.divmod(keys, max(len(called), 1))
    texts = [_call_name(tree.strings, *divmod(pair, len(tree.strings))) for pair in called.tolist()]
    nodes = node_of[tree.row[trace.column("spans", "own_stack")]]
    return nodes, node_of[above - 1], names.astype(np.int32), texts


def _call_name(strings: list[str], function: int, file: int) -> str:
    if not strings[file]:
        return strings[function]
    return f"{strings[function]} ({'/'.join(strings[file].split('/')[-2:])})"


def _modules(trace: Trace) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], list[str]]:
    """Return for each span its module, in backward that of its forward operator; the module tree, and the modules' paths."""
    modules = trace.columns("modules")
    return (
        trace.column("spans", "module"),
        modules["holder"],
        np.arange(len(modules), dtype=np.int32),
        modules["path"],
    )
