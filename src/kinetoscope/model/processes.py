"""The processes of a trace: the one it was recorded in, or those that were put side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.arrow import ArrowTable, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Mask, Rows, outline
from kinetoscope.model.run_info import RunInfo
from kinetoscope.model.trace_data import TraceData

# Where a trace lies on the axis of time of another one, and how surely.
#
# A clock of another machine runs faster or slower than ours, by some parts in a million: so a moment of a trace is moved, and
# stretched from the trace's own beginning.

ONE_TRACE, MONOTONIC, WALL, UNKNOWN = "", "monotonic", "wall", "unknown"
# Two readings of clocks that are taken one after the other are not closer than this.
_LEAST_READING_ERROR_NS = 1_000


@dataclass(frozen=True)
class Placement:
    """Maps a moment `t` of a trace to the common axis: `offset_ns + t + round(t * drift)`.

    Attributes:
        offset_ns: Where its time 0 is on the common axis, in nanoseconds.
        drift: By how much its clock runs slow against the common axis, as a fraction; between -0.5 and 0.5.
        error_ns: The largest error of its times against those of the first trace, in nanoseconds; -1 if unknown.
        clock: How it was found: `monotonic` (the clock of one machine), `wall`, `barriers`, `collectives`, `given`, or
            `unknown` if the traces are assumed to have started together.
        facts: Details of how it was found.
    """

    offset_ns: int
    drift: float = 0.0
    error_ns: int = -1
    clock: str = "given"
    facts: dict[str, Any] = field(default_factory=dict)

    def at(self, time_ns: Rows) -> Rows:
        """Moments of the trace on the common axis; a later moment never comes to lie before an earlier one."""
        if self.drift == 0.0:
            return np.asarray(time_ns + np.int64(self.offset_ns))
        return np.asarray(time_ns + np.rint(time_ns * self.drift).astype(np.int64) + np.int64(self.offset_ns))

    def lasting(self, start_ns: Rows, duration_ns: Rows) -> Rows:
        """How long spans take there, so that what ended together, or one inside the other, still does."""
        if self.drift == 0.0:
            return duration_ns
        return self.at(start_ns + duration_ns) - self.at(start_ns)


def one_machine(traces: Sequence[TraceData]) -> list[Placement] | None:
    """Place traces by the monotonic clock of the machine that all were recorded on.

    Args:
        traces: The traces; recordings state what is needed as `start_monotonic_ns` and `boot_id`.

    Returns:
        A place for each, the first at 0; None if they are not known to be of one machine and one start of it. The error is that
        of reading the clock: twice the largest deviation of the readings that the recordings themselves have, and 2
        microseconds at least.
    """
    boots = {trace.run_info.boot_id for trace in traces}
    begins = [trace.run_info.start_monotonic_ns for trace in traces]
    known_begins = [begin for begin in begins if begin is not None]
    if len(boots) > 1 or not next(iter(boots), "") or len(known_begins) < len(begins):
        return None
    errors = [reading_error_ns(trace) for trace in traces]
    return [
        Placement(begin - known_begins[0], error_ns=0 if index == 0 else errors[0] + error, clock=MONOTONIC)
        for index, (begin, error) in enumerate(zip(known_begins, errors, strict=True))
    ]


def by_wall_clock(traces: Sequence[TraceData]) -> list[Placement]:
    """Place traces by the clocks on the wall of their machines, which may differ by any time.

    Returns:
        A place for each, the first at 0, with an unknown error. A trace that does not say when it began is taken to have begun
        with the first.
    """
    begins = [trace.run_info.start_realtime_ns or 0 for trace in traces]
    placements: list[Placement] = []
    for index, begin in enumerate(begins):
        dated = begin > 0 and begins[0] > 0
        error_ns = -1 if index else 0
        placements.append(
            Placement(begin - begins[0] if dated else 0, error_ns=error_ns, clock=WALL if dated else UNKNOWN)
        )
    return placements


def reading_error_ns(trace: TraceData) -> int:
    """How far a recording's own clock readings are apart."""
    return max(_LEAST_READING_ERROR_NS, trace.run_info.clock_checks.largest_error_ns or 0)


_SHOWN_AS = {"process": "pid", "rank": "rank"}
# What a joined trace says of the whole, or its table `processes` of each.
_OF_THE_WHOLE = frozenset({"processes", "start_realtime_ns", "start_monotonic_ns", "stop_ns", "complete"})


def process_facts(trace: TraceData, placement: Placement) -> dict[str, Any]:
    """The row of `processes` for a trace of one process."""
    run = trace.run_info
    return {
        "pid": _or_none(run.process),
        "rank": _or_none(run.rank),
        "parent_pid": _or_none(run.parent_process),
        "host": run.host,
        "name": _name(run),
        "command": run.command,
        "start_ns": placement.offset_ns,
        "duration_ns": int(
            placement.lasting(np.zeros(1, np.int64), np.array([trace.duration_ns], np.int64))[0]
        ),
        "clock": placement.clock,
        "error_ns": placement.error_ns,
    }


def described(trace: TraceData, placement: Placement, first_began_ns: int) -> list[dict[str, Any]]:
    """The entries of `info["processes"]` for a trace that is merged with others.

    Each has what the trace says of itself, and `process`, `rank`, `name`, `parent_process`, `offset_ns` (from the beginning
    of the first trace), `drift`, `error_ns`, `clock` and the facts of how the clock was found.
    """
    clock = {
        "offset_ns": placement.offset_ns - first_began_ns,
        "drift": placement.drift,
        "error_ns": placement.error_ns,
        "clock": placement.clock,
        **placement.facts,
    }
    if len(trace.columns("processes")):
        return [_placed_again(entry, clock) for entry in process_entries(trace)]
    entry = {key: value for key, value in trace.info.items() if key not in _OF_THE_WHOLE}
    return [entry | {"rank": trace.run_info.rank, "name": _name(trace.run_info)} | clock]


def process_entries(trace: TraceData) -> list[dict[str, Any]]:
    """The metadata of each row of `processes`, as `info["processes"]` has them; empty where it has none."""
    stated = trace.info.get("processes")
    listed = stated if isinstance(stated, list) else ()
    entries: list[dict[str, Any]] = [dict(entry) if isinstance(entry, dict) else {} for entry in listed]
    count = len(trace.columns("processes"))
    return (entries + [{}] * count)[:count]


def process_runs(trace: TraceData) -> list[RunInfo]:
    """The metadata of each process, in the order of `processes`; one entry for a trace of one process."""
    count = len(trace.columns("processes"))
    stated = trace.run_info.processes
    return [*stated[:count], *[RunInfo()] * (count - len(stated))] if count else [trace.run_info]


def thread_processes(trace: TraceData) -> NDArray[np.int32]:
    """For each row of `threads`, and for -1, the row in `process_runs`: 0 where the whole trace is of one process."""
    if len(trace.columns("processes")) == 0:
        return np.zeros(len(trace.columns("threads")) + 1, np.int32)
    return np.append(trace.column("threads", "process_row"), np.int32(-1))


def host_threads(trace: TraceData) -> Mask:
    """For each row of `threads` whether it is a thread of the host: files of other tools have tracks of devices among them."""
    count = len(trace.columns("threads"))
    if len(trace.columns("streams")) == 0:
        return np.ones(count, dtype=bool)
    thread, on_device = trace.column("spans", "thread"), trace.column("spans", "stream") >= 0
    return np.asarray(
        (Groups(thread[~on_device], count).sizes() > 0) | (Groups(thread[on_device], count).sizes() == 0)
    )


def of_processes(trace: TraceData, rows: NDArray[np.int32]) -> dict[str, Rows]:
    """The columns `process` and `rank` of a table for people, from its column `process_row`.

    Args:
        trace: The trace.
        rows: Rows of `processes`; -1 for the only process of the trace, or if unknown.
    """
    table = trace.columns("processes")
    if len(table):
        return {name: np.append(table[column], -1)[rows] for name, column in _SHOWN_AS.items()}
    run = trace.run_info
    numbers = {"process": _or_none(run.process), "rank": _or_none(run.rank)}
    return {name: np.full(len(rows), number, np.int64) for name, number in numbers.items()}


def processes(trace: TraceData) -> ArrowTable:
    """Return the `processes` table: one row for each process, also for the only one of a trace."""
    stored = trace.columns("processes")
    columns: dict[str, Any] = {name: stored[name] for name in stored}
    if len(stored) == 0:
        facts = process_facts(trace, Placement(0, error_ns=0, clock=ONE_TRACE))
        columns = {name: [value] for name, value in facts.items()}
    count = len(columns["pid"])
    of_thread = thread_processes(trace)
    spans = trace.column("spans", "thread")
    columns |= {
        "process": columns["pid"],
        "parent": columns["parent_pid"],
        "threads": Groups(of_thread[:-1][host_threads(trace)], count).sizes(),
        "spans": Groups(of_thread[spans], count).sizes(),
    }
    return to_arrow("processes", columns)


def process_tree(trace: TraceData) -> list[dict[str, Any]]:
    """Return the processes as a tree: each before those that it started, these in order of their start.

    Returns:
        For each its `row` in the table `processes`, its `name`, `pid`, `rank` and `depth` in the tree, `duration_ns`, and `began`
        and `ended` in words, empty if unknown. Nothing for a trace of one process.
    """
    table = trace.columns("processes")
    runs = process_runs(trace)
    pids = table["pid"].tolist()
    holders = []
    for row, pid in enumerate(pids):
        parent = runs[row].recorded_parent or runs[row].parent_process
        # A process that became another program is there twice: the first entry is used for both.
        holders.append(pids.index(parent) if parent in pids and parent != pid else -1)
    return [
        {
            "row": row,
            "name": table["name"][row],
            "pid": pids[row],
            "rank": int(table["rank"][row]),
            "depth": depth,
            "duration_ns": int(table["duration_ns"][row]),
            "began": runs[row].began,
            "ended": runs[row].ended,
        }
        for row, depth in outline(holders, range(len(pids)))
    ]


def steps_of_one(trace: TraceData) -> tuple[str, Mask]:
    """Choose the steps to show: those of the first process that has any, since ranks step together.

    Returns:
        That process by name, empty where there is one process alone, and which rows of `steps` are its own.
    """
    whose = trace.column("steps", "process_row")
    if len(trace.columns("processes")) == 0 or len(whose) == 0:
        return "", np.ones(len(whose), dtype=np.bool_)
    first = int(whose.min())
    return process_and_rank(trace, first), whose == first


def process_and_rank(trace: TraceData, row: int) -> str:
    """Return the name of a process and its rank, if it has one, as `train.py, rank 3`.

    Args:
        trace: The trace.
        row: A row of `processes`.
    """
    table = trace.columns("processes")
    rank = f"rank {table['rank'][row]}" if table["rank"][row] >= 0 else ""
    return ", ".join(filter(None, (str(table["name"][row]), rank)))


def memory_salts(trace: TraceData) -> NDArray[np.uint64]:
    """For each row of `processes`, and for -1, a number that keeps its addresses from those of others when combined by xor.

    Addresses of two processes then differ unless they differ by the very same 64 bits as the numbers do: the chance is
    1 in 2**64 for any two. The first process, and any trace of one, has 0.
    """
    row = np.arange(len(trace.columns("processes")) + 1, dtype=np.uint64)
    row[-1] = 0
    # The finaliser of splitmix64 (Steele, Lea, Flood 2014), which leaves 0 as it is.
    mixed = row * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _placed_again(entry: dict[str, Any], clock: dict[str, Any]) -> dict[str, Any]:
    """The entry of a process whose trace, of several, is moved as a whole."""
    moved = dict(entry)
    before = entry.get("offset_ns")
    moved["offset_ns"] = (before if type(before) is int else 0) + clock["offset_ns"]
    error = entry.get("error_ns")
    has_error = type(error) is int and error >= 0 and clock["error_ns"] >= 0
    moved["error_ns"] = error + clock["error_ns"] if has_error else -1
    return moved


def _name(run: RunInfo) -> str:
    return run.process_name or os.path.basename("".join(run.command_line[:1])) or "python"


def _or_none(number: int | None) -> int:
    return -1 if number is None else number
