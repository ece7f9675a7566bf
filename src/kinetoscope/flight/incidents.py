"""The folder of a job's incidents: what is written there, how often, and how long it stays.

In FOLDER/JOB/ATTEMPT, rank0.recording is the ring, as long as the process runs, or if it was killed. Each incident is a folder
incidents/TIME-REASON, with rank0.recording and rank0.json of each rank, and incident.json about all of them.
"""

from __future__ import annotations

import calendar
import contextvars
import json
import math
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetoscope.collect import warn_safely
from kinetoscope.storage.atomic_write import write_atomically

INCIDENTS = "incidents"
"""The name of the folder of incidents."""

CAPTURES = "captures"
"""The name of the folder of captures."""

_HOUR_S = 3600.0
_TOGETHER_S = 90.0
_MOST_KEPT = 24
_TIME = "%Y%m%dT%H%M%SZ"
# What follows the name of the first of several with one name, the second, and so on.
_NUMBERS = ["", *(f"-{number}" for number in range(2, 1000))]


def rank_name(rank: int) -> str:
    """The name that the files of a rank begin with."""
    return f"rank{rank}"


@dataclass
class Incidents:
    """Writes the incidents of one rank.

    Attributes:
        attempt: The folder of an attempt, below which it writes.
        rank: This rank.
        most_in_an_hour: How many incidents of a reason are written within an hour.
        now_s: The system's clock.
        most_bytes: What incidents and captures may take for each rank of the attempt, together.
        paths: The files of the incidents that this process wrote, the oldest first.
        refused: How many were not written because there were too many within an hour.
        uncopied: What the last incident said whose copy failed; None without one.
    """

    attempt: Path
    rank: int
    most_in_an_hour: int
    now_s: Callable[[], float] = time.time
    most_bytes: float = math.inf
    paths: list[Path] = field(default_factory=list, init=False)
    refused: int = field(default=0, init=False)
    uncopied: dict[str, Any] | None = field(default=None, init=False)
    _written_s: defaultdict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque), init=False)

    def write(
        self,
        reason: str,
        facts: Mapping[str, Any],
        copy: Callable[[Path], object],
        *,
        asked: bool = False,
        name: str = "",
    ) -> Path | None:
        """Write an incident.

        Args:
            reason: What happened, one of `settings.REASONS`, or the user's words.
            facts: What else is known, as JSON values.
            copy: Called with the path to copy the ring to.
            asked: Whether a person asked for it, or it is the end of the program; then the limit for each hour does not apply.
            name: The name of the folder, that of another rank's incident; empty for one of its own.

        Returns:
            The recording, or None if there were too many incidents of this reason within an hour. If it could not be copied, the file is missing, and
            `uncopied` says why.
        """
        now_s = self.now_s()
        written_s = self._written_s[reason]
        while written_s and now_s - written_s[0] >= _HOUR_S:
            written_s.popleft()
        if not asked and len(written_s) >= self.most_in_an_hour:
            self.refused += 1
            return None
        if not asked:
            written_s.append(now_s)
        incident = {"reason": reason, "rank": self.rank, "time_s": now_s, **facts}
        folder = self.attempt / INCIDENTS / name if name else self._place(reason, now_s)
        path = folder / f"{rank_name(self.rank)}.recording"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            copy(path)
        except Exception as error:  # noqa: BLE001  (the reason is worth keeping without the ring)
            incident["copy_failed"] = _why(error)
        try:
            write_atomically(path.with_suffix(".json"), json.dumps(incident, indent=1, default=str).encode())
        except OSError as error:
            incident.setdefault("copy_failed", _why(error))
        if "copy_failed" in incident:
            self.uncopied = incident
        self.paths.append(path)
        with suppress(OSError):
            self.sweep()
        return path

    def new_capture(self, step: int) -> Path:
        """The name of the recording of a capture that begins with a step."""
        name = f"{rank_name(self.rank)}-step{step}"
        paths = (self.attempt / CAPTURES / f"{name}{number}.recording" for number in _NUMBERS)
        return next(path for path in paths if not path.exists())

    def _place(self, reason: str, now_s: float) -> Path:
        """The folder of an incident: that of another rank if it had one of the same kind just before."""
        name = "".join(letter if letter.isalnum() else "-" for letter in reason)[:40].strip("-") or "asked"
        for other in reversed(incident_folders(self.attempt)):
            began_s = time_of(other)
            same = other.name.partition("-")[2] == name and not self._has_own(other)
            if same and began_s is not None and abs(now_s - began_s) <= _TOGETHER_S:
                return other
        text = time.strftime(_TIME, time.gmtime(now_s))
        folders = (self.attempt / INCIDENTS / f"{text}-{name}{number}" for number in _NUMBERS)
        return next(folder for folder in folders if not self._has_own(folder))

    def _has_own(self, folder: Path) -> bool:
        return (folder / f"{rank_name(self.rank)}.json").exists()

    def sweep(self) -> None:
        """Remove the oldest incidents and captures of too many, or of too many bytes, but never the newest, nor the first incident, which may have caused the others."""
        attempt = self.attempt
        captures = (attempt / CAPTURES).glob("*.recording")
        newest: list[tuple[float, list[Path]]] = [
            *((path.stat().st_mtime, [*path.iterdir(), path]) for path in incident_folders(attempt)[1:]),
            *((path.stat().st_mtime, [path, path.with_suffix(".json")]) for path in captures),
        ]
        newest.sort(reverse=True)
        left_bytes = self.most_bytes * max(len(list(attempt.glob("rank*.recording"))), 1)
        for number, (_, paths) in enumerate(newest):
            left_bytes -= sum(path.stat().st_blocks * 512 for path in paths if path.exists())
            if number and (left_bytes < 0 or number >= _MOST_KEPT - 1):
                for path in paths:
                    with suppress(OSError):
                        path.rmdir() if path.is_dir() else path.unlink()


def _why(error: Exception) -> str:
    """What failed, such as `No space left on device`; the file is the one that is missing."""
    return (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"


def incident_folders(attempt: Path) -> list[Path]:
    """The incidents of an attempt, the oldest first."""
    try:
        folders = [folder for folder in (attempt / INCIDENTS).iterdir() if time_of(folder) is not None]
    except OSError:
        return []
    return sorted(folders)


def time_of(folder: Path) -> float | None:
    """When an incident began, in seconds since 1970, by the name of its folder; None if it is none."""
    try:
        return float(calendar.timegm(time.strptime(folder.name.partition("-")[0], _TIME)))
    except ValueError:
        return None


_END = "end"
# How long a program that ends waits, in seconds: one that is terminated has little time.
_WAIT_S = {"crash": 30.0, "oom": 30.0, _END: 30.0, "exit": 5.0}


class IncidentCalls:
    """Calls functions with the recordings of incidents, on a thread of its own: they may take long, and the program must not wait."""

    def __init__(self) -> None:
        self._calls: list[tuple[contextvars.Context, Callable[[Path], object]]] = []
        # Of a kind that a signal handler may put to while the thread that it interrupts does.
        self._waiting: queue.SimpleQueue[tuple[Path | None, threading.Event]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, call: Callable[[Path], object]) -> None:
        """Call a function from now on, in the context variables of this caller."""
        self._calls.append((contextvars.copy_context(), call))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kinetoscope-incidents", daemon=True)
            self._thread.start()

    def tell(self, path: Path | None, reason: str) -> None:
        """Have the functions called with a recording, if there is one; wait for them, but not for long, where the program ends."""
        if path is not None:
            self._put(path, reason)

    def finish(self) -> None:
        """End the thread, and wait for what is under way, but not for long."""
        self._put(None, _END)
        self._thread = None

    def _put(self, path: Path | None, reason: str) -> None:
        if self._thread is None or not self._thread.is_alive():
            return
        done = threading.Event()
        self._waiting.put((path, done))
        if reason in _WAIT_S and threading.current_thread() is not self._thread:
            done.wait(_WAIT_S[reason])

    def _run(self) -> None:
        while True:
            path, done = self._waiting.get()
            if path is None:
                done.set()
                return
            for context, call in list(self._calls):
                try:
                    context.run(call, path)
                except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
                    warn_safely(f"the incident {path} was not passed on: {type(error).__name__}: {error}")
            done.set()
