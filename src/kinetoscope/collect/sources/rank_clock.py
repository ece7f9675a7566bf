"""Barriers at which the ranks of a job read their clocks, so that `kinetoscope.merge` can align them.

The barriers use the key-value store that the job was started with, over a separate connection. The job's collectives are not used: they are
neither delayed nor reordered, and do not fail if a rank does not arrive.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from functools import partial
from typing import Any

import torch.distributed

from kinetoscope._errors import StateError, checked_seconds, checked_whole
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from kinetoscope.collect.process.job_store import JobStore, is_distributed, wait_for_key
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.options import AppendRows, Source
from kinetoscope.combine.sources import CLOCK_MARKS

_GIVEN_UP = "given up"
_ROUNDS, _TIMEOUT_S = 5, 30.0

Marks = dict[str, list[int]]

# The results of `align_clocks` in this process, up to a limit.
_marks: Marks = {}
_MOST_MARKS = 1_000


def align_clocks(*, rounds: int = _ROUNDS, timeout_s: float = _TIMEOUT_S) -> bool:
    """Synchronize all ranks of the job by barriers, and write to the recording when this rank entered and left each.

    Every rank must call it, and equally often: at the start and at the end of the recording, so that
    `kinetoscope.merge` can compute the offset and drift of their clocks. `profile(align_ranks=True)` does that
    automatically. If a rank does not arrive, the others wait for `timeout_s` and warn; after that no rank of the job waits again,
    and other data is used to align the clocks. A call takes some round trips to the key-value store of the job.

    Args:
        rounds: Number of barriers; the one with the smallest error counts.
        timeout_s: Time limit of waiting for the other ranks in seconds, for all barriers together.

    Returns:
        Whether all ranks arrived; also True with one rank or without a process group, where nothing is written.

    Raises:
        ArgumentError: `rounds` or `timeout_s` is not a number above 0.
        StateError: No session is recording in this process.
    """
    checked_whole("rounds", rounds, 1)
    checked_seconds("timeout_s", timeout_s)
    session = ACTIVE_SESSIONS.current()
    if session is None:
        raise StateError(
            "align_clocks: no session is recording in this process; call it inside one, or use profile(align_ranks=True)."
        )
    marks, complete = _BARRIERS.run(rounds, timeout_s)
    if marks:
        # Earlier marks are written again: a recording needs those of its start and its end.
        _marks.update(marks)
        for name in list(_marks)[:-_MOST_MARKS]:
            del _marks[name]
        session.add_metadata_json(CLOCK_MARKS, json.dumps(_marks))
    return complete


class RankBarriers:
    """Barriers of all ranks of a job, through its key-value store.

    Once a rank has failed or did not arrive, no rank waits at later barriers. So a rank that does not record delays the others only once.
    """

    def __init__(self) -> None:
        self._store = JobStore("clock")
        # The number of the connection that we have warned of.
        self._warned_of = -1

    def run(self, rounds: int, timeout_s: float) -> tuple[Marks, bool]:
        """Run some barriers.

        Args:
            rounds: The number of barriers.
            timeout_s: Time limit in seconds, for all of them together.

        Returns:
            For each barrier, by a name that is unique over all jobs, when this rank entered and left it in nanoseconds; and whether
            all ranks came to all barriers.
        """
        if not is_distributed():
            return {}, True
        marks: Marks = {}
        try:
            self._run(marks, rounds, timeout_s)
        except Exception as error:  # noqa: BLE001  (whatever fails, the job must go on)
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
        """Tell all ranks that this one has given up, so that they stop waiting."""
        try:
            if is_distributed():
                self._store.connect(timeout_s).set(_GIVEN_UP, reason)
        except Exception:  # noqa: BLE001  (then the other ranks wait until the time limit)
            self._store.forget()

    def _run(self, marks: Marks, rounds: int, timeout_s: float) -> None:
        until_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        store = self._store.connect(timeout_s)
        _raise_if_given_up(store)
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        job = store.compare_set("job", "", uuid.uuid4().hex).decode()
        # The n-th calls of all ranks belong together.
        number = store.add(f"times/{rank}", 1)
        for round_number in range(rounds):
            name = f"{number}/{round_number}"
            entered_ns = time.monotonic_ns()
            here = f"{name}/all"
            if store.add(f"{name}/came", 1) == ranks:
                store.set(here, "")
            if not wait_for_key(store, here, until_ns, partial(_raise_if_given_up, store, here)):
                raise TimeoutError(f"not all ranks arrived within {timeout_s:g} s")
            marks[f"{job}/{name}"] = [entered_ns, time.monotonic_ns()]


class _OthersGaveUpError(Exception):
    """Another rank has given up."""


def _raise_if_given_up(store: Any, waited_for: str = "") -> None:
    """Raise an error if a rank has given up, unless all ranks had already reached the barrier `waited_for`."""
    if store.check([_GIVEN_UP]) and not (waited_for and store.check([waited_for])):
        raise _OthersGaveUpError(f"a rank did not arrive or failed ({store.get(_GIVEN_UP).decode()})")


# The barriers of all sessions of this process.
_BARRIERS = RankBarriers()


class RankClocks(Source):
    """The source of `align_ranks=True`: synchronizes the ranks right before each recording and at its end."""

    def __init__(self) -> None:
        """Start in the process whose rank is synchronized."""
        self._process = os.getpid()
        self._marks: Marks = {}
        self._append: AppendRows | None = None

    def start(self) -> None:
        """Run barriers before the recording starts."""
        self._marks = self._run_barriers()

    def write_to(self, append: AppendRows) -> None:
        """Write the times of those barriers to the recording."""
        self._append = append
        _write(self._marks, append)

    def stop(self) -> None:
        """Run barriers at the end of the recording, unless the program is failing: then the other ranks may never arrive."""
        append, self._append = self._append, None
        failing = sys.exc_info()[1]
        if failing is None or isinstance(failing, GeneratorExit):
            marks = self._run_barriers()
            if append is not None:
                _write(marks, append)
        elif self._process == os.getpid():
            _BARRIERS.give_up(f"{type(failing).__name__} ended a recording", _TIMEOUT_S)

    def _run_barriers(self) -> Marks:
        """Run barriers, except in a forked child, which is not the rank."""
        return _BARRIERS.run(_ROUNDS, _TIMEOUT_S)[0] if self._process == os.getpid() else {}


def _write(marks: Marks, append: AppendRows) -> None:
    if marks:
        entered, left = zip(*marks.values(), strict=True)
        append(CLOCK_MARKS, {"name": [*marks], "entered_ns": [*entered], "left_ns": [*left]})
