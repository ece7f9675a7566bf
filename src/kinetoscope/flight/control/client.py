"""Requests to jobs that can be controlled, and what is known from outside of those that do not answer."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.flight.control.answers import ControlledRank, outside_status
from kinetoscope.flight.control.settings import SUFFIX, TOKEN_FILE, read_token
from kinetoscope.flight.control.short_path import short_path
from kinetoscope.flight.jobs import ENDED, GONE, Attempt, RankFiles, attempt_of_process, attempts_in
from kinetoscope.flight.ring_stacks import ring_stacks, stacks_text
from kinetoscope.flight.step_log import SUFFIX as LOG_SUFFIX
from kinetoscope.storage.recording_parts import cut_steps
from kinetoscope.trace import open as open_trace

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWER_S = 1.9
"""A job that has not answered within so many seconds does not answer."""

_LOOK_S = 0.2


@dataclass(frozen=True)
class ControlTarget:
    """A rank that requests can be sent to.

    Attributes:
        label: The rank, as messages name it.
        files: What there is of it on this machine; None for an address.
        folder: The folder of its start of the job; None for an address.
        address: HOST:PORT; empty for a rank of this machine.
        token_file: The file of the token for that.
    """

    label: str
    files: RankFiles | None = None
    folder: Path | None = None
    address: str = ""
    token_file: Path | None = None

    def ask(self, method: str, path: str, **named: Any) -> tuple[int, dict[str, Any]]:
        """Send a request.

        Args:
            method: GET or POST.
            path: Such as `/status`.
            **named: The arguments, as JSON values.

        Returns:
            The status code of HTTP, and what was answered.

        Raises:
            StateError: Nobody answered; the message says why.
        """
        connection = self._connection()
        headers = {"Content-Type": "application/json"}
        if self.address and self.token_file is not None:
            headers["Authorization"] = f"Bearer {read_token(self.token_file).decode()}"
        try:
            connection.request(method, path, json.dumps(named) if named else None, headers)
            answer = connection.getresponse()
            said = json.loads(answer.read())
        except (OSError, HTTPException, ValueError) as error:
            raise StateError(f"{self.label} does not answer: {self._why(error)}") from error
        finally:
            connection.close()
        return answer.status, said

    def status(self) -> tuple[dict[str, Any], str]:
        """The state of the rank, and why it was read from outside; that is empty if it was asked.

        Raises:
            StateError: The rank does not answer, and cannot be read from here.
        """
        try:
            code, said = self.ask("GET", "/status")
            if code == 200:
                return said, ""
            problem = str(said.get("error", code))
        except StateError as error:
            problem = str(error)
        if self.files is None or self.folder is None:
            raise StateError(problem)
        files, folder = self.files, self.folder
        rank = ControlledRank(
            files.process or 0,
            folder.parent.name,
            folder.name,
            files.rank,
            str(folder),
            str(files.recording.with_suffix(LOG_SUFFIX)),
            str(files.recording),
        )
        return outside_status(rank, files.log), problem

    def stacks(self) -> dict[str, Any]:
        """The stacks of all threads: `from`, the program or its ring, and `stacks`, the text.

        Raises:
            StateError: The rank does not answer, and cannot be read from here.
            FormatError: Its ring cannot be read.
        """
        try:
            code, said = self.ask("POST", "/stacks")
            if code == 200:
                return {"from": said["from"], "stacks": said["stacks"]}
            problem = str(said.get("error") or said.get("note"))
        except StateError as error:
            problem = str(error)
        if self.files is None:
            raise StateError(problem)
        return {"from": "ring", "stacks": stacks_text(ring_stacks(self.files.recording))}

    def _connection(self) -> HTTPConnection:
        if self.address:
            host, _, port = self.address.rpartition(":")
            return HTTPConnection(host.strip("[]"), int(port), timeout=ANSWER_S)
        if self.files is None:
            raise StateError(f"{self.label} has no address")
        return _UnixConnection(self.files.recording.with_suffix(SUFFIX))

    def _why(self, error: Exception) -> str:
        """Why there was no answer."""
        if isinstance(error, TimeoutError):
            return f"nothing came within {ANSWER_S:g} s"
        if self.files is None or not isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return str(error)
        if self.files.state in (ENDED, GONE):
            return "its process has ended, or has stopped the flight recorder"
        return "it was left on without control; start it with KINETOSCOPE_CONTROL=socket, or leave_on(control='socket')"


def targets(
    target: str, base: Path, rank: int | None = None, token_file: Path | None = None
) -> list[ControlTarget]:
    """Find the ranks that a person means.

    Args:
        target: The id of a process, the name of a job, a folder of a job, or HOST:PORT.
        base: The folder of all jobs.
        rank: Only this rank.
        token_file: The file of the token for HOST:PORT; by default the one that KINETOSCOPE_TOKEN_FILE names.

    Raises:
        ArgumentError: There is no such job or rank.
    """
    if target.isdecimal():
        attempt = attempt_of_process(base, int(target))
        return _of(attempt, target, rank, int(target))
    if Path(target).is_dir():
        found = attempts_in(Path(target))
    elif _is_address(target):
        named = token_file or (Path(text) if (text := os.environ.get(TOKEN_FILE)) else None)
        return [ControlTarget(target, address=target, token_file=named)]
    else:
        found = [one for one in attempts_in(base) if target in (one.folder.parent.name, one.name)]
    if not found:
        raise ArgumentError(
            f"{target!r} is no process, job or folder of {base}, nor HOST:PORT: `kinetoscope ps` lists what is left on."
        )
    return _of(found[-1], target, rank)


def begin_capture(target: ControlTarget, steps: int) -> dict[str, Any]:
    """Ask a rank to record each of its next steps.

    Args:
        target: The rank.
        steps: How many steps.

    Returns:
        `path`, at which the recording will be; perhaps a `note`.

    Raises:
        StateError: The rank refuses, or does not answer.
    """
    code, said = target.ask("POST", "/capture", steps=steps)
    if code != 202:
        raise StateError(f"{target.label} does not capture: {said.get('error', code)}")
    return said


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


def wait_for_capture(
    target: ControlTarget, path: str, most_s: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Wait until a capture is there.

    Args:
        target: The rank that captures.
        path: The path that was answered.
        most_s: How long to wait, in seconds.
        clock: Counts seconds.

    Raises:
        StateError: There will be none, or not in time.
    """
    until = clock() + most_s
    while not Path(path).exists():
        try:
            code, said = target.ask("GET", "/status")
        except StateError:
            code, said = 0, {}
        if Path(path).exists():
            return
        refused = said.get("capture_refused") or {}
        if refused.get("path") == path:
            raise StateError(f"{target.label} did not capture: {refused['reason']}")
        if code == 503 or (code == 0 and _has_ended(target)):
            raise StateError(f"{target.label} has ended before the first step of the capture began")
        if code == 200 and not target.files and path not in (said["capture"], said["capture_not_answered"]):
            # On another machine.
            return
        if clock() > until:
            raise StateError(
                f"the capture is not complete after {most_s:g} s, because it needs steps that begin: it will be at {path}"
            )
        time.sleep(_LOOK_S)


class _UnixConnection(HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        with short_path(self._path) as path:
            self.sock.connect(path)


def _of(attempt: Attempt, target: str, rank: int | None, process: int | None = None) -> list[ControlTarget]:
    """The ranks of a start of a job that have not ended."""
    rings = [
        one
        for one in attempt.rings()
        if rank in (None, one.rank) and process in (None, one.process) and one.state != ENDED
    ]
    if not rings:
        which = "" if rank is None else f" with rank {rank}"
        raise ArgumentError(f"{target}: no process{which} of {attempt.name} is left on now.")
    return [
        ControlTarget(f"rank {one.rank} of {attempt.name}, process {one.process},", one, attempt.folder)
        for one in rings
    ]


def _has_ended(target: ControlTarget) -> bool:
    """Whether the process of a target on this machine has ended."""
    if target.folder is None or target.files is None:
        return False
    states = [one.state for one in Attempt(target.folder).rings() if one.rank == target.files.rank]
    return not states or states[0] in (ENDED, GONE)


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and "/" not in host
