"""The middleware in a real server with FastAPI, under a load of concurrent requests."""

import asyncio
import socket
import threading

import pytest
import torch
import uvicorn
from fastapi import FastAPI, WebSocket
from fastapi.responses import StreamingResponse

import kinetoscope
from kinetoscope.analyses.account import accounts
from kinetoscope.analyses.overview import overview
from kinetoscope.integrations.asgi import RequestMiddleware
from kinetoscope.ledger.parts import REQUEST_PARTS

CONCURRENT = 50


def application():
    app = FastAPI()
    app.add_middleware(RequestMiddleware)

    @app.get("/items/{number}")
    async def item(number: int) -> dict[str, int]:
        """Some operators, a pause, and some more on a thread of the pool."""
        torch.ones(8).square_()
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: torch.ones(8).square_())
        return {"id": number}

    @app.get("/plain")
    def plain() -> dict[str, int]:
        """Runs in a thread of anyio."""
        torch.ones(8).square_()
        return {}

    @app.get("/broken")
    async def broken() -> None:
        raise ValueError("mine")

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts():
            for _ in range(3):
                torch.ones(8).square_()
                await asyncio.sleep(0)
                yield b"part"

        return StreamingResponse(parts())

    @app.websocket("/socket")
    async def socket_of(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    return app


class Counted:
    """Counts the requests to which an application has responded: a client has its response earlier than the middleware ends."""

    def __init__(self, app):
        self.app, self.ended, self.changed = app, 0, threading.Condition()

    async def __call__(self, scope, receive, send):
        try:
            await self.app(scope, receive, send)
        finally:
            with self.changed:
                self.ended += 1
                self.changed.notify_all()

    def wait_for(self, number):
        with self.changed:
            assert self.changed.wait_for(lambda: self.ended == number, 60)


@pytest.fixture
def served():
    """An application, and the port on which uvicorn serves it."""
    app = Counted(application())
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", lifespan="off", loop="asyncio", ws="none")
    )
    ready = threading.Event()
    startup = server.startup

    async def started(*args, **kwargs):
        await startup(*args, **kwargs)
        ready.set()

    server.startup = started
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    assert ready.wait(60)
    yield app, listening.getsockname()[1]
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


async def get(port, path):
    """The status and the body of a response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def load(port):
    paths = [f"/items/{number}" for number in range(CONCURRENT)] + [
        "/plain",
        "/broken",
        "/stream",
        "/nowhere",
    ]
    return await asyncio.gather(*(get(port, path) for path in paths))


def test_each_of_many_concurrent_requests_is_known_to_the_nanosecond(served):
    app, port = served
    with kinetoscope.profile() as prof:
        answers = asyncio.run(load(port))
        app.wait_for(CONCURRENT + 4)
    assert [status for status, _ in answers] == [200] * (CONCURRENT + 1) + [500, 200, 404]
    assert answers[7][1] == b'{"id":7}'
    rows = prof.trace.table("requests").to_pylist()
    assert len(rows) == CONCURRENT + 4
    for row in rows:
        assert sum(row[part] for part in REQUEST_PARTS) == row["duration_ns"]
    (account,) = accounts(prof.trace)
    assert account.entry_ns.sum(axis=1).tolist() == [
        rows[at]["duration_ns"] for at in account.work.row.tolist()
    ]
    kind = next(one for one in prof.trace.account().kinds if one.request == "GET /items/{number}")
    assert kind.steps == CONCURRENT
    assert len(overview(prof.trace).requests) == 5
    by_name = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    names = {"GET /items/{number}": CONCURRENT, "GET /plain": 1, "GET /broken": 1, "GET /stream": 1, "GET": 1}
    assert {name: len(some) for name, some in by_name.items()} == names
    assert all(row["threads"] == 2 and row["status"] == "finished" for row in by_name["GET /items/{number}"])
    assert by_name["GET /broken"][0]["status"] == "error"
    assert by_name["GET"][0]["arguments"] == '{"status_code": 404}'
    squares = {
        row["name"]: row["count"]
        for row in prof.trace.table("request_modules").to_pylist()
        if row["module"] is None
    }
    # Both ends of each item ran `ones` (three operators with those inside) and `square_` (two).
    assert squares["GET /items/{number}"] == CONCURRENT * 2 * squares["GET /plain"]
    assert squares["GET /stream"] == 3 * squares["GET /plain"]


def test_other_scopes_pass_through_and_a_name_can_be_chosen():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])
        if scope["type"] == "http":
            torch.ones(8).square_()
            await send({"type": "http.response.start", "status": 204, "headers": []})

    async def send(message):
        seen.append(message["status"])

    async def main():
        middleware = RequestMiddleware(app, lambda scope: scope["path"].upper())
        for kind in ("lifespan", "websocket", "http"):
            await middleware({"type": kind, "path": "/a"}, None, send)

    with kinetoscope.profile() as prof:
        asyncio.run(main())
    assert seen == ["lifespan", "websocket", "http", 204]
    (row,) = prof.trace.table("requests").to_pylist()
    assert (row["name"], row["arguments"]) == ("/A", '{"status_code": 204}')
