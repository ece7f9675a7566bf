"""Control inside the job: a thread of its own that answers requests at a Unix socket.

A connection carries one request and its answer, lines of JSON: `{"do": "status"}`, `{"do": "stacks"}`, or `{"do": "capture", "steps": 5}`, which
is answered when the capture is complete, and canceled if the client closes the connection before. Nothing waits for a client: what it does not send or
read stays in buffers of limited size. While the job holds Python's lock, requests wait in the socket, and clients read the job's files.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from kinetoscope.flight.live_stacks import thread_stacks

SUFFIX = ".control"
"""What the name of a control socket ends with."""

MOST_STEPS = 100_000
"""No capture has more steps."""

MOST_CLIENTS = 32
"""With more connections than these, the oldest one without a capture is closed."""

MOST_REQUEST_BYTES = 4096
"""A longer request is refused."""

_BACKLOG = 128
# Paths of Unix sockets may not be longer.
_MOST_PATH_BYTES = 107
_CREDENTIALS = struct.Struct("3i")


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """The path, or another one of the same file that is short enough for a socket: a longer one is reached through its open folder.

    Raises:
        OSError: The folder cannot be opened.
    """
    if len(os.fsencode(path)) <= _MOST_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Controllable(Protocol):
    """What is asked of the recorder, on the thread that answers."""

    def capture(self, steps: int = ..., then: Callable[[Path, str], object] | None = ...) -> Path | str:
        """Record each of the next steps, then call `then` with the recording and what failed; returns why not, if so."""

    def cancel_capture(self) -> None:
        """End the capture that is running, without a recording."""

    def facts(self) -> dict[str, Any]:
        """What only the program knows of its state, as JSON values."""


class Control:
    """Makes one rank controllable."""

    def __init__(self, recorder: Controllable, path: Path) -> None:
        """Prepare; `start` opens the socket at `path`."""
        self._recorder = recorder
        self._path = path
        self._process = os.getpid()
        self._listener: socket.socket | None = None
        self._wake = -1
        self._clients: list[_Client] = []

    def start(self) -> None:
        """Open the socket, and begin to answer.

        Raises:
            OSError: The socket cannot be opened.
        """
        self._listener = self._listen()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        _CONTROLS.append(self)
        threading.Thread(
            target=self._serve, args=(self._listener,), name="kinetoscope-control", daemon=True
        ).start()

    def stop(self) -> None:
        """Close the socket, and all connections; answers that were given are still read."""
        if self in _CONTROLS and os.getpid() == self._process:
            _CONTROLS.remove(self)
            self._path.unlink(missing_ok=True)
            os.eventfd_write(self._wake, 1)

    def close_in_child(self) -> None:
        """In a forked child: close the copies of the parent's sockets, so that nobody waits there for an answer."""
        for end in (self._listener, *(client.connection for client in self._clients)):
            if end is not None:
                end.close()

    def _listen(self) -> socket.socket:
        """Listen on a Unix socket that only this user can reach."""
        folder = self._path.parent
        status = os.lstat(folder)
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user: choose another folder")
        if stat.S_IMODE(status.st_mode) & 0o077:
            folder.chmod(0o700)
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(self._path) as path:
                listener.bind(path)
            self._path.chmod(0o600)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        return listener

    def _serve(self, listener: socket.socket) -> None:
        """Answer until `stop`."""
        selector = selectors.PollSelector()
        selector.register(listener, selectors.EVENT_READ)
        selector.register(self._wake, selectors.EVENT_READ)
        try:
            while self in _CONTROLS:
                for key, _ in selector.select():
                    if isinstance(key.data, _Client):
                        self._attend(key.data, selector)
                    elif key.fileobj is listener:
                        self._accept(listener, selector)
        except OSError:
            # The program has closed its files, as one that becomes a daemon does: their numbers may be those of others by now.
            for end in (listener, *(client.connection for client in self._clients)):
                end.detach()
            return
        for client in self._clients:
            client.close()
        listener.close()
        os.close(self._wake)

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        """Take a new connection, if it is one of this user's; of too many, the oldest one goes."""
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        connection.setblocking(False)
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[1] not in (os.geteuid(), 0):
            connection.close()
            return
        client = _Client(connection)
        self._clients.append(client)
        selector.register(connection, selectors.EVENT_READ, client)
        if len(self._clients) > MOST_CLIENTS:
            self._end(next(client for client in self._clients if not client.captures), selector)

    def _attend(self, client: _Client, selector: selectors.BaseSelector) -> None:
        """Read what a client has sent, or send what it has not read yet."""
        try:
            if not client.unsent:
                request = client.read()
                if request is None:
                    return
                answer = self._answer(request, client)
                if answer is None:
                    return
                client.add(answer)
            client.write()
        except OSError:
            client.unsent.clear()
        if client.unsent:
            selector.modify(client.connection, selectors.EVENT_WRITE, client)
        else:
            self._end(client, selector)

    def _answer(self, line: bytes, client: _Client) -> dict[str, Any] | None:
        """Do what a line asks for, and return the answer, whatever fails; None if there will be one later."""
        try:
            request = json.loads(line)
            do, steps = request["do"], request.get("steps", 5)
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return {"error": f'{line[:100]!r} is not a request such as {{"do": "status"}}'}
        try:
            if do == "status":
                return self._recorder.facts()
            if do == "stacks":
                stacks = thread_stacks().items()
                return {"stacks": "\n".join(f"thread {name}\n{''.join(lines)}" for name, lines in stacks)}
            if do == "capture":
                return self._capture(steps, client)
        except Exception as error:  # noqa: BLE001  (the client learns what it is)
            return {"error": f"{type(error).__name__}: {error}"}
        return {"error": f"do={do!r} is not one of 'status', 'stacks', 'capture'"[:200]}

    def _capture(self, steps: Any, client: _Client) -> dict[str, Any] | None:
        if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
            return {"error": f"steps={steps!r}: need a whole number from 1 to {MOST_STEPS:,}"[:200]}

        def then(path: Path, problem: str) -> None:
            client.captures = False
            client.add({"error": problem} if problem else {"path": str(path)})
            with suppress(OSError):
                client.write()

        client.captures = True
        path = self._recorder.capture(steps, then)
        if isinstance(path, str):
            client.captures = False
            return {"error": path}
        return None

    def _end(self, client: _Client, selector: selectors.BaseSelector) -> None:
        """Close a connection, and cancel its capture."""
        selector.unregister(client.connection)
        self._clients.remove(client)
        client.close()
        if client.captures:
            self._recorder.cancel_capture()


class _Client:
    """A connection.

    Attributes:
        connection: The socket, which never blocks.
        captures: Whether a capture that it asked for is running.
        unsent: What is still to be sent of the answer.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.captures = False
        self.unsent = bytearray()
        self._received = bytearray()
        # The program's thread sends, too, when a capture is complete.
        self._lock = threading.Lock()

    def read(self) -> bytes | None:
        """The request, if all of it is there now.

        Raises:
            OSError: The client has closed the connection, or sends something else than a request.
        """
        received = self.connection.recv(MOST_REQUEST_BYTES)
        self._received += received
        if not received or len(self._received) > MOST_REQUEST_BYTES:
            raise ConnectionAbortedError
        line, end, _ = self._received.partition(b"\n")
        if not end or self.captures:
            return None
        self._received.clear()
        return bytes(line)

    def add(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self.unsent += json.dumps(answer).encode() + b"\n"

    def write(self) -> None:
        """Send as much as the other side takes now.

        Raises:
            OSError: It has gone.
        """
        with self._lock, suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.connection.send(self.unsent)]

    def close(self) -> None:
        with self._lock:
            self.connection.close()


# Those of this process that answer.
_CONTROLS: list[Control] = []


def _close_in_child() -> None:
    for control in _CONTROLS:
        control.close_in_child()
    _CONTROLS.clear()


os.register_at_fork(after_in_child=_close_in_child)
