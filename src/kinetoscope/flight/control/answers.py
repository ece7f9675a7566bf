"""What requests are answered, in the process beside the job: from the job's files, and by the program itself where it answers in time."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetoscope.flight.control.metrics import metrics_text
from kinetoscope.flight.incidents import Incidents
from kinetoscope.flight.jobs import ENDED, HANGS, RUNS, state_of
from kinetoscope.flight.step_log import StepLog, read_step_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetoscope.flight.control.program_link import ProgramLink

STARTS = "starts"
"""The state of a job whose first step has not begun; others are those of `kinetoscope.flight.jobs`."""

MOST_STEPS = 100_000
"""No capture has more steps."""

_MOST_REASON = 100
# A request is answered within two seconds, so what it waits for takes less.
_STATUS_S, _BEHIND_S, _PROGRAM_S, _FILE_S = 0.5, 0.1, 0.7, 0.7
_MOST_KEPT = 24


@dataclass(frozen=True)
class ControlledRank:
    """A rank of a job that can be controlled.

    Attributes:
        process: Its process.
        job: The job.
        attempt: Which start of the job.
        rank: The rank.
        folder: The folder of this start of the job.
        log: Its log of steps.
        ring: Its ring.
    """

    process: int
    job: str
    attempt: str
    rank: int
    folder: str
    log: str
    ring: str


class Answer(NamedTuple):
    """An answer.

    Attributes:
        code: The status code of HTTP.
        said: JSON values, or a text.
    """

    code: int
    said: dict[str, Any] | str


class Answers:
    """Answers requests about one rank; called from several threads."""

    def __init__(self, rank: ControlledRank, link: ProgramLink) -> None:
        self._rank = rank
        self._link = link
        self._lock = threading.Lock()
        self._numbers = 0
        # What the program said of itself when it last answered.
        self._told: dict[str, Any] = {}
        # A capture that the program was asked for, but has not answered about.
        self._asked_capture: str | None = None
        self._refused_capture: dict[str, str] | None = None
        self._snapshot: str | None = None
        # Those that were written here.
        self._incidents: list[str] = []

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended, or stopped recording."""
        return self._link.ended

    def status(self) -> Answer:
        """The state of the job."""
        return Answer(200, self._status(self._log()))

    def metrics(self) -> Answer:
        """The state of the job as metrics for Prometheus."""
        log = self._log()
        return Answer(200, metrics_text(self._status(log), log))

    def capture(self, steps: Any = 5) -> Answer:
        """Record each of the next steps."""
        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
            return Answer(400, {"error": f"steps={steps!r}: need a whole number from 1 to {MOST_STEPS:,}"})
        with self._lock:
            running = self._asked_capture
            if running is None:
                path = str(self._new_file("captures", ".recording"))
                self._asked_capture = path
        if running is not None:
            return _busy("capture", running)
        wait_s = _BEHIND_S if self._link.is_behind else _PROGRAM_S
        try:
            reply = self._link.ask("capture", wait_s, self._told_of_capture, steps=steps, path=path)
        except OSError as error:
            self._asked_capture = None
            return Answer(503, {"error": f"the program takes no requests: {error}"})
        if reply is None:
            return self._unanswered_capture(path, steps)
        if busy := reply.get("busy"):
            return _busy("capture", busy)
        if problem := reply.get("problem"):
            return Answer(503, {"error": problem})
        return Answer(202, {"path": path, "steps": steps})

    def snapshot(self, reason: Any = "snapshot") -> Answer:
        """Copy the ring now, without the program."""
        if not isinstance(reason, str) or not reason.strip() or len(reason) > _MOST_REASON:
            return Answer(400, {"error": f"reason: need a text of 1 to {_MOST_REASON} characters"})
        with self._lock:
            if self._snapshot is not None:
                return _busy("snapshot", self._snapshot)
            self._snapshot = ""
        made = _Made(lambda done: self._write_snapshot(reason.strip(), done))
        problem = made.wait(_FILE_S)
        if problem:
            return Answer(503, {"error": f"the ring could not be copied: {problem}"})
        writing = self._snapshot
        if made.path is None:
            return Answer(202, {"path": writing, "note": "it is still being written"})
        return Answer(201, {"path": made.path})

    def stacks(self) -> Answer:
        """The stacks of all threads: by the program itself or, if it does not answer, from the last samples in the ring."""
        place = self._new_file("stacks", ".txt")
        reply = self._link.ask(
            "stacks", _BEHIND_S if self._link.is_behind else _PROGRAM_S, None, path=str(place)
        )
        if reply is not None and "problem" not in reply:
            return Answer(200, {"from": "program", "path": str(place), "stacks": _text_of(place)})
        # The program may write to the first file later.
        place = self._new_file("stacks", ".txt")
        made = _Made(lambda done: self._write_stacks(place, done))
        problem = made.wait(_FILE_S)
        if problem:
            return Answer(
                503, {"error": f"the program does not answer, and its ring cannot be read: {problem}"}
            )
        if made.path is None:
            return Answer(202, {"from": "ring", "path": str(place), "note": "the ring is still being read"})
        return Answer(200, {"from": "ring", "path": str(place), "stacks": _text_of(place)})

    def ended(self) -> Answer:
        """The answer to everything once the program has stopped recording."""
        return Answer(
            503, {"error": f"process {self._rank.process} has ended, or has stopped the flight recorder"}
        )

    # -------------------------------------------------------------------------------------------------------- state

    def _log(self) -> StepLog | None:
        with suppress(OSError):
            return read_step_log(self._rank.log)
        return None

    def _status(self, log: StepLog | None) -> dict[str, Any]:
        """What is known of the rank: by its log of steps, and by what it says itself."""
        reply = self._link.ask("status", _BEHIND_S if self._link.is_behind else _STATUS_S)
        if reply is not None and "problem" not in reply:
            self._told = reply["status"]
        state = ENDED if self._link.ended else None
        return {
            **outside_status(self._rank, log, state),
            **self._told,
            "answered": reply is not None,
            "incidents": [*self._told["incidents"], *self._incidents] if self._told else None,
            "capture_not_answered": self._asked_capture,
            "capture_refused": self._refused_capture,
        }

    # ------------------------------------------------------------------------------------------------------ actions

    def _told_of_capture(self, reply: dict[str, Any]) -> None:
        """Remember what the program answered to a capture, perhaps long after it was asked."""
        path, self._asked_capture = self._asked_capture, None
        if reply.get("busy") or reply.get("problem"):
            why = reply.get("problem") or f"another capture is running: {reply['busy']}"
            self._refused_capture = {"path": path or "", "reason": why}

    def _unanswered_capture(self, path: str, steps: int) -> Answer:
        """The answer where the program has not answered yet, or will not."""
        if self._link.ended:
            self._asked_capture = None
            return self.ended()
        log = self._log()
        why = "the program does not answer now"
        if log is not None and state_of(log, time.monotonic_ns()) == HANGS:
            why = f"the program hangs in step {log.number}"
        return Answer(
            202, {"path": path, "steps": steps, "note": f"{why}: the capture begins at its next step"}
        )

    def _write_snapshot(self, reason: str, done: Callable[[str], None]) -> None:
        """Copy the ring as an incident."""
        from kinetoscope.storage.recording_parts import clone

        def copy(path: Path) -> None:
            self._snapshot = str(path)
            clone(self._rank.ring, path)

        try:
            log = self._log()
            facts = {
                "step": log.number if log is not None else None,
                "process": self._rank.process,
                "overhead": self._told.get("overhead"),
                "what": "asked for by a request",
            }
            folder = Path(self._rank.folder)
            path = Incidents(folder, self._rank.rank, 1).write(reason, facts, copy, asked=True)
            with suppress(OSError):
                if path is not None:
                    log_file = Path(self._rank.log)
                    path.with_suffix(log_file.suffix).write_bytes(log_file.read_bytes())
            self._incidents.append(str(path))
            done(str(path))
        finally:
            self._snapshot = None

    def _write_stacks(self, place: Path, done: Callable[[str], None]) -> None:
        """Write down the stacks of the last samples."""
        from kinetoscope.flight.ring_stacks import ring_stacks, stacks_text

        place.write_text(stacks_text(ring_stacks(Path(self._rank.ring))))
        done(str(place))

    def _new_file(self, kind: str, suffix: str) -> Path:
        """A new name in a folder of the job, of whose files the last ones stay."""
        folder = Path(self._rank.folder, kind)
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            files = sorted(folder.glob(f"*{suffix}"), key=lambda one: one.stat().st_mtime)
            for old in files[: -(_MOST_KEPT - 1)]:
                for file in folder.glob(f"{old.stem}.*"):
                    file.unlink()
        when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        while True:
            # Beside those of this process, there may be some that the job made in the same second before it was restarted.
            self._numbers += 1
            path = folder / f"{Path(self._rank.log).stem}-{when}-{self._numbers}{suffix}"
            if not path.exists():
                return path


def outside_status(rank: ControlledRank, log: StepLog | None, state: str | None = None) -> dict[str, Any]:
    """What is known of a rank without asking it; None stands for what only the program knows.

    Args:
        rank: The rank.
        log: Its log of steps.
        state: Its state, if that is known; else the log tells it.
    """
    now_ns = time.monotonic_ns()
    if state is None:
        state = state_of(log, now_ns)
    begun = log if log is not None and log.number >= 0 else None
    if state == RUNS and begun is None:
        state = STARTS
    return {
        "job": rank.job,
        "attempt": rank.attempt,
        "rank": rank.rank,
        "process": rank.process,
        "state": state,
        "answered": False,
        "step": begun.number if begun else None,
        "in_step_ns": now_ns - begun.began_ns if begun and begun.began_ns else None,
        "recorded": begun.recorded if begun else None,
        "memory_bytes": log.memory[-1][1] if log is not None and log.memory else None,
        "recorded_percent": None,
        "overhead": None,
        "budget_percent": None,
        "overhead_percent": None,
        "overhead_low_percent": None,
        "overhead_high_percent": None,
        "incidents": None,
        "refused": None,
        "problem": None,
        "capture": None,
        "capture_not_answered": None,
        "capture_refused": None,
        "address": None,
        "ring": rank.ring,
        "folder": rank.folder,
    }


class _Made:
    """A file that is written on a thread of its own, for which nobody waits longer than a moment.

    Attributes:
        path: The file, once it is complete.
    """

    def __init__(self, write: Callable[[Callable[[str], None]], None]) -> None:
        self.path: str | None = None
        self._problem = ""
        self._write = write
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> str:
        """Wait at most so long; return what failed, if that is known by then."""
        self._thread.join(seconds)
        return self._problem

    def _run(self) -> None:
        try:
            self._write(self._done)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the answer)
            self._problem = f"{type(error).__name__}: {error}"

    def _done(self, path: str) -> None:
        self.path = path


def _busy(what: str, path: str) -> Answer:
    return Answer(409, {"error": f"another {what} is running: {path}", "path": path})


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        return str(error)
