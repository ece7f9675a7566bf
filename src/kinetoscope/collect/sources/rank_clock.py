"""Barriers at which the ranks of a job note their clocks, so that `kinetoscope.merge` can align them.

They go through the store that the job was started with, over a connection of their own, and never through the
communication of the job: nothing of it waits, is reordered or breaks when a rank does not come.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from kinetoscope.collect.process.job_store import JobStore, in_company, wait_for_key
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.combine.sources import CLOCK_MARKS

if TYPE_CHECKING:
    from kinetoscope.collect.request.options import AppendRows

_GIVEN_UP = "given up"
_ROUNDS, _TIMEOUT_S = 5, 30.0

Marks = dict[str, list[int]]

# The results of `align_clocks` in this process, and how many of them are stored.
_noted: Marks = {}
_MOST_NOTED = 1_000


def align_clocks(*, rounds: int = _ROUNDS, timeout_s: float = _TIMEOUT_S) -> bool:
    """Synchronize all ranks of the job, and write into the active recording when this one arrived and left.

    Every rank must call it, and equally often: at the start and at the end of the recording, so that
    `kinetoscope.merge` can compute the offset and drift of their clocks. `profile(align_ranks=True)` does that
    automatically. If a rank does not arrive, the others wait for `timeout_s`, once: then there is a warning, no rank of the
    job waits again, and the clocks are aligned by other data. A call takes some round trips to the store
    of the job.

    Args:
        rounds: How many barriers there are; the quickest one counts.
        timeout_s: Time limit in seconds of waiting for the other ranks, over all rounds.

    Returns:
        Whether all ranks arrived; also True for a job of one rank and without a process group, where nothing is written.

    Raises:
        ArgumentError: `rounds` or `timeout_s` is not a number above 0.
        StateError: No session is recording in this process.
    """
    _checked(rounds, timeout_s)
    session = ACTIVE_SESSIONS.current()
    if session is None:
        raise StateError(
            "align_clocks: no session is recording in this process; call it inside one, or use profile(align_ranks=True)."
        )
    marks, complete = _PLACE.meet(rounds, timeout_s)
    if marks:
        # Earlier marks are written again: a recording needs those of its start and its end.
        _noted.update(marks)
        for name in list(_noted)[:-_MOST_NOTED]:
            del _noted[name]
        session.add_metadata_json(CLOCK_MARKS, json.dumps(_noted))
    return complete


class MeetingPlace:
    """The store of the job over a connection of our own, on which nothing of the job waits.

    Once a rank has not arrived or has failed, no rank waits any more: so a rank that does not record costs the others
    one wait, however often they would have met.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Nothing is connected yet; `clock_ns` is the clock that is compared."""
        self._clock_ns = clock_ns
        self._store = JobStore("clock")
        # With which connection a warning was given.
        self._warned_of = -1

    def meet(self, rounds: int, timeout_s: float) -> tuple[Marks, bool]:
        """Meet the other ranks some times.

        Args:
            rounds: How often.
            timeout_s: For how many seconds in all.

        Returns:
            For each barrier, by a name that no other of any job has, when this rank entered and when it left; and whether all
            ranks came to all.
        """
        if not in_company():
            return {}, True
        marks: Marks = {}
        try:
            self._meet(marks, rounds, timeout_s)
        except Exception as error:  # noqa: BLE001  (whatever the job's store fails at is none of the job's business)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if not isinstance(error, _OthersGaveUpError):
                self.give_up(reason, timeout_s)
            if self._warned_of != self._store.connections:
                self._warned_of = self._store.connections
                warn_user(
                    f"the clocks of the ranks were not aligned: {reason.rstrip('.?')}. Record on every rank with align_ranks=True, and "
                    "equally often; no rank of this job waits for the others again."
                )
            return marks, False
        return marks, True

    def give_up(self, reason: str, timeout_s: float) -> None:
        """Tell all ranks that this one has given up; those that wait for it continue."""
        try:
            if in_company():
                self._store.connect(timeout_s).set(_GIVEN_UP, reason)
        except Exception:  # noqa: BLE001  (then they hear of it when their time is over)
            self._store.forget()

    def _meet(self, marks: Marks, rounds: int, timeout_s: float) -> None:
        """Run the barriers, and return those that all ranks reached."""
        until_ns = self._clock_ns() + int(timeout_s * 1e9)
        store = self._store.connect(timeout_s)
        _raise_if_given_up(store)
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        job = store.compare_set("job", "", uuid.uuid4().hex).decode()
        # Each rank counts its own; equal numbers are the same one.
        number = store.add(f"times/{rank}", 1)
        for place in range(rounds):
            name = f"{number}/{place}"
            entered_ns = self._clock_ns()
            here = f"{name}/all"
            if store.add(f"{name}/came", 1) == ranks:
                store.set(here, "")
            if not wait_for_key(
                store, here, until_ns, self._clock_ns, partial(_raise_if_given_up, store, here)
            ):
                raise TimeoutError(f"not all ranks arrived within {timeout_s:g} s")
            marks[f"{job}/{name}"] = [entered_ns, self._clock_ns()]


class _OthersGaveUpError(Exception):
    """Another rank does not come any more."""


def _raise_if_given_up(store: Any, waited_for: str = "") -> None:
    """Raise an error if a rank does not come any more, unless all came before to what is waited for."""
    if store.check([_GIVEN_UP]) and not (waited_for and store.check([waited_for])):
        raise _OthersGaveUpError(f"a rank did not arrive or failed ({store.get(_GIVEN_UP).decode()})")


# Where the ranks meet for all sessions of this process.
_PLACE = MeetingPlace()


def _checked(rounds: Any, timeout_s: Any) -> None:
    """Check the arguments."""
    if type(rounds) is not int or rounds < 1:
        raise ArgumentError(f"rounds={rounds!r} is not valid: need a whole number above 0.")
    number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not (number and math.isfinite(timeout_s) and timeout_s > 0):
        raise ArgumentError(f"timeout_s={timeout_s!r} is not valid: need a number of seconds above 0.")


class RankClocks:
    """The source of `align_ranks=True`: synchronizes the ranks right before each recording and at its end."""

    def __init__(self, rounds: int = _ROUNDS, timeout_s: float = _TIMEOUT_S) -> None:
        """Nobody is met yet."""
        _checked(rounds, timeout_s)
        self._rounds = rounds
        self._timeout_s = timeout_s
        self._process = os.getpid()
        self._marks: Marks = {}
        self._append: AppendRows | None = None

    def open(self) -> None:
        """Nothing to prepare."""

    def start(self) -> None:
        """Synchronize before the recording starts."""
        self._marks = self._met()

    def write_to(self, append: AppendRows) -> None:
        """Write when the ranks met into the recording that has begun."""
        self._append = append
        _write(self._marks, append)

    def stop(self) -> None:
        """Synchronize at the end of the recording, unless the program is failing: the others may never arrive."""
        append, self._append = self._append, None
        failing = sys.exc_info()[1]
        if failing is None or isinstance(failing, GeneratorExit):
            marks = self._met()
            if append is not None:
                _write(marks, append)
        elif self._process == os.getpid():
            _PLACE.give_up(f"{type(failing).__name__} ended a recording", self._timeout_s)

    def close(self) -> None:
        """Nothing to close."""

    def _met(self) -> Marks:
        """Meet, if this is the rank and no forked child of it in which its session goes on."""
        return _PLACE.meet(self._rounds, self._timeout_s)[0] if self._process == os.getpid() else {}


def _write(marks: Marks, append: AppendRows) -> None:
    """Append meetings to a recording."""
    if marks:
        entered, left = zip(*marks.values(), strict=True)
        append(CLOCK_MARKS, {"name": [*marks], "entered_ns": [*entered], "left_ns": [*left]})
