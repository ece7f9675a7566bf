"""The traces of the ranks of a job as one."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.combine.clocks import BARRIERS, COLLECTIVES, OWN, Visits, machines_of
from kinetoscope.combine.clocks import aligned as align
from kinetoscope.combine.processes import merge_processes
from kinetoscope.model import units
from kinetoscope.model.processes import MONOTONIC, Placement, by_wall_clock, process_runs, reading_error_ns
from kinetoscope.model.run_info import RunInfo
from kinetoscope.model.trace_data import AnyTrace, TraceData
from kinetoscope.tables.device.collectives import collectives

# Ranks wait for each other at the barriers of `align_clocks` and in collectives.
#
# No rank leaves such a meeting before all have entered it. The recorded entry is never too late, and the recorded exit never too early, so the
# records of two ranks bound the difference of their clocks from both sides.

# In these, no rank has the result before all have contributed; a broadcast, for example, may send nothing to some.
MEETING_COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
# Files with whole microseconds cut both start and duration.
MICROSECOND_NS, CUT_OFF_NS = 1_000, 2_000
_COLUMNS = (
    "name", "group", "group_ranks", "rank", "dtype", "input_elements", "output_elements", "transfer_start_ns", "transfer_ns",
    "step", "process",
)  # fmt: skip


def clock_marks(trace: TraceData) -> list[tuple[str, int, int]]:
    """The barriers of `align_clocks` in a trace: the globally unique name, and when it entered and left, in nanoseconds on its axis."""
    begin_ns = trace.run_info.start_monotonic_ns
    if begin_ns is None:
        return []
    marks = (mark for run in process_runs(trace) for mark in run.clock_marks)
    return [(name, entered_ns - begin_ns, left_ns - begin_ns) for name, entered_ns, left_ns in marks]


def _visits(traces: Sequence[TraceData]) -> Visits:
    """Which trace was at which barrier and collective.

    Collectives are matched by step, group, name and order, where the traces agree on these. Without steps, traces must have the same calls
    throughout.
    """
    numbers: dict[Hashable, int] = {}
    # The trace, the meeting, when it was entered and left, and whether all leave together: ranks leave a collective at the same moment, but learn of the
    # end of a barrier at different ones.
    visits: list[tuple[int, int, int, int, bool]] = []
    series: defaultdict[tuple[Hashable, ...], list[tuple[int, list[_Call]]]] = defaultdict(list)
    for index, trace in enumerate(traces):
        for name, entered_ns, left_ns in clock_marks(trace):
            if entered_ns <= left_ns:
                meeting = numbers.setdefault(name, len(numbers))
                visits.append((index, meeting, entered_ns, left_ns, False))
        for key, calls in _calls(trace).items():
            series[key[:-1]].append((index, calls))
    for key, of_ranks in series.items():
        if len({tuple(call.like for call in calls) for _, calls in of_ranks}) == 1:
            for index, calls in of_ranks:
                for number, call in enumerate(calls):
                    meeting = numbers.setdefault((key, number), len(numbers))
                    visits.append((index, meeting, call.entered_ns, call.left_ns, True))
    trace_index, met, entered, left, together = np.array(visits, dtype=np.int64).reshape(-1, 5).T
    return Visits(trace_index, met, entered, left, together != 0)


class _Call(NamedTuple):
    """A collective: what is the same on all ranks, and when a rank entered and left it."""

    like: tuple[Hashable, ...]
    entered_ns: int
    left_ns: int


def _calls(trace: TraceData) -> dict[tuple[Hashable, ...], list[_Call]]:
    rows = collectives(trace).select(_COLUMNS).to_pylist()
    has_steps = len(trace.columns("steps")) > 0
    one_group = all(len(run.process_groups) < 2 for run in process_runs(trace))
    carried = [row for row in rows if row["transfer_start_ns"] is not None and row["transfer_ns"] is not None]
    in_microseconds = all(row["transfer_start_ns"] % MICROSECOND_NS == 0 for row in carried)
    calls_of: defaultdict[tuple[Hashable, ...], list[_Call]] = defaultdict(list)
    for row in carried:
        # Two groups may have the same ranks; only the calls of one group are in order.
        group = (row["group_ranks"] or "", row["group"] or "")
        if (
            row["name"] not in MEETING_COLLECTIVES
            or (has_steps and row["step"] is None)
            or not (any(group) or one_group)
        ):
            continue
        entered_ns = row["transfer_start_ns"]
        left_ns = entered_ns + row["transfer_ns"] + (CUT_OFF_NS if in_microseconds else 0)
        # The input of an all_gather may have a different size on each rank.
        elements = row["input_elements"] if row["name"] == "all_reduce" else None
        key = (row["step"], group, row["name"], (row["process"], row["rank"]))
        calls_of[key].append(_Call((row["dtype"], elements), entered_ns, left_ns))
    # The calls of a step number that occurs twice cannot be told apart.
    repeated = Counter(trace.column("steps", "number").tolist())
    several = len(trace.columns("processes")) > 1
    return {key: calls for key, calls in calls_of.items() if several or repeated[key[0]] < 2}


def aligned(traces: Sequence[TraceData]) -> list[Placement]:
    """Place every trace, the first at 0; an error of -1 means that nothing connects a trace to the others, and its wall clock is used."""
    runs = [trace.run_info for trace in traces]
    begins_ns = [-1 if run.start_monotonic_ns is None else run.start_monotonic_ns for run in runs]
    errors_ns = [reading_error_ns(trace) for trace in traces]
    machines = machines_of([run.boot_id for run in runs], np.array(begins_ns, np.int64), np.array(errors_ns))
    visits = _visits(traces if machines.number.any() else ())
    clocks = align(visits, machines, np.array([trace.duration_ns for trace in traces]), 0)
    wall = by_wall_clock(traces)
    placements = []
    for row, line in enumerate(clocks.lines):
        offset_ns, machine = int(machines.offset_ns[row]), machines.number[row]
        if line is None:
            first = wall[int(np.argmax(machines.number == machine))]
            placements.append(Placement(first.offset_ns + offset_ns, clock=first.clock))
        elif machine == 0:
            clock = MONOTONIC if np.count_nonzero(machines.number == 0) > 1 else OWN
            placements.append(Placement(offset_ns, error_ns=int(clocks.error_ns[row]), clock=clock))
        else:
            met = zip((BARRIERS, COLLECTIVES), clocks.kinds[:, row].tolist(), strict=True)
            facts = {kind: count for kind, count in (*met, ("violated_ns", line.violated_ns)) if count}
            error_ns = int(clocks.error_ns[row]) + 1
            placements.append(
                Placement(round(line.offset_ns), line.drift, error_ns, clocks.clock(row) or "", facts)
            )
    return placements


# Ranks record the same steps, but their wall clocks may differ by this.
_MOST_APART_NS = 60 * 10**9


def merge_named(traces: Sequence[AnyTrace], names: Sequence[str]) -> AnyTrace:
    """Merge open traces; error messages call them by these names."""
    if not traces:
        raise ArgumentError("traces is empty: pass at least one trace.")
    _refuse(traces, names)
    ordered = sorted(traces, key=_first_rank)
    placements = aligned(ordered)
    called = dict(zip(map(id, traces), names, strict=True))
    for reason in _unrelated(ordered, [called[id(trace)] for trace in ordered], placements):
        warnings.warn(
            f"{reason}. Check that these are traces of one job: times of unrelated runs cannot be compared",
            stacklevel=3,
        )
    return merge_processes(ordered, placements)


def _first_rank(trace: TraceData) -> float:
    return min((run.rank for run in process_runs(trace) if run.rank is not None), default=float("inf"))


def _unrelated(
    traces: Sequence[TraceData], names: Sequence[str], placements: Sequence[Placement]
) -> list[str]:
    """The reasons why traces do not seem to be of one job, as sentences."""
    reasons = []
    ran: dict[str, str] = {}
    for trace, name in zip(traces, names, strict=True):
        for run in process_runs(trace):
            if script := _script(run):
                ran.setdefault(script, name)
    if len(ran) > 1:
        (script, name), (other_script, other) = list(ran.items())[:2]
        reasons.append(f"{name} is of {script} and {other} of {other_script}")
    ranked = [any(run.rank is not None for run in process_runs(trace)) for trace in traces]
    if len(set(ranked)) > 1:
        reasons.append(f"{names[ranked.index(True)]} has a rank and {names[ranked.index(False)]} has none")
    recorded = sorted(
        (placement.offset_ns, placement.offset_ns + trace.duration_ns, name)
        for trace, name, placement in zip(traces, names, placements, strict=True)
        if placement.clock in ("own", "monotonic", "wall")
    )
    until_ns, last = recorded[0][1:] if recorded else (0, "")
    for begin_ns, end_ns, name in recorded[1:]:
        if begin_ns - until_ns > _MOST_APART_NS:
            apart = units.duration(begin_ns - until_ns)
            reasons.append(f"{name} began {apart} after {last} had ended")
        if end_ns > until_ns:
            until_ns, last = end_ns, name
    return reasons


def _script(run: RunInfo) -> str:
    """The program of a process without its arguments; empty if unknown."""
    words = list(run.program or run.command_line)
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[1:]
    if words[:1] == ["-c"]:
        return ""  # what follows are arguments
    return " ".join(words[:2]) if words[:1] == ["-m"] else PurePath("".join(words[:1])).name


def _refuse(traces: Sequence[TraceData], names: Sequence[str]) -> None:
    """Raise ArgumentError if two traces are of one rank, of one process, or of jobs of different sizes."""
    of_rank: dict[int, str] = {}
    of_size: dict[int, str] = {}
    of_process: dict[tuple[int | str | None, ...], list[tuple[int, int, str]]] = {}
    for trace, name in zip(traces, names, strict=True):
        runs = process_runs(trace)
        for rank in {run.rank for run in runs if run.rank is not None}:
            if rank in of_rank:
                raise ArgumentError(
                    f"{of_rank[rank]} and {name} are both of rank {rank}. Pass one trace for each rank; join the cycles of a "
                    "process first, with concatenate, and a process and its children with merge_processes."
                )
            of_rank[rank] = name
        for size in {run.world_size for run in runs if run.world_size is not None}:
            of_size.setdefault(size, name)
        if len(runs) == 1 and runs[0].rank is None and runs[0].process is not None:
            # What two recordings of one process agree in.
            run = runs[0]
            key = (run.process, run.parent_process, run.boot_id, run.host)
            begin_ns = run.start_monotonic_ns
            begin_ns = run.start_realtime_ns or 0 if begin_ns is None else begin_ns
            of_process.setdefault(key, []).append((begin_ns, begin_ns + trace.duration_ns, name))
    if len(of_size) > 1:
        (size, name), (other_size, other) = list(of_size.items())[:2]
        raise ArgumentError(
            f"{name} is of a job of {units.count(size, 'rank')} and {other} of a job of {units.count(other_size, 'rank')}. Pass the traces of one job; "
            "kinetoscope.trace.merge_processes merges any traces."
        )
    for recorded in of_process.values():
        recorded.sort()
        for (begin_ns, end_ns, name), (next_begin_ns, _, other) in pairwise(recorded):
            # Containers may have equal process ids, but overlap in time; one process makes one recording at a time.
            if next_begin_ns in (begin_ns, 0) or next_begin_ns >= end_ns:
                raise ArgumentError(
                    f"{name} and {other} are of one process. Pass one trace for each rank; join the cycles of a process "
                    "with kinetoscope.trace.concatenate."
                )
