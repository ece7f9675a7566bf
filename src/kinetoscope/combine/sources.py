"""Adds to a trace what sources recorded in addition to the engine, from rows appended to a file or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinetoscope.combine.compiled import attribute_recording
from kinetoscope.combine.extend import extend
from kinetoscope.combine.graph_replays import attribute_replays
from kinetoscope.combine.loader_workers import with_workers
from kinetoscope.model.compile_facts import TABLE as COMPILING
from kinetoscope.model.compile_facts import CompileFacts
from kinetoscope.model.losses import Loss, counted_losses
from kinetoscope.model.trace_data import AnyTrace, TraceData
from kinetoscope.storage.appended_rows import AppendedRows, read_clocks, read_counters, read_losses

CLOCK_MARKS = "clock_marks"
"""The table of when this rank was at barriers with others, and the metadata made of it."""


def with_rows(trace: AnyTrace, recordings: Sequence[AppendedRows]) -> AnyTrace:
    """Return a trace with what sources recorded.

    Args:
        trace: The trace, of one recording or several of one process; it is unchanged and shares its columns with the new one.
        recordings: The rows appended to each of them, in order of time, without those that are in the trace already.

    Returns:
        The trace; the given one if there is nothing to add.
    """
    begin_ns = _begin_ns(trace, recordings)
    info: dict[str, Any] = {}
    if marks := _clock_marks(recordings):
        trace_marks = trace.info.get(CLOCK_MARKS)
        info[CLOCK_MARKS] = {**(trace_marks if isinstance(trace_marks, dict) else {}), **marks}
    counters = read_counters(recordings, begin_ns)
    tables, losses = _compiled(trace, recordings, begin_ns)
    stated = {(loss.code, loss.why): loss for rows in recordings for loss in read_losses(rows)}
    damaged = sum(rows.damaged for rows in recordings)
    losses += [*stated.values(), *counted_losses({"damaged_records": damaged})]
    if info or counters or tables or losses:
        trace = extend(trace, counters=counters, info=info, tables=tables, losses=losses)
    return with_workers(attribute_replays(attribute_recording(trace, recordings)), recordings, begin_ns)


def with_counters(trace: AnyTrace, rows: AppendedRows) -> AnyTrace:
    """Return a trace with only the counters among some rows."""
    counters = read_counters([rows], _begin_ns(trace, [rows]))
    return extend(trace, counters=counters) if counters else trace


def _begin_ns(trace: TraceData, recordings: Sequence[AppendedRows]) -> int:
    """When the trace began by the monotonic clock; -1 if unknown."""
    run = trace.run_info
    if run.start_monotonic_ns is not None:
        return run.start_monotonic_ns
    for rows in recordings:
        if (clocks := read_clocks(rows)) is not None:
            monotonic_ns, realtime_ns = clocks
            return monotonic_ns + (run.start_realtime_ns or realtime_ns) - realtime_ns
    return -1


def _clock_marks(recordings: Sequence[AppendedRows]) -> dict[str, list[int]]:
    marks_of: dict[str, list[int]] = {}
    for rows in recordings:
        columns, _ = rows.columns(CLOCK_MARKS, {"name": str, "entered_ns": int, "left_ns": int})
        for name, *marks in zip(*columns.values(), strict=True):
            marks_of[name] = marks
    return marks_of


def _compiled(
    trace: TraceData, recordings: Sequence[AppendedRows], begin_ns: int
) -> tuple[dict[str, Any], list[Loss]]:
    stored = [parts for rows in recordings if (parts := rows.columns(COMPILING, {"facts": dict})[0]["facts"])]
    if not stored:
        return {}, []
    facts = CompileFacts()
    try:
        for parts in stored:
            facts = facts.and_later(CompileFacts.from_parts(parts))
    except ValueError as error:
        return {}, [Loss.of("compiling_unreadable", why=str(error))]
    if begin_ns >= 0:
        facts = facts.ended_in(begin_ns, begin_ns + trace.duration_ns)
    tids = trace.column("threads", "os_tid").tolist()
    tables = facts.tables(trace.strings, tids, begin_ns)
    lost = [Loss.of("compiling_unreadable", why=facts.missing)] if tables and facts.missing else []
    return tables, lost
