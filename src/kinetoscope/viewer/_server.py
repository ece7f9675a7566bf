"""The local server of the viewer: binds `respond` to a port of this machine, and lets nobody else in.

The address holds a token that nobody can guess. A request counts only where its `Host` is this server (so that a name
elsewhere that is made to point here gets nothing) and its `Origin`, if it has one, is this server too.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import traceback
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError, MissingDependencyError, StateError
from kinetoscope.viewer._respond import INERT, Response, respond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import IO

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response as StarletteResponse

    from kinetoscope.trace import Trace
    from kinetoscope.viewer._given import Offer

    Offering = Callable[[], Sequence[Offer | tuple[str, Trace]]]
    Answering = Callable[[str, Mapping[str, str]], Response]

LOOPBACK = "127.0.0.1"
FIRST_PORT = 8765
PORTS_TRIED = 50

# What every answer says: nothing of it is kept, guessed at, framed, or told to others.
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    **INERT,
}
# Answers that are still on their way when the server ends get this long.
_PATIENCE_S = 2
_QUEUE = 128
_BLOCK_BYTES = 1 << 20


class Server:
    """Serves traces to a browser on this machine.

    Attributes:
        port: The port it listens on.
        address: Where the page is, with the token.
    """

    def __init__(
        self,
        traces: Offering,
        port: int | None = None,
        options: Mapping[str, str] | None = None,
        look_again: Callable[[], object] = tuple,
    ) -> None:
        """Take a port; who connects before `run` waits.

        Args:
            traces: Returns the traces with their names; asked at each request, so a trace may be replaced by a newer
                reading of its file.
            port: The port, 0 for any free one, or the first free one from `FIRST_PORT` on if None.
            options: What the page is told of how the server was started.
            look_again: Called before a page is told which traces there are.

        Raises:
            ArgumentError: There is no such port.
            MissingDependencyError: Starlette or uvicorn is not installed.
            StateError: The port is taken.
        """
        try:
            import starlette
            import uvicorn
        except ImportError as error:
            raise MissingDependencyError(
                f'the viewer\'s server needs {error.name}: install it with `pip install "kinetoscope[view]"`; '
                "`kinetoscope report` writes the same pages to a file without it"
            ) from error
        del starlette
        self._token = secrets.token_urlsafe(24)
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://{LOOPBACK}:{self.port}/{self._token}/"
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                application(answering(traces, options or {}, look_again), self._token, self.port),
                log_level="error",
                log_config=None,
                access_log=False,
                lifespan="off",
                http="h11",
                ws="none",
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=_PATIENCE_S,
            )
        )

    def run(self) -> None:
        """Serve until `stop` is called."""
        self._uvicorn.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `run`, from another thread; requests being answered are answered first."""
        self._uvicorn.should_exit = True

    def close(self) -> None:
        """Give the port back, where `run` was never called."""
        self._socket.close()


def answering(traces: Offering, options: Mapping[str, str], look_again: Callable[[], object]) -> Answering:
    """Return what answers a path and a query; see `Server`."""

    def answer(path: str, query: Mapping[str, str]) -> Response:
        if path == "api/traces":
            look_again()
        try:
            return respond(traces(), path, query, options)
        except Exception as error:  # noqa: BLE001  (a question that goes wrong must not end the others)
            traceback.print_exc()
            told = f"The viewer failed ({type(error).__name__}); where it runs it printed what happened."
            return Response(500, json.dumps({"error": told}).encode())

    return answer


def application(answer: Answering, token: str, port: int) -> Starlette:
    """Return the ASGI application that lets a request with the token and the right names through to `answer`."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response as Whole
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def serve(request: Request) -> StarletteResponse:
        given, _, path = request.path_params["path"].partition("/")
        refused = refusal(given, token, request.headers, port)
        if refused:
            return Whole(refused, 403, _HEADERS, "text/plain")
        found = await run_in_threadpool(answer, path, dict(request.query_params))
        headers = {**_HEADERS, **found.headers}
        if found.file is not None:
            headers["Content-Length"] = str(found.file.seek(0, 2))
            found.file.seek(0)
            return StreamingResponse(_blocks(found.file), found.status, headers, found.type)
        return Whole(found.body, found.status, headers, found.type)

    return Starlette(routes=[Route("/{path:path}", serve, methods=["GET"])])


def refusal(given: str, token: str, headers: Mapping[str, str], port: int) -> str | None:
    """Why a request gets no answer, or None where it may have one."""
    hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
    if headers.get("host") not in hosts:
        return (
            "This server answers only requests to its own address. "
            "Where it is reached through a tunnel, that must have the same port at both ends."
        )
    origin = headers.get("origin")
    if origin is not None and origin not in {f"http://{host}" for host in hosts}:
        return "This server answers only its own pages."
    # What a page elsewhere embeds or fetches; following a link to the page itself is something else.
    from_elsewhere = headers.get("sec-fetch-site") not in (None, "none", "same-origin")
    if from_elsewhere and headers.get("sec-fetch-mode") != "navigate":
        return "This server answers only its own pages."
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        return "The address lacks the token: open the one that was printed when the viewer was started."
    return None


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """What is in a file, which is closed at the end."""
    with file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _listening(port: int | None) -> socket.socket:
    """A socket that listens on the port, or on the first free one."""
    if port is not None and not 0 <= port <= 65535:
        raise ArgumentError(f"port {port}: a port is a number from 0 to 65535")
    tried = range(FIRST_PORT, FIRST_PORT + PORTS_TRIED) if port is None else (port,)
    for one in tried:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, one))
            # Only who listens keeps a second server off the port.
            listening.listen(_QUEUE)
        except PermissionError as error:
            listening.close()
            raise StateError(
                f"port {one} needs rights that this user does not have: name one above 1023"
            ) from error
        except OSError:
            listening.close()
            continue
        return listening
    raise StateError(
        f"port {port} is taken: name another one, or none to have a free one found"
        if port is not None
        else f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} is free: name one"
    )
