"""Requests to jobs that can be controlled, and what is known from outside of those that do not answer."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.flight.control.in_job import SUFFIX, short_path
from kinetoscope.flight.jobs import ENDED, GONE, RUNS, Attempt, RankFiles, attempt_of_process, attempts_in
from kinetoscope.flight.ring_stacks import stacks_from_outside
from kinetoscope.storage.recording_parts import cut_steps
from kinetoscope.trace import open as open_trace

ANSWER_S = 1.9
"""A job that has not answered within so many seconds does not answer."""

STARTS = "starts"
"""The state of a job whose first step has not begun; others are those of `kinetoscope.flight.jobs`."""

# What only the program knows of itself.
_OF_PROGRAM = (
    "recorded_percent",
    "overhead",
    "budget_percent",
    "overhead_percent",
    "overhead_low_percent",
    "overhead_high_percent",
    "incidents",
    "refused",
    "problem",
    "capture",
)


class ControlRequest(socket.socket):
    """A request that was sent to a rank, on a connection of its own: closing it cancels a capture.

    Raises:
        StateError: Nobody listens; the message says why.
    """

    def __init__(self, target: ControlTarget, **asked: Any) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._target = target
        self.settimeout(ANSWER_S)
        try:
            with short_path(target.files.recording.with_suffix(SUFFIX)) as path:
                self.connect(path)
            self.sendall(json.dumps(asked).encode() + b"\n")
        except OSError as error:
            self.close()
            raise StateError(f"{target.label} does not answer: {target.why(error)}") from error

    def answer(self, most_s: float = ANSWER_S) -> dict[str, Any]:
        """Wait for the answer.

        Args:
            most_s: How long, in seconds.

        Raises:
            StateError: None came, or it says that the request failed.
        """
        until, received = time.monotonic() + most_s, b""
        try:
            while not received.endswith(b"\n"):
                self.settimeout(max(until - time.monotonic(), 1e-6))
                part = self.recv(1 << 16)
                if not part:
                    raise ConnectionResetError
                received += part
        except OSError as error:
            is_late = isinstance(error, TimeoutError | BlockingIOError)
            why = f"nothing came within {most_s:g} s" if is_late else self._target.why(error)
            raise StateError(f"{self._target.label} does not answer: {why}") from error
        answer: dict[str, Any] = json.loads(received)
        if "error" in answer:
            raise StateError(f"{self._target.label} refuses: {answer['error']}")
        return answer


@dataclass(frozen=True)
class ControlTarget:
    """A rank that requests can be sent to.

    Attributes:
        files: What there is of it.
        attempt: Its start of the job.
    """

    files: RankFiles
    attempt: Attempt

    @property
    def label(self) -> str:
        """How messages name the rank: its number, its attempt and its process."""
        return f"rank {self.files.rank} of {self.attempt.name}, process {self.files.process},"

    def ask(self, do: str) -> dict[str, Any]:
        """Send a request, `status` or `stacks`, and return the answer.

        Raises:
            StateError: Nobody answered, or it was refused; the message says why.
        """
        with ControlRequest(self, do=do) as request:
            return request.answer()

    def status(self) -> tuple[dict[str, Any], str]:
        """The state of the rank, and why the program itself did not answer; that is empty if it did."""
        state = self._state_from_outside()
        try:
            return {**state, **self.ask("status"), "answered": True}, ""
        except StateError as error:
            return state, str(error)

    def stacks(self) -> dict[str, Any]:
        """The stacks of all threads: `from`, the `program` itself, its memory (`process`) or its `ring`, and `stacks`, the text.

        Raises:
            FormatError: The program does not answer, and its ring cannot be read.
        """
        try:
            return {"from": "program", "stacks": self.ask("stacks")["stacks"]}
        except StateError:
            source, text = stacks_from_outside(self.files.process, self.files.recording, self.files.log)
            return {"from": source, "stacks": text}

    def _state_from_outside(self) -> dict[str, Any]:
        """What is known of the rank by its files; None stands for what only the program knows."""
        log, state = self.files.log, self.files.state
        begun = log if log is not None and log.number >= 0 else None
        return {
            "job": self.attempt.folder.parent.name,
            "attempt": self.attempt.folder.name,
            "rank": self.files.rank,
            "process": self.files.process,
            "state": STARTS if state == RUNS and begun is None else state,
            "answered": False,
            "step": begun.number if begun else None,
            "in_step_ns": time.monotonic_ns() - begun.began_ns if begun and begun.began_ns else None,
            "recorded": begun.recorded if begun else None,
            "memory_bytes": log.memory[-1][1] if log is not None and log.memory else None,
            **dict.fromkeys(_OF_PROGRAM),
            "ring": str(self.files.recording),
            "folder": str(self.attempt.folder),
        }

    def why(self, error: Exception) -> str:
        """Say why the process does not answer, by the error of asking it."""
        if not isinstance(error, FileNotFoundError | ConnectionError):
            return str(error)
        # Without a refusal, it took the request and then closed the connection.
        has_listened = not isinstance(error, FileNotFoundError | ConnectionRefusedError)
        if has_listened or self.files.state in (ENDED, GONE):
            return "its process has ended, or has stopped the flight recorder"
        return "it was left on without control; start it with KINETOSCOPE_CONTROL=socket, or leave_on(control='socket')"


def targets(target: str, base: Path, rank: int | None = None) -> list[ControlTarget]:
    """Find the ranks that a person means.

    Args:
        target: The id of a process, the name of a job, or a folder of a job.
        base: The folder of all jobs.
        rank: Only this rank.

    Raises:
        ArgumentError: There is no such job or rank.
    """
    if target.isdecimal():
        return _of(attempt_of_process(base, int(target)), target, rank, int(target))
    if Path(target).is_dir():
        attempts = attempts_in(Path(target))
    else:
        attempts = [start for start in attempts_in(base) if target in (start.folder.parent.name, start.name)]
    if not attempts:
        raise ArgumentError(
            f"{target!r} is no process, job or folder of {base}: `kinetoscope ps` lists what is left on."
        )
    return _of(attempts[-1], target, rank)


def ranks_left_on(path: str, base: Path) -> list[ControlTarget]:
    """The ranks of a job that is left on, by a process, a name or a folder; none where a path is something else, such as a trace.

    Raises:
        ArgumentError: It is a job without such ranks.
    """
    folder = Path(path)
    is_named = path.isdecimal() or (folder.name == path and (base / path).is_dir())
    is_job = bool(attempts_in(folder)) if folder.is_dir() else not folder.exists() and is_named
    return targets(path, base) if is_job else []


def capture(ranks: list[ControlTarget], steps: int, most_s: float) -> list[Path]:
    """Have ranks record each of their next steps, all at the same time.

    Args:
        ranks: The ranks.
        steps: How many steps.
        most_s: How long to wait for the steps, in seconds. What is not complete by then, or when this is interrupted, is canceled.

    Returns:
        The recording of each rank.

    Raises:
        StateError: A rank refuses, or its capture is not complete in time.
    """
    until = time.monotonic() + most_s
    with ExitStack() as stack:
        requests = [stack.enter_context(ControlRequest(rank, do="capture", steps=steps)) for rank in ranks]
        paths = []
        for rank, request in zip(ranks, requests, strict=True):
            try:
                paths.append(Path(request.answer(max(until - time.monotonic(), 0.0))["path"]))
            except StateError as error:
                if not isinstance(error.__cause__, TimeoutError | BlockingIOError):
                    raise
                raise StateError(
                    f"the capture of {rank.label} was not complete after {most_s:g} s, and is canceled: it needs steps that begin. "
                    "Ask for fewer steps, or wait longer."
                ) from error
        return paths


def write_capture(capture: Path, output: Path) -> Path:
    """Write the steps of a capture, without those that the ring had before, as a trace.

    Args:
        capture: The recording, which is complete.
        output: The file to write; its suffix chooses the format.

    Returns:
        The file.

    Raises:
        StateError: No step began before the job ended.
        OSError: A file cannot be read or written.
    """
    steps = json.loads(capture.with_suffix(".json").read_text())["steps"]
    if not steps:
        raise StateError(
            f"{capture} has none of the steps that were asked for: the job has stopped before the first began"
        )
    with tempfile.TemporaryDirectory(prefix="kinetoscope-capture-") as scratch:
        part = Path(scratch, capture.name)
        cut_steps(capture, part, min(steps), max(steps) + 1)
        with open_trace(part) as trace:
            trace.save(output)
    return output


def _of(attempt: Attempt, target: str, rank: int | None, process: int | None = None) -> list[ControlTarget]:
    rings = [
        ring
        for ring in attempt.rings()
        if rank in (None, ring.rank) and process in (None, ring.process) and ring.state != ENDED
    ]
    if not rings:
        of_rank = "" if rank is None else f" with rank {rank}"
        raise ArgumentError(f"{target}: no process{of_rank} of {attempt.name} is left on now.")
    return [ControlTarget(ring, attempt) for ring in rings]
