"""An ASGI middleware that marks each HTTP request of a server, for any framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from kinetoscope.collect import follow

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        known: dict[str, Any] = {}

        async def send_and_look(message: Message) -> None:
            if message["type"] == "http.response.start":
                known["status_code"] = message["status"]
            await send(message)

        def at_end() -> dict[str, Any]:
            route = _template(scope) if self._name is None else None
            return known | ({} if route is None else {"name": f"{method} {route}"})

        method = str(scope.get("method", "HTTP"))
        name = method if self._name is None else self._name(scope)
        await follow(name, self._app(scope, receive, send_and_look), at_end=at_end)


def _template(scope: Scope) -> str | None:
    """The template of the route, which Starlette and FastAPI add to the scope when they have found it."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else None
