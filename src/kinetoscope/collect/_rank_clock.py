"""Barriers at which the ranks of a job note their clocks, so that `kinetoscope.merge` can say what happened when.

They go through the store that the job was started with, over a connection of their own, and never through the
communication of the job: nothing of it waits, is reordered or breaks when a rank does not come.
"""

from __future__ import annotations

import itertools
import json
import math
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.collect._seat import SEATS
from kinetoscope.collect._warn import warn_user

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

KEY = "clock_marks"
_PREFIX = "kinetoscope/clock"
_ROUNDS, _TIMEOUT_S = 5, 30.0
# Each rank counts its own alignments; equal numbers are the same one.
_numbers = itertools.count()

Marks = dict[str, list[int]]

# What calls of `align_clocks` found in this process, and how much of it is kept.
_noted: Marks = {}
_MOST_NOTED = 1_000


def align_clocks(*, rounds: int = _ROUNDS, timeout_s: float = _TIMEOUT_S) -> bool:
    """Let all ranks of the job meet, and note in the recording that is under way when this one came and went.

    Every rank has to call it, and equally often: at the begin and at the end of what they record, so that
    `kinetoscope.merge` knows how far their clocks were apart, and how they drifted. `profile(align_ranks=True)` does that by
    itself. A rank that does not come keeps the others waiting for `timeout_s`, once: then there is one warning, and the
    clocks are compared by what else is known. A meeting takes some round trips to the store of the job.

    Args:
        rounds: How many barriers there are; the quickest one counts.
        timeout_s: For how many seconds this rank waits for the others, in all.

    Returns:
        Whether all ranks came; True also for a job of one rank, and without a process group, where nothing is noted.

    Raises:
        ArgumentError: `rounds` or `timeout_s` is no number above 0.
        StateError: No session records in this process.
    """
    _checked(rounds, timeout_s)
    session = SEATS.taken_by()
    if session is None:
        raise StateError(
            "align_clocks: no session records in this process; call it inside of one, or use profile(align_ranks=True)."
        )
    marks, complete = meet(rounds, timeout_s)
    if marks:
        # What was noted before is noted again: of a recording both its begin and its end are wanted.
        _noted.update(marks)
        for name in list(_noted)[:-_MOST_NOTED]:
            del _noted[name]
        session.add_metadata_json(KEY, json.dumps(_noted))
    return complete


def meet(
    rounds: int, timeout_s: float, clock_ns: Callable[[], int] = time.monotonic_ns
) -> tuple[Marks, bool]:
    """Meet the other ranks some times.

    Args:
        rounds: How often.
        timeout_s: For how many seconds in all.
        clock_ns: The clock to read.

    Returns:
        For each barrier, by a name that no other of any job has, when this rank entered and when it left; and whether all
        ranks came to all.
    """
    number = next(_numbers)
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return {}, True
    marks: Marks = {}
    until_ns = clock_ns() + int(timeout_s * 1e9)
    try:
        store = _own_connection(timeout_s)
        job = store.compare_set("job", "", uuid.uuid4().hex).decode()
        for place in range(rounds):
            name = f"{number}/{place}"
            entered_ns = clock_ns()
            came = store.add(f"{name}/came", 1)
            if came == distributed.get_world_size():
                store.set(f"{name}/all", "")
            left_s = max(1e-3, (until_ns - clock_ns()) / 1e9)
            store.wait([f"{name}/all"], timedelta(seconds=left_s))
            marks[f"{job}/{name}"] = [entered_ns, clock_ns()]
    except Exception as error:  # noqa: BLE001  (whatever the job's store fails at is none of the job's business)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warn_user(
            f"the clocks of the ranks were not aligned: not all ranks came within {timeout_s:g} s ({reason}). Let every rank record "
            "with align_ranks=True, and equally often."
        )
        return marks, False
    return marks, True


def _own_connection(timeout_s: float) -> Any:
    """The store of the job, over a connection on which nobody else waits."""
    distributed = torch.distributed
    store = distributed.distributed_c10d._get_default_store().clone()
    store.set_timeout(timedelta(seconds=timeout_s))
    return distributed.PrefixStore(_PREFIX, store)


def _checked(rounds: Any, timeout_s: Any) -> None:
    """Refuse what no meeting can be made of."""
    if type(rounds) is not int or rounds < 1:
        raise ArgumentError(f"rounds={rounds!r} is not valid: need a whole number above 0.")
    number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not (number and math.isfinite(timeout_s) and timeout_s > 0):
        raise ArgumentError(f"timeout_s={timeout_s!r} is not valid: need a number of seconds above 0.")


class RankClocks:
    """A source that lets the ranks meet right before each recording and at its end; what `align_ranks=True` adds."""

    def __init__(self, rounds: int = _ROUNDS, timeout_s: float = _TIMEOUT_S) -> None:
        """Nobody is met yet."""
        _checked(rounds, timeout_s)
        self._rounds = rounds
        self._timeout_s = timeout_s
        self._marks: Marks = {}

    def open(self) -> None:
        """There is nothing to make ready."""

    def start(self) -> None:
        """Meet before the recording begins."""
        self._marks = meet(self._rounds, self._timeout_s)[0]

    def stop(self) -> _MarksOfRecording:
        """Meet at the end of the recording."""
        marks = self._marks | meet(self._rounds, self._timeout_s)[0]
        self._marks = {}
        return _MarksOfRecording(marks)

    def close(self) -> None:
        """There is nothing to take down."""


class _MarksOfRecording:
    """The meetings of one recording."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def add_to(self, trace: Trace) -> Trace:
        """Note them in the metadata."""
        known = trace.info.get(KEY)
        if self._marks:
            trace.info[KEY] = {**(known if isinstance(known, dict) else {}), **self._marks}
        return trace

    def discard(self) -> None:
        """There is nothing to let go of."""
