"""Recordings that a daemon of this machine asks for, by the protocol of dynolog: `KINETOSCOPE_DYNOLOG=1` and `dyno gputrace`.

The protocol is that of Kineto's client (dynolog, src/ipcfabric): datagrams over Unix sockets, each with the size of its payload (8 bytes), its type
(32 bytes) and the payload. A process registers ("ctxt"), and asks every five seconds whether it should record ("req"); the answer is empty, or
lines KEY=VALUE.
"""

from __future__ import annotations

import atexit
import os
import socket
import struct
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError
from kinetoscope.collect import OPTIMIZER_STEPS, profile, warn_user

if TYPE_CHECKING:
    from collections.abc import Mapping

POLL_S = 5.0
"""How often the daemon is asked; it forgets a process that has not asked for a minute."""

_SOCKET_FOLDER, _TRACE_FOLDER = "KINETO_IPC_SOCKET_DIR", "KINETO_ONDEMAND_TRACE_DIR"
_DAEMON, _CLIENT = "dynolog", "dynoconfigclient"
_REGISTER, _REQUEST = b"ctxt", b"req"
_ACTIVITIES = 2
_HEADER = struct.Struct("=Q32s")
_CONTEXT = struct.Struct("=iiq")
_ASKED = struct.Struct("=iiq")
_ANSWER_S = 1.0
_MOST_BYTES = 1 << 16
_MOST_ANCESTORS = 10
# Steps that do not come are not waited for any longer.
_PATIENCE_S = 600.0
_DEFAULT_DURATION_MS = 500


@dataclass(frozen=True)
class DynologRequest:
    """What the daemon asks for.

    Attributes:
        path: The file to write.
        start_s: When to begin, in seconds since 1970; 0 for now.
        duration_s: How long to record, in seconds.
        iterations: How many steps of the first optimizer to record instead; 0: by time.
        start_iteration: The first of them; -1 for the next one.
        roundup: The first one is rounded up to a multiple of this.
        options: What to record, arguments of `kinetoscope.profile`.
        trace_id: The id of the trace; empty for any.
    """

    path: Path
    start_s: float
    duration_s: float
    iterations: int
    start_iteration: int
    roundup: int
    options: dict[str, bool]
    trace_id: str

    def first_iteration(self, now: int) -> int:
        """The iteration to begin with, if `now` is the number of the one under way."""
        first = max(self.start_iteration, now + 1)
        return -(-first // self.roundup) * self.roundup


def parse_request(text: str, process: int, environment: Mapping[str, str] = os.environ) -> DynologRequest:
    """Read the lines that the daemon answers; keys that are unknown are left alone, as Kineto does.

    Args:
        text: Lines KEY=VALUE.
        process: The id of this process, which becomes a part of the name of the file.
        environment: The environment variables; files are written below `/tmp`, or below the folder that KINETO_ONDEMAND_TRACE_DIR names.

    Raises:
        ArgumentError: A value cannot be used, or the file is outside of that folder.
    """
    pairs = (line.partition("=") for line in text.splitlines())
    values = {key.strip(): value.strip() for key, _, value in pairs}

    def whole(key: str, default: int) -> int:
        try:
            return int(values.get(key) or default)
        except ValueError:
            raise ArgumentError(
                f"dynolog asks for {key}={values[key]!r}, which is no whole number."
            ) from None

    def switch(key: str) -> bool:
        return values.get(key, "").lower() in ("1", "true", "yes", "on")

    folder = Path(environment.get(_TRACE_FOLDER) or "/tmp").resolve()  # noqa: S108  (as Kineto)
    named = Path(values.get("ACTIVITIES_LOG_FILE") or folder / "libkineto_activities.json")
    path = named.with_name(f"{named.stem}_{process}{named.suffix or '.json'}")
    if not path.parent.resolve().is_relative_to(folder) or path.is_symlink():
        raise ArgumentError(
            f"dynolog asks for {path}, which is not below {folder}: set {_TRACE_FOLDER} to the folder of traces."
        )
    return DynologRequest(
        path=path,
        start_s=whole("PROFILE_START_TIME", 0) / 1e3,
        duration_s=max(whole("ACTIVITIES_DURATION_MSECS", _DEFAULT_DURATION_MS), 1) / 1e3,
        iterations=max(whole("ACTIVITIES_ITERATIONS", 0), 0),
        start_iteration=whole("PROFILE_START_ITERATION", -1),
        roundup=max(whole("PROFILE_START_ITERATION_ROUNDUP", 1), 1),
        options={
            "record_shapes": switch("PROFILE_REPORT_INPUT_SHAPES"),
            "profile_memory": switch("PROFILE_PROFILE_MEMORY"),
            "with_stack": switch("PROFILE_WITH_STACK"),
            "with_flops": switch("PROFILE_WITH_FLOPS"),
            "with_modules": switch("PROFILE_WITH_MODULES"),
        },
        trace_id=values.get("REQUEST_TRACE_ID", ""),
    )


class DaemonLink:
    """Asks the daemon. Nothing is ever waited for longer than a second."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Open a socket of our own.

        Raises:
            OSError: It cannot be opened.
        """
        folder = environment.get(_SOCKET_FOLDER)
        name = f"{_CLIENT}{uuid.uuid4()}"
        # An abstract name ends with a zero, which the daemon takes for a part of it.
        self._daemon: str | bytes = f"{folder}/{_DAEMON}" if folder else f"\0{_DAEMON}\0".encode()
        self._path = Path(folder, name) if folder else None
        job = environment.get("SLURM_JOB_ID", "")
        self._job = int(job) if job.isdecimal() else 0
        self._registered = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_ANSWER_S)
        try:
            self._socket.bind(f"\0{name}\0".encode() if self._path is None else str(self._path))
        except OSError:
            self._socket.close()
            raise

    def ask(self) -> str:
        """Return what the daemon wants to be recorded; empty if nothing, or if there is no daemon."""
        try:
            if not self._registered:
                self._send(_REGISTER, _CONTEXT.pack(0, os.getpid(), self._job))
                self._registered = bool(self._receive(_REGISTER))
            processes = ancestors(os.getpid())
            head = _ASKED.pack(_ACTIVITIES, len(processes), self._job)
            self._send(_REQUEST, head + struct.pack(f"={len(processes)}i", *processes))
            return self._receive(_REQUEST).rstrip(b"\0").decode(errors="replace")
        except OSError:
            # None is there, it has ended, or does not answer. A new one does not know this process.
            self._registered = False
            return ""

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _send(self, kind: bytes, payload: bytes) -> None:
        self._socket.sendto(_HEADER.pack(len(payload), kind) + payload, self._daemon)

    def _receive(self, kind: bytes) -> bytes:
        """The payload of the next message of a kind."""
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until:
            message, sender = self._socket.recvfrom(_MOST_BYTES)
            if sender != self._daemon or len(message) < _HEADER.size:
                continue
            size, found = _HEADER.unpack_from(message)
            if found.rstrip(b"\0") == kind:
                return message[_HEADER.size : _HEADER.size + size]
        raise TimeoutError


def ancestors(process: int) -> list[int]:
    """The ids of a process and of those that started it, because a person may have named any of them."""
    found: list[int] = []
    while process > 0 and len(found) < _MOST_ANCESTORS:
        found.append(process)
        try:
            stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
            process = int(stat.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


class Dynolog:
    """Records what the daemon asks for, from a thread of its own."""

    def __init__(self, poll_s: float = POLL_S) -> None:
        self._poll_s = poll_s
        self._process = os.getpid()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._iteration = -1
        self._optimizer: int | None = None
        self._counting: _CountedSteps | None = None

    def start(self) -> None:
        """Begin to ask. A failure is a warning."""
        try:
            link = DaemonLink()
            OPTIMIZER_STEPS.after(self._stepped)
            self._thread = threading.Thread(
                target=self._run, args=(link,), name="kinetoscope-dynolog", daemon=True
            )
            self._thread.start()
            atexit.register(self.stop)
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            _warn(f"dynolog is not answered: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """Ask no longer; a recording that is going on ends now, and is written."""
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._process:
            return
        atexit.unregister(self.stop)
        OPTIMIZER_STEPS.forget(self._stepped)
        self._ended.set()
        thread.join()

    def _run(self, link: DaemonLink) -> None:
        try:
            while True:
                text = link.ask()
                if text.strip():
                    self._answer(text)
                if self._ended.wait(self._poll_s):
                    return
        finally:
            link.close()

    def _answer(self, text: str) -> None:
        """Record once."""
        try:
            request = parse_request(text, os.getpid())
            request.path.parent.mkdir(parents=True, exist_ok=True)
            given: dict[str, Any] = dict(request.options)
            if trace_id := request.trace_id:
                given["custom_trace_id_callback"] = lambda: trace_id
            session = profile(**given)
            if request.iterations:
                self._record_steps(session, request)
            else:
                self._record_time(session, request)
            session.export_chrome_trace(str(request.path))
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            _warn(f"what dynolog asked for was not recorded: {type(error).__name__}: {error}")

    def _record_time(self, session: profile, request: DynologRequest) -> None:
        """Record for a time."""
        self._ended.wait(max(request.start_s - time.time(), 0.0))
        session.start()
        self._ended.wait(request.duration_s)
        session.stop()

    def _record_steps(self, session: profile, request: DynologRequest) -> None:
        """Record steps of the first optimizer, from the end of one to the end of another."""
        steps = _CountedSteps(session, request.first_iteration(self._iteration), request.iterations)
        self._counting = steps
        until = time.monotonic() + _PATIENCE_S
        while not steps.done.wait(0.1) and not self._ended.is_set() and time.monotonic() < until:
            pass
        self._counting = None
        steps.end()

    def _stepped(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """Count a step of the first optimizer."""
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if id(optimizer) != self._optimizer or os.getpid() != self._process:
            return
        self._iteration += 1
        counting = self._counting
        if counting is not None:
            counting.stepped(self._iteration)


class _CountedSteps:
    """Starts and stops a session between steps.

    Attributes:
        done: Set when the last step has ended, or the session could not be started.
    """

    def __init__(self, session: profile, first: int, count: int) -> None:
        """Record `count` steps, from that with the number `first`."""
        self.done = threading.Event()
        self._session = session
        self._first, self._end = first, first + count
        self._lock = threading.Lock()
        self._recording = False
        self._error: Exception | None = None

    def stepped(self, ended: int) -> None:
        """Handle the end of a step, in the program."""
        with self._lock:
            if self.done.is_set():
                return
            try:
                if not self._recording and ended + 1 >= self._first:
                    self._session.start()
                    self._recording = True
                    self._end += max(ended + 1 - self._first, 0)
                elif self._recording and ended + 1 >= self._end:
                    self._stop()
            except Exception as error:  # noqa: BLE001  (raised again where it becomes a warning)
                self._error = error
                self.done.set()

    def end(self) -> None:
        """Stop if that has not been done.

        Raises:
            ArgumentError: No step came.
            Exception: The session failed.
        """
        with self._lock:
            if not self.done.is_set() and self._recording:
                self._stop()
            if self._error is not None:
                raise self._error
            if not self.done.is_set():
                self.done.set()
                raise ArgumentError(
                    f"step {self._first} of an optimizer did not begin within {_PATIENCE_S:.0f} s, or before the end of the program: ask "
                    "for a duration instead."
                )

    def _stop(self) -> None:
        self._recording = False
        self.done.set()
        self._session.stop()


def _warn(problem: str) -> None:
    # Where warnings are errors, the thread still must not fail.
    with suppress(Warning):
        warn_user(problem)


_DYNOLOG: list[Dynolog] = []


def start_dynolog() -> None:
    """Answer the daemon from now on; a second call does nothing."""
    if not _DYNOLOG:
        _DYNOLOG.append(Dynolog())
        _DYNOLOG[0].start()
