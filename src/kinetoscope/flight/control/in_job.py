"""Control inside the job: opens the socket, starts the process that answers requests, and does for it what only the program can do."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from kinetoscope.collect import warn_user
from kinetoscope.flight.control.answers import ControlledRank
from kinetoscope.flight.control.program_link import MESSAGE_BYTES
from kinetoscope.flight.control.settings import SUFFIX, ControlSettings, read_token
from kinetoscope.flight.control.short_path import short_path
from kinetoscope.flight.thread_stacks import thread_stacks
from kinetoscope.storage.atomic_write import open_atomically

_BACKLOG = 128
_START_S = 30.0
# The process leaves the program at once: it is no child of it, which `os.wait` would find. Modules of the working directory are not
# imported, and those of the program's folder of kinetoscope only where no other is found.
_PROGRAM = """\
import os, sys
if os.fork():
    os._exit(0)
sys.path.append(sys.argv.pop())
from kinetoscope.flight.control.server import main
main()
"""


class Controllable(Protocol):
    """What is asked of the recorder; every method may be called from another thread."""

    @property
    def running_capture(self) -> Path | None:
        """What a capture that is running will write."""

    def capture_to(self, path: Path | None, steps: int) -> Path | str:
        """Record each of the next steps; returns why not, if so."""

    def facts(self) -> dict[str, Any]:
        """What only the program knows of its state, as JSON values."""


class Control:
    """Makes one rank controllable.

    Attributes:
        address: The port that listens, as HOST:PORT; empty if none does.
    """

    def __init__(self, settings: ControlSettings, recorder: Controllable, rank: ControlledRank) -> None:
        """Prepare; `start` opens the socket."""
        self._settings = settings
        self._recorder = recorder
        self._rank = rank
        self._path = Path(rank.log).with_suffix(SUFFIX)
        self._channel: socket.socket | None = None
        self._process = os.getpid()
        self._inode = 0
        self.address = ""

    def start(self) -> None:
        """Open the socket, start the process, and begin to do what it asks for.

        Raises:
            OSError: The socket or the port cannot be opened, or the process cannot be started.
            ArgumentError: The token is too short.
        """
        settings = self._settings
        if settings.token_file is not None:
            read_token(settings.token_file)
        listeners: list[socket.socket] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listeners.append(self._listen_on_file())
            if settings.host is not None:
                listeners.append(self._listen_on_port(settings.host, settings.port))
            self._start_process([theirs, *listeners])
        except BaseException:
            ours.close()
            self._remove_socket()
            raise
        finally:
            for one in (theirs, *listeners):
                one.close()
        self._channel = ours
        _CONTROLS.append(self)
        threading.Thread(target=self._serve, name="kinetoscope-control", daemon=True).start()

    def stop(self) -> None:
        """Close the socket. The process answers those who have connected, and ends."""
        self._remove_socket()
        channel, self._channel = self._channel, None
        if channel is not None:
            _CONTROLS.remove(self)
            # Wakes the thread, which closes it.
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

    def forget_in_child(self) -> None:
        """In a forked child: close the copy of the parent's channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    # ------------------------------------------------------------------------------------------------------- sockets

    def _listen_on_file(self) -> socket.socket:
        """Listen on a Unix socket that only this user can reach."""
        folder = self._path.parent
        found = os.lstat(folder)
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user: choose another folder")
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(self._path) as path:
                listener.bind(path)
            self._path.chmod(0o600)
            self._inode = self._path.stat().st_ino
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def _listen_on_port(self, host: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{listener.getsockname()[1]}"
        return listener

    def _start_process(self, sockets: list[socket.socket]) -> None:
        """Start the process that answers; it has the sockets from then on."""
        token_file = self._settings.token_file
        descriptors = [one.fileno() for one in sockets]
        told = {
            "rank": asdict(self._rank),
            "descriptors": descriptors,
            "token_file": None if token_file is None else str(token_file),
            "socket": str(self._path),
            "inode": self._inode,
        }
        # The folder from which this package is imported.
        place = str(Path(__file__).parents[3])
        environment = {name: value for name, value in os.environ.items() if name != "KINETOSCOPE"}
        started = subprocess.Popen(  # noqa: S603  (this Python, with a text of our own)
            [sys.executable, "-P", "-c", _PROGRAM, json.dumps(told), place],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
        try:
            code = started.wait(_START_S)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
            raise
        if code != 0:
            raise OSError(f"{sys.executable} ended with code {code}")

    def _remove_socket(self) -> None:
        if os.getpid() == self._process:
            self._path.unlink(missing_ok=True)

    # ----------------------------------------------------------------------------------------------------- questions

    def _serve(self) -> None:
        """Do what the process asks for, on a thread of its own, until one of both ends."""
        channel = self._channel
        if channel is None:
            return
        with channel, suppress(OSError):
            while message := channel.recv(MESSAGE_BYTES):
                asked = json.loads(message)
                try:
                    reply = self._reply(asked)
                except Exception as error:  # noqa: BLE001  (the one who asks is told)
                    reply = {"problem": f"{type(error).__name__}: {error}"}
                channel.send(json.dumps({"number": asked["number"], **reply}).encode())
        if self._channel is not None and os.getpid() == self._process:
            # The process was killed: nobody answers at the socket any longer.
            self._remove_socket()
            with suppress(Warning):
                warn_user(
                    "the process that answers requests has ended: this program cannot be controlled any longer"
                )

    def _reply(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do one thing."""
        if asked["do"] == "status":
            return {"status": {**self._recorder.facts(), "address": self.address}}
        if asked["do"] == "stacks":
            with open_atomically(Path(asked["path"])) as file:
                for name, lines in thread_stacks().items():
                    file.write(f"thread {name}\n{''.join(lines)}\n".encode())
            return {"path": asked["path"]}
        running = self._recorder.running_capture
        made = self._recorder.capture_to(Path(asked["path"]), asked["steps"])
        if isinstance(made, Path):
            return {"path": str(made)}
        return {"problem": made} if running is None else {"busy": str(running)}


# Those of this process whose channel is open.
_CONTROLS: list[Control] = []


def _forget_in_child() -> None:
    for control in _CONTROLS:
        control.forget_in_child()
    _CONTROLS.clear()


os.register_at_fork(after_in_child=_forget_in_child)
