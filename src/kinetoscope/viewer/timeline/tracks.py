"""The tracks of the timeline, their order and labels."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.names import device_name
from kinetoscope.model.processes import processes, thread_processes
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.steps import MARK
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.host.compiling import compile_phases
from kinetoscope.tables.step_kinds import kinds_of_steps, main_kind
from kinetoscope.viewer.timeline.counters import counter_tracks
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
from kinetoscope.viewer.timeline.runs import run_tracks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query


_OF_THREADS = (THREAD, PYTHON, MODULES, COMPILING)
SORT_NAMES = {
    THREAD: "thread",
    PYTHON: "python",
    MODULES: "modules",
    STREAM: "stream",
    STEPS: "steps",
    COMPILING: "compiling",
}


@dataclass(frozen=True, eq=False)
class Timeline:
    """All tracks that have rows of items.

    Attributes:
        tracks: The tracks in the order of the page, by process.
        by_id: The same by their numbers.
    """

    tracks: list[Track]
    by_id: dict[int, Track]


@derived
def timeline(trace: Trace) -> Timeline:
    """Return the tracks of a trace, which are cached."""
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

    tracks = sorted(unsorted, key=place)
    return Timeline(tracks, {track.id: track for track in tracks})


def tracks(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `tracks`: the tracks of the timeline by process, and start and end of the trace."""
    threads, rows = trace.columns("threads"), processes(trace).to_pylist()
    groups: list[dict[str, Any]] = [
        {"label": process_label(row), "process": row["process"], "rank": row["rank"], "tracks": []}
        for row in rows
    ]
    for track in timeline(trace).tracks:
        label, detail, device = _described(trace, threads, track)
        groups[min(track.process, len(groups) - 1)]["tracks"].append({
            "id": track.id,
            "label": label,
            "sort": SORT_NAMES[track.sort],
            "rows": track.count,
            "spans": track.items,
            "device": device,
            "detail": detail,
            "of": track_id(THREAD, track.number) if track.sort in (PYTHON, MODULES) else None,
            "runs": track.rows.spans is None,
        })  # fmt: skip
    for process, counter in counter_tracks(trace):
        groups[min(process, len(groups) - 1)]["tracks"].append(counter)
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
    track_of = timeline(trace).by_id
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
    limit = np.where(process[1:] == process[:-1], start[1:] - start[:-1], np.iinfo(np.int64).max)
    duration = np.clip(
        steps["duration_ns"][step_rows], 0, np.append(limit, np.iinfo(np.int64).max)[: len(start)]
    )
    texts = [f"{MARK}{number}" for number in steps["number"][step_rows].tolist()]
    labels = (np.arange(len(step_rows), dtype=np.int32), texts, SpanKind.STEP)
    return tracks_of_items(STEPS, process, np.zeros(len(step_rows), np.int64), start, duration, labels)


def _compile_tracks(trace: Trace, process: NDArray[np.int32]) -> list[Track]:
    """Return tracks of torch.compile, one for each thread: compilations, and their phases in the row below."""
    phases, spans = compile_phases(trace), trace.columns("spans")
    start, duration = spans["start_ns"][phases.span], np.maximum(spans["duration_ns"][phases.span], 0)
    labels = (np.arange(len(phases.span), dtype=np.int32), phases.text, SpanKind.USER_ANNOTATION)
    return tracks_of_items(
        COMPILING, spans["thread"][phases.span], phases.level, start, duration, labels, process
    )


def _described(trace: Trace, threads: Any, track: Track) -> tuple[str, str, str | None]:
    """Return the label of a track, its details, and its device."""
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
    used = {track.thread: track.process for track in timeline(trace).tracks if track.sort in _OF_THREADS}
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
