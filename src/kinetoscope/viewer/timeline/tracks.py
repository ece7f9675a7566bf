"""The tracks of the timeline: which there are, in which order, and what they are called."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.processes import processes, thread_processes
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.steps import MARK
from kinetoscope.tables.device.work import Device, thread_ranks
from kinetoscope.viewer.timeline.calls import run_tracks
from kinetoscope.viewer.timeline.rows import (
    MODULES,
    PYTHON,
    STEPS,
    STREAM,
    THREAD,
    Rows,
    Track,
    rows_of,
    span_tracks,
    track_id,
)

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query

_OF_THREADS = (THREAD, PYTHON, MODULES)
SORT_NAMES = {THREAD: "thread", PYTHON: "python", MODULES: "modules", STREAM: "stream", STEPS: "steps"}

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (("tracks", {}),)
"""What a report must answer of this."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """All tracks that have rows of items.

    Attributes:
        tracks: In the order of the page, by process.
        by_id: The same by number.
    """

    tracks: list[Track]
    by_id: dict[int, Track]


def timeline(trace: Trace) -> Timeline:
    """Find the tracks of a trace, once."""

    def make() -> Timeline:
        process = thread_processes(trace)
        found = list(span_tracks(trace).tracks)
        for sort in (PYTHON, MODULES):
            found += run_tracks(trace, sort, process)
        found += _step_tracks(trace)
        busy = {track.number: track.busy_ns for track in found if track.sort == THREAD}
        streams = trace.columns("streams")
        where = [streams[name].tolist() for name in ("device_type", "device_index", "number")]

        def place(track: Track) -> tuple[Any, ...]:
            if track.sort == STEPS:
                return (track.process, 0, track.number)
            if track.sort == STREAM:
                return (track.process, 2, *(column[track.number] for column in where), track.number)
            return (track.process, 1, -busy.get(track.number, 0), track.number, track.sort)

        tracks = sorted(found, key=place)
        return Timeline(tracks, {track.id: track for track in tracks})

    return trace.cached("viewer: timeline", make)


def tracks(trace: Trace, query: Query) -> dict[str, Any]:
    """Answer `tracks`: the tracks of the timeline by process, and when the trace begins and ends."""
    from kinetoscope.viewer.timeline.counters import counter_tracks

    threads, told = trace.columns("threads"), processes(trace).to_pylist()
    groups: list[dict[str, Any]] = [
        {"label": process_label(row), "process": row["process"], "rank": row["rank"], "tracks": []}
        for row in told
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
    start = trace.column("spans", "start_ns")
    began = trace.info.get("start_realtime_ns")
    return {
        "start_ns": min(0, int(start.min(initial=0))),
        "duration_ns": trace.duration_ns,
        "start_realtime_ns": began if type(began) is int and began > 0 else None,
        "groups": [group for group in groups if group["tracks"]],
    }


def chosen(trace: Trace, query: Query) -> list[Track]:
    """The tracks that a question names in its option `tracks`; all without one.

    Raises:
        ArgumentError: One is no number of a track.
    """
    known = timeline(trace).by_id
    text = query.get("tracks")
    if text is None:
        return list(known.values())
    numbers = []
    for part in filter(None, text.split(",")):
        if not part.isdecimal() or len(part) > 12 or int(part) not in known:
            raise ArgumentError(
                f"tracks={text[:50]!r}: there is no track {part[:12]!r}; ask `tracks` which there are"
            )
        numbers.append(int(part))
    return [known[number] for number in dict.fromkeys(numbers)]


def _step_tracks(trace: Trace) -> list[Track]:
    """The steps that no span marks, which were found from the optimizer: a track of each process that has some."""
    steps = trace.columns("steps")
    unmarked = np.flatnonzero(
        np.append(trace.column("spans", "kind"), np.uint8(0))[steps["span"]] != SpanKind.STEP
    )
    taken = {track.number for track in span_tracks(trace).tracks if track.sort == STEPS}
    found = []
    of_step = np.maximum(steps["process_row"][unmarked], 0)
    for process in sorted(set(of_step.tolist()) - taken):
        mine = unmarked[of_step == process]
        mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
        start = steps["start_ns"][mine]
        # A step is over where the next one begins.
        limit = np.append(start[1:], np.iinfo(np.int64).max) - start
        duration = np.clip(steps["duration_ns"][mine], 0, limit)
        _, rows = rows_of(np.zeros(len(mine), np.int64), 1, start, duration)
        texts = [f"{MARK}{number}" for number in steps["number"][mine].tolist()]
        names = np.arange(len(mine), dtype=np.int32)
        rows = Rows(rows.edges, rows.start_ns, rows.sum_ns, names=names, texts=texts, kind=SpanKind.STEP)
        found.append(Track(STEPS, process, process, -1, rows, 0, 1))
    return found


def _described(trace: Trace, threads: Any, track: Track) -> tuple[str, str, str | None]:
    """What a track is called, what else there is to say of it, and its device."""
    if track.sort == STEPS:
        found = "" if track.rows.spans is not None else "found from the calls of the optimizer"
        return "Steps", found, None
    if track.sort == STREAM:
        streams = trace.columns("streams")
        kind, index, number = (
            int(streams[name][track.number]) for name in ("device_type", "device_index", "number")
        )
        device = Device(int(thread_ranks(trace)[track.thread]), kind, index).name
        label = f"stream {number}" if number >= 0 else "stream"
        name = streams["name"][track.number]
        return label, " · ".join(filter(None, (device, "" if name == label else name))), device
    name = _thread_labels(trace)[track.thread]
    if track.sort == THREAD:
        own = str(int(threads["os_tid"][track.thread]))
        return name, "" if name.endswith(own) else f"thread {own}", None
    runs = track.rows.spans is None
    if track.sort == PYTHON:
        detail = "functions, as the stacks of operators show them" if runs else "calls, as recorded"
        return f"{name} · Python", detail, None
    detail = "modules, as the operators in them show them" if runs else "calls of modules, as recorded"
    return f"{name} · modules", detail, None


def _thread_labels(trace: Trace) -> dict[int, str]:
    """What the threads that have tracks are called; with their number where two of a process have one name."""

    def make() -> dict[int, str]:
        threads = trace.columns("threads")
        used = {track.thread: track.process for track in timeline(trace).tracks if track.sort in _OF_THREADS}
        names = {thread: threads["name"][thread] for thread in used}
        often = Counter((used[thread], name) for thread, name in names.items())
        found = {}
        for thread, name in names.items():
            own = int(threads["os_tid"][thread])
            alone = often[used[thread], name] == 1
            found[thread] = (name if alone else f"{name} {own}") if name else f"thread {own}"
        return found

    return trace.cached("viewer: thread_labels", make)


def process_label(row: dict[str, Any]) -> str:
    """What a process is called."""
    parts = [] if row["rank"] is None else [f"rank {row['rank']}"]
    parts.append(row["name"] or "process")
    if row["process"] is not None:
        parts.append(f"({row['process']})")
    return " ".join(parts)
