"""The traces of the ranks of a job as one."""

from __future__ import annotations

import os
import warnings
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError
from kinetoscope.ranks._align import aligned
from kinetoscope.trace import Trace, beside
from kinetoscope.trace import open as open_trace
from kinetoscope.trace._processes import infos, rank_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kinetoscope.trace import Placement

# Ranks record the same steps; their clocks on the wall may differ by so much.
_MOST_APART_NS = 60 * 10**9
# What two recordings of one process agree in.
_OF_A_PROCESS = ("process", "parent_process", "boot_id", "host_name", "host")


def merge(traces: Sequence[Trace | str | os.PathLike[str]]) -> Trace:
    """Put the traces of the ranks of one job into one trace, on one axis of time.

    What is counted within a process (steps, live memory, modules, links) is what it is in the trace of its rank alone. The
    column `rank` tells the ranks apart, `select_ranks` takes some out again, and the table `processes` says of each by
    what its clock was brought to that of the first (`clock`) and by how much its times may be off (`error_ns`):

    - `monotonic`: ranks of one machine have one clock, which their recordings say (Linux). To within microseconds.
    - `barriers`: ranks that aligned their clocks (`profile(align_ranks=True)` or `align_clocks()`).
    - `collectives`: ranks that called each other while they recorded. Nobody has the result of an all_reduce, all_gather,
      reduce_scatter or barrier before everybody has given his part; so each of these bounds the difference of two clocks
      from both sides; within these bounds they are taken to have left them together. Calls are told apart by step,
      group and order; of traces without steps only such with the same calls from beginning to end are compared.
    - `wall` or `unknown`: nothing ties them together, and `losses` says so. Their clocks on the wall were believed.

    For barriers and collectives the error is a bound, not an estimate: whatever the clocks did, as long as their difference was a
    straight line in time with a drift of at most 1 in 1000, and calls were told apart rightly, no moment is further off. If
    there is no such line, `info["processes"]` says by how much the bounds contradict each other (`violated_ns`),
    and `losses` has a row. It holds for the times of what carried the calls out: kernels of devices, or threads of the host.

    Args:
        traces: The traces, or paths or URLs of them; one for each rank. A trace that was put together of several processes
            counts as one. The cycles of one process belong together first, see `kinetoscope.trace.concatenate`.

    Returns:
        A new trace, the ranks in rising order; the given ones are as before. A warning says where they do not look like
        those of one job: of different programs, recorded at different times, or some with a rank and some without.

    Raises:
        ArgumentError: There is none, or two are of one rank, of one process, or of jobs of different size.
        FormatError: A file is no trace.
        OSError: A file cannot be read.
    """
    if isinstance(traces, (str, os.PathLike, Trace)):
        raise ArgumentError("pass a list of traces, one for each rank.")
    given = list(traces)
    opened = [trace if isinstance(trace, Trace) else open_trace(trace) for trace in given]
    names = [
        f"trace {place}" if isinstance(one, Trace) else os.fspath(one)
        for place, one in enumerate(given, start=1)
    ]
    return merge_named(opened, names)


def merge_named(traces: Sequence[Trace], names: Sequence[str]) -> Trace:
    """Merge traces that are open, and call them by these names where they cannot be."""
    if not traces:
        raise ArgumentError("there are no traces to put together.")
    _refuse(traces, names)
    ordered = sorted(traces, key=_first_rank)
    places = aligned(ordered)
    called = dict(zip(map(id, traces), names, strict=True))
    for reason in _unrelated(ordered, [called[id(trace)] for trace in ordered], places):
        warnings.warn(
            f"{reason}. Check that these are traces of one job: times of unrelated runs cannot be compared",
            stacklevel=3,
        )
    return beside(ordered, places)


def _first_rank(trace: Trace) -> float:
    """The lowest rank that a trace is of; those of no rank come last."""
    return min((rank for rank in map(rank_of, infos(trace)) if rank is not None), default=float("inf"))


def _unrelated(traces: Sequence[Trace], names: Sequence[str], places: Sequence[Placement]) -> list[str]:
    """What speaks against traces being those of one job, in words.

    Args:
        traces: The traces.
        names: What to call them.
        places: Where they lie on the common axis.
    """
    reasons = []
    ran: dict[str, str] = {}
    for trace, name in zip(traces, names, strict=True):
        for info in infos(trace):
            if script := _script(info):
                ran.setdefault(script, name)
    if len(ran) > 1:
        (script, name), (other_script, other) = list(ran.items())[:2]
        reasons.append(f"{name} is of {script} and {other} of {other_script}")
    ranked = [any(rank_of(info) is not None for info in infos(trace)) for trace in traces]
    if len(set(ranked)) > 1:
        reasons.append(f"{names[ranked.index(True)]} has a rank and {names[ranked.index(False)]} has none")
    recorded = sorted(
        (place.offset_ns, place.offset_ns + trace.duration_ns, name)
        for trace, name, place in zip(traces, names, places, strict=True)
        if place.clock in ("own", "monotonic", "wall")
    )
    until_ns, last = recorded[0][1:] if recorded else (0, "")
    for begin_ns, end_ns, name in recorded[1:]:
        if begin_ns - until_ns > _MOST_APART_NS:
            apart = (begin_ns - until_ns) / 1e9
            reasons.append(f"{name} began {apart:,.0f} s after {last} had ended")
        if end_ns > until_ns:
            until_ns, last = end_ns, name
    return reasons


def _script(info: Mapping[str, Any]) -> str:
    """What a process ran, without its arguments; empty where the trace does not say."""
    told = info.get("program")
    words = told.get("command") if isinstance(told, dict) else info.get("command_line")
    words = [str(word) for word in words] if isinstance(words, list) else []
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[1:]
    if words[:1] == ["-c"]:
        return ""  # what follows are arguments
    return " ".join(words[:2]) if words[:1] == ["-m"] else PurePath("".join(words[:1])).name


def _refuse(traces: Sequence[Trace], names: Sequence[str]) -> None:
    """Raise if two traces are not those of two ranks of one job.

    Args:
        traces: The traces.
        names: What to call them.
    """
    of_rank: dict[int, str] = {}
    of_size: dict[int, str] = {}
    of_process: dict[tuple[str, ...], list[tuple[int, int, str]]] = {}
    for trace, name in zip(traces, names, strict=True):
        known = infos(trace)
        for rank in {rank for info in known if (rank := rank_of(info)) is not None}:
            if rank in of_rank:
                raise ArgumentError(
                    f"{of_rank[rank]} and {name} are both of rank {rank}. Pass one trace for each rank; put the cycles of a "
                    "process together first, with concatenate, and a process and its children with beside."
                )
            of_rank[rank] = name
        for size in {_world_size(info) for info in known} - {0}:
            of_size.setdefault(size, name)
        if len(known) == 1 and rank_of(known[0]) is None and type(known[0].get("process")) is int:
            key = tuple(repr(known[0].get(fact)) for fact in _OF_A_PROCESS)
            begin_ns = _began_ns(known[0])
            of_process.setdefault(key, []).append((begin_ns, begin_ns + trace.duration_ns, name))
    if len(of_size) > 1:
        (size, name), (other_size, other) = list(of_size.items())[:2]
        raise ArgumentError(
            f"{name} is of a job of {_ranks(size)} and {other} of one of {_ranks(other_size)}. Pass the traces of one job; "
            "kinetoscope.trace.beside puts any traces side by side."
        )
    for recorded in of_process.values():
        recorded.sort()
        for (begin_ns, end_ns, name), (next_begin_ns, _, other) in pairwise(recorded):
            # Containers may have equal numbers, and record at the same time then; one process records one thing at a time.
            if next_begin_ns in (begin_ns, 0) or next_begin_ns >= end_ns:
                raise ArgumentError(
                    f"{name} and {other} are of one process. Pass one trace for each rank; put the cycles of a process "
                    "together with kinetoscope.trace.concatenate."
                )


def _began_ns(info: Mapping[str, Any]) -> int:
    """When a recording began, by the clock of its machine, 0 where it does not say."""
    told = (info.get(clock) for clock in ("start_monotonic_ns", "start_realtime_ns"))
    return next((moment for moment in told if type(moment) is int), 0)


def _world_size(info: Mapping[str, Any]) -> int:
    """How many ranks the job of a process has, 0 where it does not say."""
    known = info.get("distributedInfo")
    told = known.get("world_size") if isinstance(known, dict) else None
    return told if type(told) is int and told > 0 else 0


def _ranks(count: int) -> str:
    """A number of ranks, in words."""
    return f"{count:,} rank{'' if count == 1 else 's'}"
