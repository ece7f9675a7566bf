"""What marking requests adds to the latency of 50 concurrent requests of a server, while nothing records and while a session does, and to one request and one call; and what a recording with marks adds.

A model of 6 million parameters responds under uvicorn, on one path with the middleware and on one without it. A client in a process of its own sends bursts: 50 requests
at the same moment, each on a connection that is open already. Bursts with and without the middleware are pairs, in a new random order each time, so that both have the same
state of the machine. Latencies of all bursts are pooled for the percentiles; the interval is found by drawing pairs of bursts anew. What other programs do to the machine
hides a few percent of that: the processor time of the server, of the same bursts, and the median of the pairs resolve less than one. Garbage is frozen and collected
only between pairs, and the first pairs are left out.

What marking adds to a recording is compared within sessions, both bursts of a pair in the same one. What a recording adds together with its marks is compared
between a few bursts in a session and as many without one, in random order, each time after one more that is left out.

One request is measured without a server, by an application that does nothing: again and again, and each time after a model's weights have passed through the caches, as in a server
that runs one.
"""

import asyncio
import gc
import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import uvicorn

import kinetoscope
from benchmarks.harness import Result, run
from benchmarks.processor_time import interval
from kinetoscope.integrations.asgi import RequestMiddleware

CONCURRENT, MOST_PERCENT = 50, 2.0
CALLS, COLD_CALLS = 20_000, 400
CACHES_BYTES = 64 * 2**20
"""So much is written between two requests that are measured with cold caches."""
WARM_UP = 10
"""So many pairs of bursts are left out."""
PAIRS_OF_SESSION = 25
"""After so many pairs, the session that records is a new one."""
BURSTS_OF_SESSION = 5
"""So many bursts are recorded by a session that is compared with none."""
PLAIN, MARKED = "/plain", "/marked"

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


def options_of(parser: ArgumentParser) -> None:
    """Add the number of pairs of bursts."""
    parser.add_argument("--pairs", type=int, default=500, help="pairs of bursts of each kind (%(default)s)")


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
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", lifespan="off", loop="asyncio", timeout_keep_alive=600)
    )

    def serve() -> None:
        # Also of this thread: its operators would else wait for each other wherever another program has a processor.
        torch.set_num_threads(1)
        server.run(sockets=[listening])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


# Reads a path from each line, and writes the latencies of a burst of requests for it, in seconds.
CLIENT = """
import asyncio, gc, json, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
async def main():
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    async def one(reader, writer, request, began):
        writer.write(request)
        await reader.readuntil(b"ok")
        return time.perf_counter() - began
    while line := sys.stdin.readline():
        request = f"GET {line.strip()} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode()
        began = time.perf_counter()
        print(json.dumps(await asyncio.gather(*(one(*both, request, began) for both in connections))), flush=True)
        gc.collect()
gc.disable()
asyncio.run(main())
"""


@contextmanager
def client_of(port: int) -> Iterator[Callable[[str], list[float]]]:
    """A client in a process of its own: sends a burst of requests for a path, and returns their latencies in seconds."""
    command = [sys.executable, "-c", CLIENT, str(port), str(CONCURRENT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asking, answering = process.stdin, process.stdout

        def burst(path: str) -> list[float]:
            asking.write(f"{path}\n")
            asking.flush()
            found: list[float] = json.loads(answering.readline())
            return found

        yield burst
        asking.close()


def both_ways(app: App) -> App:
    """An application that responds on one path as it is, and on another one with the middleware."""
    marked = RequestMiddleware(app)

    async def chosen(scope: Message, receive: Any, send: Any) -> None:
        await (marked if scope["path"] == MARKED else app)(scope, receive, send)

    return chosen


Burst = Callable[[str], tuple[list[float], int]]


@contextmanager
def bursts() -> Iterator[Burst]:
    """Serve the application both ways; gives what sends a burst for a path, and returns the latencies in seconds and the server's processor time in nanoseconds."""
    with served(both_ways(application())) as port, client_of(port) as send:

        def burst(path: str) -> tuple[list[float], int]:
            began_ns = time.process_time_ns()
            found = send(path)
            return found, time.process_time_ns() - began_ns

        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            yield burst
        finally:
            gc.enable()
            gc.unfreeze()


def marks(pairs: int, warm_up: int, record: bool) -> Result:
    """Compare requests with the middleware and without it, while a session records both, or nothing does."""
    generator = random.Random(1)
    took: dict[str, list[tuple[list[float], int]]] = {PLAIN: [], MARKED: []}
    with bursts() as burst, ExitStack() as session:
        for pair in range(warm_up + pairs):
            if record and pair % PAIRS_OF_SESSION == 0:
                session.close()
                session.enter_context(kinetoscope.profile())
            gc.collect()
            for path in generator.sample((PLAIN, MARKED), 2):
                found = burst(path)
                if pair >= warm_up:
                    took[path].append(found)
    when = "marks add while a session records" if record else "marks add while nothing records"
    return judged(took[PLAIN], took[MARKED], when)


def recording_with_marks(pairs: int, warm_up: int) -> Result:
    """Compare requests with the middleware that a session records with requests without either."""
    generator = random.Random(2)
    took: dict[str, list[tuple[list[float], int]]] = {PLAIN: [], MARKED: []}
    with bursts() as burst:
        for _ in range(-(-(warm_up + pairs) // BURSTS_OF_SESSION)):
            for path in generator.sample((PLAIN, MARKED), 2):
                gc.collect()
                with kinetoscope.profile() if path == MARKED else nullcontext():
                    burst(path)
                    took[path] += [burst(path) for _ in range(BURSTS_OF_SESSION)]
    plain, marked = (took[path][-pairs:] for path in (PLAIN, MARKED))
    return judged(plain, marked, "a recording with marks adds")


def judged(plain: list[tuple[list[float], int]], marked: list[tuple[list[float], int]], what: str) -> Result:
    """What the bursts of one kind have more of than those of the other one."""
    plain_s, marked_s = (np.array([latencies for latencies, _ in some]) for some in (plain, marked))
    pairs = len(plain)

    def added(quantile: float, chosen: Sequence[int]) -> float:
        """How much longer the requests of some pairs take at a percentile of all of them, in percent."""
        rows = np.asarray(chosen)
        of_plain = np.percentile(plain_s[rows], quantile)
        return 100 * float(np.percentile(marked_s[rows], quantile) / of_plain - 1)

    each = 100 * (np.percentile(marked_s, 99, axis=1) / np.percentile(plain_s, 99, axis=1) - 1)

    def of_pairs(chosen: Sequence[int]) -> float:
        return float(np.median(each[np.asarray(chosen)]))

    added_ns = np.array([ns for _, ns in marked]) - np.array([ns for _, ns in plain])
    added_us = added_ns / CONCURRENT / 1e3
    bare_us = float(np.median([ns for _, ns in plain])) / CONCURRENT / 1e3

    def processor(chosen: Sequence[int]) -> float:
        return float(np.median(added_us[np.asarray(chosen)]))

    every = range(pairs)
    value = added(99, every)
    low, high = interval(lambda chosen: added(99, chosen), pairs)
    middle = interval(lambda chosen: added(50, chosen), pairs)
    typical = interval(of_pairs, pairs)
    of_processor = interval(processor, pairs)
    notes = [
        f"95 % interval {low:+.2f} to {high:+.2f} %, of {pairs} pairs of bursts",
        f"at p50 {added(50, every):+.2f} % ({middle[0]:+.2f} to {middle[1]:+.2f} %)",
        f"p99 of a burst, median of the pairs {of_pairs(every):+.2f} % ({typical[0]:+.2f} to {typical[1]:+.2f} %)",
        f"processor time of a request, median of the pairs {processor(every):+.1f} us ({of_processor[0]:+.1f} to {of_processor[1]:+.1f} us) of {bare_us:,.0f} us: {100 * processor(every) / bare_us:+.2f} %",
        f"without it, p50 is {1e3 * np.percentile(plain_s, 50):.1f} ms and p99 {1e3 * np.percentile(plain_s, 99):.1f} ms, {1e3 * statistics.median(plain_s.max(axis=1)) / CONCURRENT:.2f} ms a request",
    ]
    return Result(
        f"what {what}, latency at p99 of {CONCURRENT} concurrent requests",
        f"<= {MOST_PERCENT:g} %",
        f"{value:+.2f} %",
        value <= MOST_PERCENT,
        notes,
    )


async def nothing(_scope: Message, _receive: Any, send: Any) -> None:
    """An application that does nothing but respond."""
    await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


async def no_send(_message: Message) -> None:
    """Receives what an application sends."""


def ranged(app: App) -> App:
    """An application that runs in a `record_function`, which knows nothing of other requests on its thread."""

    async def within(scope: Message, receive: Any, send: Any) -> None:
        with torch.profiler.record_function("GET"):
            await app(scope, receive, send)

    return within


def respond(app: App) -> None:
    """Let an application respond to one request, without an event loop, which would take longer than all of it."""
    scope = {"type": "http", "method": "GET", "path": "/"}
    running: Any = app(scope, None, no_send)  # type: ignore[arg-type]
    try:
        while True:
            running.send(None)
    except StopIteration:
        return


def one_request(calls: int, cold_calls: int) -> Result:
    """The time of a request to an application that does nothing, in microseconds: by itself, with the middleware and with `record_function`."""
    apps = {"nothing": nothing, "middleware": RequestMiddleware(nothing), "record_function": ranged(nothing)}
    emptied = np.zeros(CACHES_BYTES // 8)

    def warm_us(app: App) -> float:
        began = time.process_time_ns()
        for _ in range(calls):
            respond(app)
        return (time.process_time_ns() - began) / calls / 1e3

    def cold_us(app: App) -> float:
        np.add(emptied, 1, out=emptied)
        began = time.thread_time_ns()
        respond(app)
        return (time.thread_time_ns() - began) / 1e3

    def all_us() -> dict[str, tuple[float, float]]:
        warm = {name: min(warm_us(app) for _ in range(5)) for name, app in apps.items()}
        cold: dict[str, list[float]] = {name: [] for name in apps}
        for _ in range(cold_calls):
            for name, app in apps.items():
                cold[name].append(cold_us(app))
        return {name: (warm[name], statistics.median(cold[name])) for name in apps}

    idle = all_us()
    with kinetoscope.profile():
        recording = all_us()
    notes = [
        f"{when}, {name}: {found[name][0]:.2f} us, {found[name][1]:.1f} us with cold caches"
        for when, found in (("nothing records", idle), ("a session records", recording))
        for name in apps
    ]
    added, theirs = (idle[name][0] - idle["nothing"][0] for name in ("middleware", "record_function"))
    return Result(
        "the middleware in a request while nothing records",
        "<= record_function",
        f"{added:.2f} us",
        added <= theirs,
        notes,
    )


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
        "<= 10 us",
        f"{(ours - plain) / 1e3:.1f} us",
        ours - plain <= 10e3,
        notes,
    )


def measure(options: Namespace) -> list[Result]:
    """Measure the latencies, and one call."""
    pairs, warm_up, calls, cold_calls = (
        (3, 1, 200, 3) if options.quick else (options.pairs, WARM_UP, CALLS, COLD_CALLS)
    )
    torch.set_num_threads(1)
    return [
        marks(pairs, warm_up, record=False),
        marks(pairs, warm_up, record=True),
        recording_with_marks(pairs, warm_up),
        one_request(calls, cold_calls),
        one_call(calls),
    ]


if __name__ == "__main__":
    run(measure, options_of)
