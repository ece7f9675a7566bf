"""What marking requests adds: to the latency of 50 concurrent requests of a server, while nothing records and while a session does, and to one call.

A model of 6 million parameters responds under uvicorn, with the middleware and without it in turns. The load is on the same machine, so that the whole of a turn is
busy, and each turn's latencies are compared with those of the turn without the middleware beside it.
"""

import asyncio
import random
import socket
import statistics
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import uvicorn

import kinetoscope
from benchmarks.harness import Result, run
from benchmarks.processor_time import interval
from kinetoscope.integrations.asgi import RequestMiddleware

CONCURRENT, MOST_PERCENT = 50, 2.0
CALLS = 20_000

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


def options_of(parser: ArgumentParser) -> None:
    """Add the number of turns."""
    parser.add_argument("--turns", type=int, default=24, help="turns of each kind (%(default)s)")


def application() -> App:
    """A server that runs a model, and awaits something between its two halves."""
    half = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024))
    model = [half, torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(2)])]

    async def app(scope: Message, receive: Any, send: Any) -> None:
        with torch.no_grad():
            hidden = model[0](torch.ones(8, 1024))
        await asyncio.sleep(0)
        with torch.no_grad():
            model[1](hidden)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    return app


@contextmanager
def served(app: App) -> Iterator[int]:
    """Serve an application on a port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", loop="asyncio"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


async def latencies(port: int, rounds: int) -> list[float]:
    """The latencies in seconds of requests, `CONCURRENT` of them at a time, each on a connection of its own."""
    found: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(rounds):
            began = time.perf_counter()
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"ok")
            found.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client() for _ in range(CONCURRENT)))
    return found


def compare(turns: int, rounds: int, record: bool) -> Result:
    """Compare the 99th percentile of latencies with the middleware and without it."""
    generator, added = random.Random(1), []
    app = application()
    medians: list[float] = []
    with served(app) as plain, served(RequestMiddleware(app)) as marked:
        for port in (plain, marked):
            asyncio.run(latencies(port, 2))
        for _ in range(turns):
            took = {}
            for port in generator.sample((plain, marked), 2):
                with kinetoscope.profile() if record else nullcontext():
                    took[port] = np.array(asyncio.run(latencies(port, rounds)))
            p99 = {port: float(np.percentile(took[port], 99)) for port in took}
            added.append(100 * (p99[marked] / p99[plain] - 1))
            medians.append(float(np.median(took[plain])))
    low, high = interval(lambda chosen: statistics.median(added[one] for one in chosen), turns)
    value = statistics.median(added)
    what = f"added latency at p99, {CONCURRENT} concurrent requests, {'while a session records' if record else 'nothing records'}"
    notes = [
        f"interval {low:+.2f} to {high:+.2f} %; a request takes {1e3 * statistics.median(medians):.1f} ms without it"
    ]
    return Result(what, f"<= {MOST_PERCENT:g} %", f"{value:+.2f} %", value <= MOST_PERCENT, notes)


def one_call(calls: int) -> Result:
    """The cost of marking a call of a function while nothing records, beside torch's `record_function`."""

    def empty() -> None:
        return

    marked = kinetoscope.request("empty")(empty)

    def ranged() -> None:
        with torch.profiler.record_function("empty"):
            return

    def timed(function: Callable[[], None]) -> float:
        began = time.process_time_ns()
        for _ in range(calls):
            function()
        return (time.process_time_ns() - began) / calls

    plain, ours, theirs = (min(timed(one) for _ in range(5)) for one in (empty, marked, ranged))
    notes = [f"record_function {theirs - plain:,.0f} ns, ratio {(ours - plain) / (theirs - plain):.2f}"]
    return Result(
        "marking a call while nothing records",
        "<= 20 us",
        f"{(ours - plain) / 1e3:.1f} us",
        ours - plain <= 20e3,
        notes,
    )


def measure(options: Namespace) -> list[Result]:
    """Measure the latencies, and one call."""
    turns, rounds, calls = (2, 2, 200) if options.quick else (options.turns, 12, CALLS)
    return [compare(turns, rounds, record=False), compare(turns, rounds, record=True), one_call(calls)]


if __name__ == "__main__":
    run(measure, options_of)
