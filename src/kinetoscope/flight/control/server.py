"""The process beside a job that answers requests: HTTP/1.1 over a Unix socket, and a port if asked.

It is a process of its own so that it answers whatever the job does: while it holds the GIL, hangs, or is stopped by a signal. It ends with the
job. It reads the job's files, and asks the program over a pair of sockets for what only the program can do.
"""

from __future__ import annotations

import hmac
import json
import os
import selectors
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope.flight.control.answers import Answer, Answers, ControlledRank
from kinetoscope.flight.control.metrics import CONTENT_TYPE
from kinetoscope.flight.control.program_link import ProgramLink
from kinetoscope.flight.control.settings import read_token

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_BODY_BYTES = 4096
"""No request has a longer body."""

_MOST_CONNECTIONS = 32
# Of one read or write, and of a whole connection.
_TIMEOUT_S, _MOST_S = 2.0, 10.0
_DRAINED_BYTES = 1 << 20
_CREDENTIALS = struct.Struct("3i")
_GET, _POST = "GET", "POST"


class _Handler(BaseHTTPRequestHandler):
    """Answers one request of a connection."""

    protocol_version = "HTTP/1.1"
    server_version = "kinetoscope"
    sys_version = ""
    timeout = _TIMEOUT_S
    server: Server  # type: ignore[assignment]  # of the standard library's servers, only its name is used

    def do_GET(self) -> None:
        """Answer a request of any method."""
        self.close_connection = True
        try:
            answer = self._answer()
        except Exception as error:  # noqa: BLE001  (the one who asks is told, whatever it is)
            answer = Answer(500, {"error": f"{type(error).__name__}: {error}"})
        self._send(answer)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_GET  # noqa: N815

    def _answer(self) -> Answer:
        """Check a request, and find its answer."""
        self.oversized = False
        if refusal := self._refusal():
            return refusal
        answers = self.server.answers
        routes: dict[str, tuple[str, Callable[..., Answer], str | None]] = {
            "/status": (_GET, answers.status, None),
            "/metrics": (_GET, answers.metrics, None),
            "/capture": (_POST, answers.capture, "steps"),
            "/snapshot": (_POST, answers.snapshot, "reason"),
            "/stacks": (_POST, answers.stacks, None),
        }
        if self.path not in routes:
            return Answer(404, {"error": f"{self.path[:100]!r}: there are only {', '.join(routes)}"})
        method, ask, argument = routes[self.path]
        if self.command != method:
            return Answer(405, {"error": f"{self.path} is for {method}, not for {self.command[:20]}"})
        body = self._body()
        if isinstance(body, Answer):
            return body
        if unknown := [name for name in body if name != argument]:
            return Answer(400, {"error": f"{self.path} has no argument {unknown[0][:40]!r}"})
        if answers.has_ended:
            return answers.ended()
        return ask(**body)

    def _refusal(self) -> Answer | None:
        """Why the one who asks may not; None if he may."""
        if self.connection.family == socket.AF_UNIX:
            raw = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            user = _CREDENTIALS.unpack(raw)[1]
            if user in (os.geteuid(), 0):
                return None
            return Answer(403, {"error": f"user {user} is not the one of the job"})
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        wanted = self.server.token
        if wanted and kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), wanted):
            return None
        return Answer(401, {"error": "the request needs the header 'Authorization: Bearer TOKEN'"})

    def _body(self) -> dict[str, Any] | Answer:
        """The arguments of a request."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            self.oversized = True
            return Answer(411, {"error": "the request needs a Content-Length"})
        if int(length) > MOST_BODY_BYTES:
            self.oversized = True
            return Answer(
                413, {"error": f"a body has {MOST_BODY_BYTES:,} bytes at most, not {int(length):,}"}
            )
        text = self.rfile.read(int(length))
        if not text.strip():
            return {}
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else Answer(400, {"error": "the body is not a JSON object"})

    def _send(self, answer: Answer) -> None:
        is_text = isinstance(answer.said, str)
        body = (answer.said if isinstance(answer.said, str) else json.dumps(answer.said) + "\n").encode()
        self.send_response(answer.code)
        self.send_header("Content-Type", CONTENT_TYPE if is_text else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        if answer.code == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if self.oversized:
            self._drain()

    def _drain(self) -> None:
        """Read what the other side still sends, up to a limit: else it may lose the answer."""
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_WR)
        left = _DRAINED_BYTES
        while left > 0 and (got := len(self.connection.recv(65536))):
            left -= got

    oversized = False

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request of HTTP."""
        self.close_connection = True
        self.command = getattr(self, "command", None) or _GET
        # What is no request at all would be answered without a status, as by HTTP/0.9.
        self.request_version = self.protocol_version
        self.oversized = True
        self._send(Answer(code, {"error": message or HTTPStatus(code).phrase}))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name of the base class)
        """Log nothing."""


class Server:
    """Accepts connections, and ends with the program.

    Attributes:
        answers: Answers the requests.
        token: What requests to the port must have.
    """

    def __init__(
        self,
        rank: ControlledRank,
        channel: socket.socket,
        listeners: list[socket.socket],
        token: bytes,
        socket_path: Path,
        inode: int,
    ) -> None:
        """Prepare.

        Args:
            rank: The rank that is controlled.
            channel: The pair of sockets' end that asks the program.
            listeners: The sockets that accept connections.
            token: What requests to a port must have.
            socket_path: The file of the Unix socket, removed at the end.
            inode: The number of that file, because another process may have one of the same name by then.
        """
        self.token = token
        self._link = ProgramLink(channel)
        self.answers = Answers(rank, self._link)
        self._channel = channel
        self._listeners = listeners
        self._socket_path, self._inode = socket_path, inode
        self._process = rank.process
        self._connections: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        """Answer until the program has ended, or closed its end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ, "channel")
            for listener in self._listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, "listener")
            try:
                # Forked children of the program may hold its end of the channel open.
                process = os.pidfd_open(self._process)
            except ProcessLookupError:
                self._link.end()
            else:
                selector.register(process, selectors.EVENT_READ, "process")
            while not self._link.ended:
                for key, _ in selector.select(_TIMEOUT_S if self._connections else None):
                    if key.data == "channel":
                        self._link.receive()
                    elif key.data == "listener":
                        self._accept(key.fileobj)  # type: ignore[arg-type]  # a listener, see above
                    else:
                        self._link.end()
                self._end_slow_connections()
        self._end()

    def _accept(self, listener: socket.socket) -> bool:
        """Answer the next connection, on a thread of its own; False if there is none."""
        try:
            connection, _ = listener.accept()
        except OSError:
            return False
        with self._lock:
            full = len(self._connections) >= _MOST_CONNECTIONS
            if not full:
                self._connections[connection] = time.monotonic()
        if full:
            with suppress(OSError), connection:
                connection.setblocking(False)
                connection.send(
                    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
            return True
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        return True

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            _Handler(connection, ("", 0), self)  # type: ignore[arg-type]  # see `_Handler.server`
        with self._lock:
            self._connections.pop(connection, None)
        connection.close()

    def _end_slow_connections(self) -> None:
        """End connections whose other side sends or reads too slowly."""
        oldest = time.monotonic() - _MOST_S
        with self._lock:
            late = [one for one, began in self._connections.items() if began < oldest]
        for connection in late:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        """Remove the socket, and answer those who had already connected."""
        with suppress(OSError):
            if self._socket_path.stat().st_ino == self._inode:
                self._socket_path.unlink()
        for listener in self._listeners:
            while self._accept(listener):
                pass
            listener.close()
        until = time.monotonic() + _TIMEOUT_S
        while self._connections and time.monotonic() < until:
            time.sleep(0.01)


def main() -> None:
    """Run the process; the first argument is a JSON object with what it has to know, see `in_job`."""
    told = json.loads(sys.argv[1])
    sockets = [socket.socket(fileno=number) for number in told["descriptors"]]
    Server(
        ControlledRank(**told["rank"]),
        sockets[0],
        sockets[1:],
        read_token(Path(told["token_file"])) if told["token_file"] else b"",
        Path(told["socket"]),
        told["inode"],
    ).run()
