"""The local server of the viewer: binds `respond` to a port of this machine, and lets nobody else in.

The address holds a token that nobody can guess. A request counts only where its `Host` is this server (so that a name
elsewhere that is made to point here gets nothing) and its `Origin`, if it has one, is this server too.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from typing import TYPE_CHECKING

from kinetoscope._errors import MissingDependencyError, StateError
from kinetoscope.viewer._respond import respond

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response as StarletteResponse

    from kinetoscope.trace import Trace

LOOPBACK = "127.0.0.1"
FIRST_PORT = 8765
PORTS_TRIED = 50

# What every answer says: nothing of it is kept, guessed at, framed, or told to others.
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server:
    """Serves traces to a browser on this machine.

    Attributes:
        address: Where the page is, with the token.
    """

    def __init__(self, traces: Callable[[], Sequence[tuple[str, Trace]]], port: int | None = None) -> None:
        """Take a port; nothing is served before `run`.

        Args:
            traces: Returns the traces with their names; asked at each request, so a trace may be replaced by a newer
                reading of its file.
            port: The port, or the first free one from `FIRST_PORT` on if None.

        Raises:
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
        self._traces = traces
        self._token = secrets.token_urlsafe(18)
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://{LOOPBACK}:{self.port}/{self._token}/"
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                application(traces, self._token, self.port),
                log_level="error",
                access_log=False,
                lifespan="off",
                server_header=False,
                date_header=False,
            )
        )

    def run(self) -> None:
        """Serve until `stop` is called or the process is interrupted."""
        self._uvicorn.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `run`, from another thread; requests being answered are answered first."""
        self._uvicorn.should_exit = True


def application(traces: Callable[[], Sequence[tuple[str, Trace]]], token: str, port: int) -> Starlette:
    """Return the ASGI application that lets a request with the token and the right names through to `respond`."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response
    from starlette.routing import Route

    async def serve(request: Request) -> StarletteResponse:
        refused = refusal(request.path_params["token"], token, request.headers, port)
        if refused:
            return Response(refused, 403, _HEADERS, "text/plain")
        path, query = request.path_params["path"], dict(request.query_params)
        found = await run_in_threadpool(respond, traces(), path, query)
        return Response(found.body, found.status, {**_HEADERS, **found.headers}, found.type)

    return Starlette(routes=[Route("/{token}/{path:path}", serve, methods=["GET"])])


def refusal(given: str, token: str, headers: Mapping[str, str], port: int) -> str | None:
    """Why a request gets no answer, or None where it may have one."""
    hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
    if headers.get("host") not in hosts:
        return "This server answers only requests to its own address."
    origin = headers.get("origin")
    if origin is not None and origin not in {f"http://{host}" for host in hosts}:
        return "This server answers only its own pages."
    if not hmac.compare_digest(given.encode(), token.encode()):
        return "The address lacks the token: open the one that `kinetoscope view` printed."
    return None


def _listening(port: int | None) -> socket.socket:
    """A socket that listens on the port, or on the first free one."""
    tried = range(FIRST_PORT, FIRST_PORT + PORTS_TRIED) if port is None else (port,)
    for one in tried:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, one))
        except OSError:
            listening.close()
            continue
        return listening
    raise StateError(
        f"port {port} is taken: name another one, or none to have a free one found"
        if port is not None
        else f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} is free: name one"
    )
