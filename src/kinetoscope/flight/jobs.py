"""The jobs that were left on, found from outside: their folders, ranks and incidents. Nothing in a job has to answer."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.flight import deaths
from kinetoscope.flight.incidents import INCIDENTS, incident_folders, time_of
from kinetoscope.flight.live_stacks import state_letter
from kinetoscope.flight.settings import default_folder
from kinetoscope.flight.step_log import SUFFIX, StepLog, read_step_log
from kinetoscope.storage.incident_files import read_facts
from kinetoscope.storage.live_recording import is_alive

HANGS, RUNS, ENDED, GONE = "hangs", "runs", "ended", "gone"
"""States of a rank: gone means that its process has ended without stopping, because it was killed or crashed."""

# In the folder of all jobs of a user, links to other folders with such.
_ELSEWHERE = "elsewhere"
FAILURES = ("crash", "oom", "exit", "hang")
"""The kinds of incidents of which a job ends."""
_SILENT_NS = 8_000_000_000
_MOST_ENDED = 16
_KEPT_S = 14 * 86400.0
# What a rank raises because another one has ended or hangs.
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by peer|broken pipe|remote process|ncclRemoteError|recvValue failed"
    r"|socket (timeout|error)|watchdog|timed out",
    re.IGNORECASE,
)
_RANK = re.compile(r"rank(\d+)\.")


@dataclass(frozen=True)
class RankFiles:
    """What there is of a rank, in the folder of its job or of an incident.

    Attributes:
        rank: The rank.
        recording: Its recording, or ring; the file may be missing.
        log: Its log of steps; None if there is none.
        facts: What it wrote about the incident; empty for a ring.
        state: What its process does now.
        changed_s: When it last wrote, in seconds since 1970.
        death: How its process ended, if another rank has noted that.
    """

    rank: int
    recording: Path
    log: StepLog | None
    facts: dict[str, Any]
    state: str
    changed_s: float
    death: deaths.Death | None = None

    @property
    def process(self) -> int | None:
        """The id of its process, if known."""
        if self.log is None and self.death is not None:
            return self.death.process
        return self.log.process if self.log is not None else self.facts.get("process")


@dataclass(frozen=True)
class Attempt:
    """A start of a job: `FOLDER/JOB/ATTEMPT`."""

    folder: Path

    @property
    def name(self) -> str:
        """The job, and which start of it, if not the first."""
        number = self.folder.name
        return self.folder.parent.name + ("" if number == "0" else f", start {number}")

    def rings(self, now_ns: int | None = None) -> list[RankFiles]:
        """The rings of its ranks, in order of the ranks; `now_ns` is the monotonic clock."""
        return _ranks(self.folder, time.monotonic_ns() if now_ns is None else now_ns)

    def incidents(self) -> list[Path]:
        """The folders of its incidents, the oldest first."""
        return incident_folders(self.folder)


def incident_ranks(folder: Path) -> list[RankFiles]:
    """The ranks that wrote to the folder of an incident, in their order."""
    return _ranks(folder, None)


def is_consequence(rank: RankFiles) -> bool:
    """Whether a rank failed because another one had ended, or hung, by what it said."""
    what = str(rank.facts.get("what", ""))
    return rank.facts.get("reason") == "exit" or _CONSEQUENCE.search(what) is not None


def first_failure(ranks: Iterable[RankFiles]) -> list[RankFiles]:
    """Those of some ranks that failed by themselves, the first failure first; what is the consequence of another rank's end comes last."""

    def order(rank: RankFiles) -> tuple[bool, float]:
        return is_consequence(rank), float(rank.facts.get("time_s") or 0.0)

    return sorted((rank for rank in ranks if rank.facts and "because_of_rank" not in rank.facts), key=order)


def attempts_in(folder: Path, *, listed: bool = True) -> list[Attempt]:
    """The attempts in a folder: itself, those of a job, or those of all jobs. The one that wrote last is the last.

    Args:
        folder: The folder.
        listed: Whether the folder of all jobs of this user stands also for other folders with jobs of this user, see `list_folder`.
    """
    folders = [folder]
    if listed and folder == default_folder():
        folders += [link.resolve() for link in sorted((folder / _ELSEWHERE).glob("*"))]
    attempts = {
        path
        for base in folders
        for pattern in ("", "*", "*/*")
        for path in (base.glob(pattern) if pattern else [base])
        if (path / INCIDENTS).is_dir() or any(path.glob(f"rank*{SUFFIX}"))
    }
    attempts = {path for path in attempts if INCIDENTS not in (path.parent.name, path.name)}
    return [Attempt(path) for path in sorted(sorted(attempts), key=_changed_s)]


def list_folder(folder: Path) -> None:
    """Have the jobs in a folder found in the one of all jobs of this user, too, by a link in it.

    Raises:
        OSError: That folder cannot be written to.
    """
    links = default_folder() / _ELSEWHERE
    if folder == default_folder():
        return
    links.mkdir(mode=0o700, parents=True, exist_ok=True)
    for link in links.iterdir():
        if not link.exists():
            link.unlink(missing_ok=True)
    with suppress(FileExistsError):
        (links / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]).symlink_to(folder)


def attempt_of_process(folder: Path, process: int) -> Attempt:
    """The attempt that a process belongs to, in a folder of jobs or in any that is listed.

    Raises:
        ArgumentError: There is no such process.
    """
    for attempt in reversed([*attempts_in(default_folder()), *attempts_in(folder)]):
        ranks = [*attempt.rings(), *(rank for path in attempt.incidents() for rank in incident_ranks(path))]
        if process in (rank.process for rank in ranks):
            return attempt
    raise ArgumentError(
        f"process {process} was not left on, as far as {folder} shows: `kinetoscope ps` lists those that are. If it uses another folder, "
        "give the folder (KINETOSCOPE_DIR)."
    )


def sweep(folder: Path, now_s: float | None = None) -> None:
    """Remove the files of attempts that have ended: of all but the last 16, and of those older than two weeks.

    Args:
        folder: The folder of all jobs.
        now_s: The time in seconds since 1970; None for now.
    """
    ended = [
        attempt
        for attempt in attempts_in(folder, listed=False)
        if all(ring.state in (ENDED, GONE) for ring in attempt.rings())
    ]
    oldest_s = (time.time() if now_s is None else now_s) - _KEPT_S
    newest = ended[-_MOST_ENDED:]
    for attempt in ended:
        if attempt not in newest or _changed_s(attempt.folder) < oldest_s:
            shutil.rmtree(attempt.folder, ignore_errors=True)
            with suppress(OSError):
                attempt.folder.parent.rmdir()


def _ranks(folder: Path, now_ns: int | None) -> list[RankFiles]:
    """The ranks whose files are in a folder; without the time, they are those of an incident."""
    numbers = {int(match[1]) for path in folder.glob("rank*.*") if (match := _RANK.match(path.name))}
    ranks = []
    for number in sorted(numbers):
        recording = folder / f"rank{number}.recording"
        log = None
        with suppress(OSError):
            log = read_step_log(recording.with_suffix(SUFFIX))
        facts = read_facts(recording.with_suffix(".json"))
        if now_ns is None and not facts and log is not None:
            # There was no room for its file.
            facts = facts_of_end(log)
        state = ENDED if now_ns is None else state_of(log, now_ns)
        death = deaths.noted_death(recording.with_suffix(deaths.SUFFIX), log.process if log else None)
        if death is not None and log is None:
            state = GONE
        changed_s = _changed_s(recording) or (death.time_s if death is not None else 0.0)
        ranks.append(RankFiles(number, recording, log, facts, state, changed_s, death))
    return ranks


def forget_ended(attempt: Attempt, own_rank: int) -> bool:
    """Remove the logs of ranks that have ended, unless others go on, or the job has failed and they may say why; return whether that was done."""
    rings = attempt.rings()
    has_failed = any(path.name.split("-")[1] in FAILURES for path in attempt.incidents())
    if has_failed or any(ring.state in (RUNS, HANGS) and ring.rank != own_rank for ring in rings):
        return False
    for ring in rings:
        if ring.state == ENDED:
            for suffix in (SUFFIX, deaths.SUFFIX):
                ring.recording.with_suffix(suffix).unlink(missing_ok=True)
    return True


def state_of(log: StepLog | None, now_ns: int) -> str:
    """What a rank does now, by its log; `now_ns` is the monotonic clock."""
    if log is not None and log.left_ring:
        return GONE
    if log is None or log.stopped:
        return ENDED
    wrote_ns = log.steps[-1].began_ns if log.steps else log.began_ns or None
    if not is_alive(log.process, wrote_ns):
        return GONE
    overdue = log.hang_ns > 0 and log.began_ns > 0 and now_ns - log.began_ns > log.hang_ns
    # A process that is stopped, or whose Python's lock is held, does not judge itself.
    is_silent = overdue and now_ns - max(log.judged_ns, log.began_ns + log.hang_ns) > _SILENT_NS
    return HANGS if log.hung or (is_silent and not is_running(log)) else RUNS


def is_running(log: StepLog) -> bool:
    """Whether the thread that marks the steps runs, or a debugger has stopped it."""
    return state_letter(log.process, log.thread or log.process) in ("R", "t")


def facts_of_end(log: StepLog) -> dict[str, Any]:
    """What a process said of an incident that has no whole copy of its ring; empty without one."""
    cause, problem = log.end.get("what", log.end.get("reason", "")), log.end.get("copy_failed")
    if problem:
        cause += f"; the ring could not be copied ({problem}), so it was moved when the program ended"
    return {**log.end, "what": cause} if log.end else {}


def _changed_s(path: Path) -> float:
    """When a file changed, or the newest file in a folder; 0 if there is none."""
    times = [0.0]
    with suppress(OSError):
        times.append(path.stat().st_mtime)
        if path.is_dir():
            times += [file.stat().st_mtime for file in path.glob("rank*.*")]
            times += [time_of(incident) or 0.0 for incident in incident_folders(path)]
    return max(times)
