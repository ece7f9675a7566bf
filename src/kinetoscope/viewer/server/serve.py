"""The local server of the viewer: serves `respond` on a port of this machine, to this user only.

The address contains a secret token. A request is accepted only if its `Host` is this server, against DNS rebinding, and so is its
`Origin` if it has one.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import html
import io
import json
import math
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
import traceback
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath
from socketserver import TCPServer
from typing import Any, Self, cast
from urllib.parse import parse_qsl, unquote

from kinetoscope._errors import ArgumentError, KinetoscopeError, StateError
from kinetoscope.model import units
from kinetoscope.storage.cache import cache_directory
from kinetoscope.summaries.job import Job
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_any
from kinetoscope.viewer import open_traces
from kinetoscope.viewer.open_traces import Given, Offer, Source
from kinetoscope.viewer.server.report import answer_with_report
from kinetoscope.viewer.server.routes import INERT, Response, error_response, respond


class Viewer:
    """A server that shows traces, on a thread of its own. A context manager, which stops the server.

    Attributes:
        address: The URL of the page, with a secret token.
        browser_address: A URL that leads to the page once. For the command line of a browser, which all users of the machine
            can read.
    """

    def __init__(
        self, traces: Sequence[Source], port: int | None, open_trace: Callable[[str], Trace] = open_any
    ) -> None:
        """Load the traces and start the server; see `view`."""
        self._given: list[Given] = []
        self._open_trace = open_trace
        # Folders of uploaded files, which are deleted when the viewer is closed.
        self._dropped: list[Path] = []
        # First what may fail quickly: loading may take long.
        self._server = Server(
            lambda: [source.offer for source in self._given],
            port,
            self._look_again,
            lasting_token(traces),
            Uploads(self._take),
            self._opened,
        )
        self.address: str = self._server.address
        self.browser_address: str = self._server.browser_address
        try:
            self._given += open_traces.given(traces, open_trace)
        except BaseException:
            self._server.server_close()
            raise
        self._thread = threading.Thread(target=self._server.run, name="kinetoscope viewer", daemon=True)
        self._thread.start()

    @property
    def problems(self) -> list[str]:
        """The problems of the traces that could not be loaded."""
        return [source.offer.problem for source in self._given if source.offer.problem is not None]

    def wait(self) -> None:
        """Wait for Ctrl-C, and then stop the server."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            print(file=sys.stderr)  # noqa: T201  (the terminal shows ^C)
        finally:
            self.close()

    def close(self) -> None:
        """Stop the server and close the files; traces that were passed in stay open. A second call does nothing."""
        self._server.shutdown()
        self._thread.join()
        for source in self._given:
            source.close()
        self._given = []
        for folder in self._dropped:
            shutil.rmtree(folder, ignore_errors=True)

    def _take(self, path: Path) -> int:
        number = self._opened(str(path))
        self._dropped.append(path.parent)
        return number

    def _opened(self, path: str) -> int:
        """Open a trace in the viewer; return its number, the existing one if it is open already."""
        for number, source in enumerate(self._given):
            if source.path == path:
                return number
        self._given += open_traces.given([path], self._open_trace)
        return len(self._given) - 1

    def _look_again(self) -> None:
        for source in self._given:
            source.look_again()

    def __enter__(self) -> Self:
        """Return the viewer itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop the server."""
        self.close()

    def __repr__(self) -> str:
        """Contains the address."""
        return f"<Viewer at {self.address}>" if self._given else "<Viewer (closed)>"

    def _repr_html_(self) -> str:
        if not self._given:
            return "<p>Viewer (closed)</p>"
        names = html.escape(", ".join(source.offer.name for source in self._given))
        return f'<p>Kinetoscope: <a href="{self.address}" target="_blank">look at {names}</a></p>'


def view(
    *traces: Trace | Job | str | os.PathLike[str],
    port: int | None = None,
    browser: bool = True,
    wait: bool | None = None,
) -> Viewer:
    """Show traces in a browser.

    They are served by a local server, which only this machine can reach; `kinetoscope report` writes the same pages to a file
    instead. A file that changes, such as a running recording, is reloaded while it is shown.

    Args:
        *traces: The traces: objects, stopped sessions, paths, or URLs; also jobs, and folders of summaries.
        port: The port of the server; 0 for any free one; by default the first free one from 8765 on.
        browser: Open a browser, if this machine has one.
        wait: Wait for Ctrl-C. By default True in programs, and False in notebooks and at Python's prompt, where the server runs
            until the viewer is closed or Python ends.

    Returns:
        The viewer: its `address`, `wait()` and `close()`.

    Raises:
        ArgumentError: There is no trace, or one of the arguments is not a trace.
        FormatError: None of the files contains a trace.
        OSError: None of the files can be read.
        StateError: The port is taken.
    """
    viewer = Viewer(traces, port)
    if wait is None:
        wait = not (hasattr(sys, "ps1") or sys.flags.interactive or "ipykernel" in sys.modules)
    if wait:
        print(viewer.address)  # noqa: T201  (who cannot have a browser opened needs it)
    if browser:
        open_browser(viewer)
    if wait:
        viewer.wait()
    return viewer


def open_browser(viewer: Viewer) -> bool:
    """Open the page in a graphical browser; return False if this machine has none."""
    if sys.platform.startswith("linux") and not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        return False  # A text browser would open in the terminal.
    return webbrowser.open(viewer.browser_address)


LOOPBACK = "127.0.0.1"
FIRST_PORT = 8765
PORTS_TRIED = 50

# Headers of every response: do not cache, sniff, frame or share it.
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    **INERT,
}
# How long the server waits for running responses when it is stopped, and how often it looks whether it is.
_PATIENCE_S, _LOOK_S = 2.0, 0.1
_TEXT = "text/plain; charset=utf-8"
_QUEUE = 128
_BLOCK_BYTES = 1 << 20
# A connection is closed if it has not sent a complete request after this time.
REQUEST_S = 10.0
_TCP_SOCKETS = Path("/proc/net/tcp")


class Server(ThreadingHTTPServer):
    """Serves traces to a browser on this machine.

    Attributes:
        port: The port that it listens on.
        address: The URL of the page, with the token.
        browser_address: A URL for the command line of a browser, which every user of the machine can read: it contains a ticket
            that works once, and redirects to `address`.
    """

    daemon_threads = True
    request_queue_size = _QUEUE
    allow_reuse_port = False

    def __init__(
        self,
        traces: Callable[[], Sequence[Offer | tuple[str, Trace]]],
        port: int | None = None,
        look_again: Callable[[], object] = tuple,
        token: str | None = None,
        uploads: Uploads | None = None,
        opened: Callable[[str], int] | None = None,
    ) -> None:
        """Listen on a port; connections wait until `run` is called.

        Args:
            traces: Returns the traces with their names; called for each request, because a trace may have been reloaded.
            port: The port, 0 for any free one, or the first free one from `FIRST_PORT` on if None.
            look_again: Called before a page gets the list of traces.
            token: The token of the address; a new one if None.
            uploads: Receives uploaded files; None rejects them.
            opened: Opens a trace of a job, and returns its number; None if that is not possible.

        Raises:
            ArgumentError: There is no such port.
            StateError: The port is taken.
        """
        self._traces, self._look_again, self._opened = traces, look_again, opened
        self.uploads = uploads
        self.token, ticket = token or secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.ticket = Ticket(ticket)
        # The open connections, with the time by which each must have sent a request, and the condition that signals their end.
        self.connections: dict[socket.socket, float] = {}
        self.connections_changed = threading.Condition()
        self._listen(port)
        self.port: int = self.socket.getsockname()[1]
        self.address = f"http://{LOOPBACK}:{self.port}/{self.token}/"
        self.browser_address = f"http://{LOOPBACK}:{self.port}/open/{ticket}"

    def _listen(self, port: int | None) -> None:
        if port is not None and not 0 <= port <= 65535:
            raise ArgumentError(f"port {port}: a port is a number from 0 to 65535")
        candidates = range(FIRST_PORT, FIRST_PORT + PORTS_TRIED) if port is None else (port,)
        for candidate in candidates:
            try:
                super().__init__((LOOPBACK, candidate), _Connection)
            except PermissionError as error:
                raise StateError(
                    f"port {candidate} needs rights that this user does not have: choose one above 1023"
                ) from error
            except OSError:
                continue
            return
        raise StateError(
            f"port {port} is in use: choose another one, or leave it out to use a free one"
            if port is not None
            else f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} is free: choose one with port="
        )

    def server_bind(self) -> None:
        """Bind without a look-up of the host's name, which may take long."""
        TCPServer.server_bind(self)

    def service_actions(self) -> None:
        """Close connections that send a request too slowly, however little at a time."""
        with self.connections_changed:
            for connection, until_s in self.connections.items():
                if until_s < time.monotonic():
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Serve until another thread calls `shutdown`, and then finish running requests."""
        self.serve_forever(_LOOK_S)
        self.server_close()
        with self.connections_changed:
            for connection in self.connections:
                # Those that wait for a request end; others send their response first.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
            self.connections_changed.wait_for(lambda: not self.connections, _PATIENCE_S)

    def answer(self, path: str, query: Mapping[str, str]) -> Response:
        """Answer a request for data; one that fails is an answer, too, and leaves the server as it is."""
        if path == "api/traces":
            self._look_again()
        try:
            return respond(self._traces(), path, query, answer_with_report, self._opened)
        except Exception as error:  # noqa: BLE001  (a request that fails must not affect others)
            traceback.print_exc()
            return error_response(
                500, f"The viewer failed ({type(error).__name__}); its terminal shows the details."
            )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback, unless the client has gone."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    """A connection of a browser, whose requests are answered one after the other on a thread of its own."""

    server: Server
    protocol_version = default_request_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(REQUEST_S)
        self._must_send_by(time.monotonic() + REQUEST_S)

    def _must_send_by(self, until_s: float) -> None:
        with self.server.connections_changed:
            self.server.connections[self.connection] = until_s

    def handle_one_request(self) -> None:
        self._must_send_by(time.monotonic() + REQUEST_S)
        super().handle_one_request()

    def parse_request(self) -> bool:
        is_request = super().parse_request()
        self._must_send_by(math.inf)
        return is_request

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            with self.server.connections_changed:
                self.server.connections.pop(self.connection, None)
                self.server.connections_changed.notify_all()

    def do_GET(self) -> None:
        """Respond with the page or with data of a trace."""
        server = self.server
        first, rest, query = self._target()
        if first == "open":
            refused = self._refusal(server.token) or server.ticket.refusal(
                rest, self.client_address, server.port
            )
            answer = Response(303, b"", _TEXT, INERT | {"Location": f"/{server.token}/"})
        else:
            refused = self._refusal(first)
            answer = Response(200, b"") if refused else server.answer(rest, query)
        self._send(Response(403, refused.encode(), _TEXT) if refused else answer)

    do_HEAD = do_GET  # noqa: N815  (the name that the base class looks for)

    def do_POST(self) -> None:
        """Receive a file."""
        # The rest of a rejected request must not be read as another one.
        self.close_connection = True
        first, rest, query = self._target()
        length = self.headers.get("Content-Length", "")
        uploads = self.server.uploads
        if uploads is None or rest != "api/open":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif refused := self._refusal(first):
            self._send(Response(403, refused.encode(), _TEXT))
        elif not length.isdecimal():
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
        else:
            self.connection.settimeout(uploads.patience_s)
            self._send(uploads.receive(query.get("name", ""), int(length), self.rfile))
            return
        # A connection that is closed with unread data loses its response.
        self.rfile.read(min(int(length), _BLOCK_BYTES) if length.isdecimal() else 0)

    def _target(self) -> tuple[str, str, dict[str, str]]:
        path, _, query = self.requestline.split()[1].partition("?")
        first, _, rest = unquote(path).removeprefix("/").partition("/")
        return first, rest, dict(parse_qsl(query, keep_blank_values=True))

    def _refusal(self, token: str) -> str | None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        return refusal(token, self.server.token, headers, self.server.port)

    def _send(self, response: Response) -> None:
        # A browser may take its time with a large file.
        self.connection.settimeout(None)
        with response.file or io.BytesIO(response.body) as content:
            headers = {"Content-Type": response.type, "Content-Length": str(content.seek(0, 2))}
            content.seek(0)
            self.send_response_only(response.status)
            for name, value in (_HEADERS | headers | {**response.headers}).items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                shutil.copyfileobj(content, self.wfile, _BLOCK_BYTES)
        self.connection.settimeout(REQUEST_S)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject invalid requests and other methods."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._send(Response(code, (message or HTTPStatus(code).phrase).encode(), _TEXT))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (its name in the base class)
        """Log nothing: the terminal is the user's."""


_KEY_BYTES = 32


def lasting_token(traces: Sequence[Source]) -> str | None:
    """Return a token that is always the same for the same files and user, so that links survive a restart of the server.

    None if objects are served rather than paths and URLs, or if no private key can be stored for this user.
    """
    if not all(isinstance(source, str | os.PathLike) for source in traces):
        return None
    key = _user_key()
    if key is None:
        return None
    names = [
        str(source) if "://" in str(source) else os.path.abspath(cast("str", source)) for source in traces
    ]
    digest = hmac.digest(key, json.dumps(names).encode(), "sha256")
    return base64.urlsafe_b64encode(digest[:24]).decode()


def _user_key() -> bytes | None:
    """Return the secret key from which tokens are derived, which only this user can read; created on first use."""
    path = cache_directory() / "viewer.key"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            created = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(created, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
        with open(path, "rb") as file:
            state = os.fstat(file.fileno())
            key = file.read(_KEY_BYTES + 1)
    except OSError:
        return None  # The key cannot be stored: each server gets a random token.
    is_private = state.st_uid == os.getuid() and not state.st_mode & 0o077
    return key if is_private and len(key) == _KEY_BYTES else None


class Ticket:
    """A secret that opens the page once, for the user who runs the server."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._used = False

    def refusal(self, given: str, client: tuple[str, int] | None, port: int) -> str | None:
        """Return why a ticket is rejected, or None if it is accepted, which invalidates it.

        Args:
            given: The ticket of a request.
            client: The address and port that the request comes from.
            port: The port of the server.
        """
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._word.encode()):
            return "The address lacks the token: open the one that was printed when the viewer started."
        user = None if client is None else _user_of(client, port)
        if user not in (None, os.getuid(), 0):
            return "This address is for the user who started the viewer."
        if self._used:
            return (
                "This address works only once and was used already: open the one that was printed when the viewer started. "
                "If you did not open it, another program has read the address: stop the viewer and start it again."
            )
        self._used = True
        return None


def _user_of(client: tuple[str, int], port: int) -> int | None:
    """Return the id of the user whose socket is connected to our port; None if the system does not report it."""
    try:
        lines = _TCP_SOCKETS.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    address = int.from_bytes(socket.inet_aton(client[0]), "little")
    ours = int.from_bytes(socket.inet_aton(LOOPBACK), "little")
    ends = [f"{address:08X}:{client[1]:04X}", f"{ours:08X}:{port:04X}"]
    users = [int(words[7]) for words in map(str.split, lines) if words[1:3] == ends]
    return users[0] if users else None


@dataclass(frozen=True)
class Uploads:
    """Receives files that are dropped on the page.

    Attributes:
        take: Called with the file, in a new folder, and takes over both; shows the trace, and returns its number.
        most_bytes: The size of the largest file.
        folder: Where the folders are made; None for the system's place for temporary files.
        patience_s: Time limit in seconds of waiting for the next block of a file.
    """

    take: Callable[[Path], int]
    most_bytes: int = 4 << 30
    folder: Path | None = None
    patience_s: float = 60.0

    def receive(self, name: str, size: int, content: io.BufferedIOBase) -> Response:
        """Receive a file, and show its trace.

        Args:
            name: The name of the file.
            size: Its size in bytes.
            content: What it is read from.
        """
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", PurePath(name).name)[-100:].lstrip(".") or "trace"
        if size > self.most_bytes:
            return error_response(
                413, f"{plain} is larger than {units.size(self.most_bytes)}: open it with `kinetoscope view`."
            )
        path = Path(tempfile.mkdtemp(prefix="kinetoscope-viewer-", dir=self.folder)) / plain
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(shutil.rmtree, path.parent, ignore_errors=True)
            try:
                with path.open("xb") as file:
                    while size and (block := content.read(min(size, _BLOCK_BYTES))):
                        size -= file.write(block)
                if size:
                    return error_response(400, f"{plain} ended early: drop the file again.")
                number = self.take(path)
            except TimeoutError:
                return error_response(
                    408, f"no more of {plain} came for {self.patience_s:g} s: drop the file again."
                )
            except (KinetoscopeError, OSError) as error:
                return error_response(400, open_traces.words(error).replace(str(path), plain))
            cleanup.pop_all()
        return Response(200, json.dumps({"trace": number}).encode())


def refusal(given: str, token: str, headers: Mapping[str, str], port: int) -> str | None:
    """Return why a request is rejected, or None if it is accepted."""
    hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
    if headers.get("host") not in hosts:
        return (
            "This server accepts only requests to its own address. "
            "A tunnel to it must have the same port at both ends."
        )
    origin = headers.get("origin")
    if origin is not None and origin not in {f"http://{host}" for host in hosts}:
        return "This server accepts requests only from its own page."
    # Requests of other sites' pages, which embed or fetch something; but a link to the page itself is allowed.
    from_elsewhere = headers.get("sec-fetch-site") not in (None, "none", "same-origin")
    if from_elsewhere and headers.get("sec-fetch-mode") != "navigate":
        return "This server accepts requests only from its own page."
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        return "The address lacks the token: open the one that was printed when the viewer started."
    return None
