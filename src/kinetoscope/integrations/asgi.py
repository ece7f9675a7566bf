"""An ASGI middleware that marks each HTTP request of a server, for any framework."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any

from kinetoscope.collect import follow, install_request_hooks

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestMiddleware:
    """Marks each HTTP request as `kinetoscope.request` does, named by its method and route, with the status code of the response.

    With FastAPI and Starlette: `app.add_middleware(RequestMiddleware)`; with others: `app = RequestMiddleware(app)`. Web sockets and the
    lifespan pass through. A request lasts until the last byte of its response was handed to the server, also of a streamed one.
    """

    def __init__(self, app: Application, name: Callable[[Scope], str] | None = None) -> None:
        """Wrap an application.

        Args:
            app: The application.
            name: Names a request by its ASGI scope, before it is routed; by default by its method and, once it is routed, the template of its
                route, such as `GET /items/{id}`. Requests of one name are compared with each other.
        """
        self._app, self._name = app, name
        install_request_hooks()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _Response(scope, send, self._name)
        await follow(self._app(scope, receive, response), response)


class _Response:
    """Sends the messages of a response, and keeps the name and status of its request."""

    __slots__ = ("_name", "_scope", "_send", "_status")

    def __init__(self, scope: Scope, send: Send, name: Callable[[Scope], str] | None) -> None:
        self._scope, self._send, self._name = scope, send, name
        self._status: Any = None

    def __call__(self, message: Message) -> Awaitable[None]:
        """Pass a message of the response to the server, and note the status code in the first one."""
        if self._status is None and message["type"] == "http.response.start":
            self._status = message["status"]
        return self._send(message)

    def at_begin(self) -> tuple[str, str]:
        """Return the name of the request before it is routed, and no arguments."""
        # Inlined: with cold caches, each call takes microseconds.
        return str(self._scope.get("method", "HTTP")) if self._name is None else self._name(self._scope), ""

    def at_end(self) -> str:
        """Return the status code, and the name by the template of the route."""
        name = None
        # Starlette and FastAPI add the route to the scope when they have found it.
        if self._name is None and (route := self._scope.get("route")) is not None:
            path = getattr(route, "path", None)
            name = f"{self._scope.get('method', 'HTTP')} {path}" if isinstance(path, str) else None
        return _end_text(self._status, name)


@lru_cache(maxsize=1024)
def _end_text(status: object, name: str | None) -> str:
    facts = {"status_code": status, "name": name}
    arguments = {key: value for key, value in facts.items() if value is not None}
    return json.dumps(arguments, default=str) if arguments else ""
