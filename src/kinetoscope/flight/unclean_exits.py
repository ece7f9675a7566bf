"""Processes that ended without a word, because they were killed or crashed in C: their rings become incidents.

A process that is killed can write nothing, and another one beside it would know no more than its files say. So the files wait: they
are read where they are by `kinetoscope last`, and the next job that is left on makes incidents of them, by moving them, which needs no
room on the disk.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kinetoscope.flight.deaths import SUFFIX as DEATH_SUFFIX
from kinetoscope.flight.deaths import Death, death_of
from kinetoscope.flight.incidents import Incidents
from kinetoscope.flight.jobs import GONE, Attempt, RankFiles, attempts_in, facts_of_end, incident_ranks
from kinetoscope.flight.step_log import SUFFIX, StepLog
from kinetoscope.model import units

_ENDS = frozenset({"crash", "oom", "exit", "hang"})
# Of the memory from which the system may kill a program. It is read once a second, so the last reading is a little old.
_NEARLY_ALL = 0.9


def rescue_rings(folder: Path) -> list[Path]:
    """Make incidents of the rings of processes that ended without a word.

    Only processes of this machine, whose ids mean the same here as where they were written, are taken for dead. Files that cannot be
    moved stay where they are.

    Args:
        folder: The folder of all jobs.

    Returns:
        The recordings of the new incidents.
    """
    return [path for attempt in attempts_in(folder, listed=False) for path in rescue_rings_of(attempt)]


def rescue_rings_of(attempt: Attempt) -> list[Path]:
    """Do as `rescue_rings` does, for one start of a job."""
    paths: list[Path] = []
    if any(_is_dead(ring) for ring in attempt.rings()):
        with suppress(OSError), _locked(attempt.folder):
            # Again, because another process may have done it meanwhile.
            for ring in attempt.rings():
                if _is_dead(ring) and not has_exit_note(attempt, ring):
                    paths += _keep(attempt, ring)
    return paths


def has_exit_note(attempt: Attempt, ring: RankFiles) -> bool:
    """Whether a process that is gone wrote an incident in its last step that says why, or that it hung before it was killed, and that has the ring."""
    log = ring.log
    return log is not None and any(
        rank.rank == ring.rank
        and "copy_failed" not in rank.facts
        and rank.facts.get("reason") in _ENDS
        # Another rank's crash, as whose consequence its ring was copied, does not say why it died.
        and (rank.facts.get("answered", True) or rank.facts["reason"] == "hang")
        and rank.facts.get("process") == log.process
        and rank.facts.get("step") == log.number
        for incident in attempt.incidents()
        for rank in incident_ranks(incident)
    )


def last_seen_s(ring: RankFiles) -> float:
    """When a process was last seen, in seconds since 1970, by its readings of the memory, or by its files."""
    log = ring.log
    if ring.death is not None:
        return ring.death.time_s
    if log is None or not log.memory:
        return ring.changed_s
    return time.time() - (time.monotonic_ns() - log.last_seen_ns) / 1e9


def end_text(step: int | None, log: StepLog | None, death: Death | None = None) -> str:
    """What is known of the end of a process that ended without a word, as the end of a sentence."""
    if log is None and death is not None:
        return death.text.format("before it was left on")
    where = "before its first step" if step is None else f"in step {step}"
    if log is not None and log.steps and not log.began_ns:
        where = f"after step {log.steps[-1].number}"
    if log is not None and log.end:
        return f"ended {where}: {facts_of_end(log)['what']}"
    if log is not None and log.signal:
        name = signal.Signals(log.signal).name
        return f"crashed {where} with {name} ({signal.strsignal(log.signal)}) outside of Python"
    if death is None and log is not None and log.is_of_here:
        death = death_of(log.process)
    text = "ended without a word {}: killed, or crashed outside of Python" if death is None else death.text
    text = text.format(where)
    if log is not None and log.memory and log.most_bytes > 0:
        had_bytes = log.memory[-1][1]
        if had_bytes >= _NEARLY_ALL * log.most_bytes:
            text += f"; it had {units.size(had_bytes)}, nearly all memory that it may have, so the system may have killed it"
    return text


def _is_dead(ring: RankFiles) -> bool:
    return ring.state == GONE and ring.log is not None and ring.log.is_of_here and ring.recording.is_file()


def _keep(attempt: Attempt, ring: RankFiles) -> list[Path]:
    """Move a ring and its log to an incident; nothing if that fails."""
    log, seen_s = ring.log, last_seen_s(ring)
    step = log.number if log is not None and log.number >= 0 else None
    facts = {"step": step, "process": ring.process, "what": f"the process {end_text(step, log, ring.death)}"}
    facts |= {} if log is None else facts_of_end(log)
    # Where the process wrote why, but could not copy the ring.
    names = [
        incident.name
        for incident in attempt.incidents()
        for rank in incident_ranks(incident)
        if "copy_failed" in rank.facts and (rank.rank, rank.process) == (ring.rank, ring.process)
    ]

    def move(path: Path) -> None:
        with suppress(OSError):
            ring.recording.with_suffix(SUFFIX).rename(path.with_suffix(SUFFIX))
            ring.recording.with_suffix(DEATH_SUFFIX).unlink(missing_ok=True)
        ring.recording.rename(path)

    path = Incidents(attempt.folder, ring.rank, 1, lambda: seen_s).write(
        str(facts.get("reason", GONE)), facts, move, asked=True, name=names[-1] if names else ""
    )
    return [] if path is None or not path.exists() else [path]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes that do the same out of a folder.

    Raises:
        OSError: The folder cannot be locked, or another process has locked it.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)
