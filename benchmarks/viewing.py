"""The server's time for the viewer's timeline of 10,000,000 spans: the layout once, then any window."""

import statistics
import time
from argparse import ArgumentParser, Namespace

import numpy as np

from benchmarks.harness import Result, run
from kinetoscope.model.schema import SpanKind
from kinetoscope.trace import Trace
from kinetoscope.viewer.server.routes import answer, encoded

WIDTH = 1600
ROWS = 24
LIMIT_MS = 100.0
LAYOUT_LIMIT_S = 2.0
SHARES = (1.0, 0.1, 0.01, 0.001)

THREADS, LEVELS, STREAMS = 4, 4, 8
NAMES = 160
# The nesting on a thread: one operator with four children with four children each; starts and durations as fractions.
_FAN = 4


def big_trace(spans: int, *, with_stacks: bool) -> Trace:
    """Return a trace of about `spans` spans: threads of nested operators and streams of kernels, 24 rows in total."""
    generator = np.random.default_rng(1)
    starts, durations = pattern(LEVELS)
    on_threads = int(spans * 0.7) // THREADS // len(starts)
    on_streams = (spans - on_threads * THREADS * len(starts)) // STREAMS
    parts: dict[str, list[np.ndarray]] = {
        name: []
        for name in ("thread", "start_ns", "duration_ns", "name", "stream", "own_stack", "own_module")
    }
    for thread in range(THREADS):
        stretch = generator.integers(1, 9, on_threads)
        lasts = stretch * int(durations[0] + generator.integers(50, 90))
        begin = np.cumsum(lasts) - lasts
        start = (begin[:, None] + stretch[:, None] * starts).ravel()
        add(parts, thread, start, (stretch[:, None] * durations).ravel(), -1, generator)
    end = int(parts["start_ns"][0][-1])
    for stream in range(STREAMS):
        longest = generator.integers(2, 2 * max(end // on_streams, 2), on_streams)
        start = np.cumsum(longest) - longest
        add(
            parts,
            THREADS + stream,
            start,
            (longest * generator.random(on_streams)).astype(np.int64),
            stream,
            generator,
        )
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    columns["kind"] = np.where(columns["stream"] >= 0, SpanKind.KERNEL, SpanKind.OPERATOR).astype(np.uint8)
    if not with_stacks:
        del columns["own_stack"], columns["own_module"]
    strings = ["", *(f"aten::operator_number_{number}" for number in range(NAMES))]
    threads = THREADS + STREAMS
    deep = np.arange(NAMES, dtype=np.int32)
    return Trace.from_columns(
        {
            "spans": columns,
            "threads": {"os_tid": np.arange(threads), "name": [f"thread {number}" for number in range(threads)]},
            "streams": {"number": np.arange(STREAMS), "name": [""] * STREAMS},
            # Chains of stacks and modules, at most eight deep.
            "stacks": {"parent": np.where(deep % 8, deep - 1, -1), "frame": deep},
            "frames": {"function": deep + 1, "file": np.zeros(NAMES, np.int32), "line": deep},
            "modules": {"parent": np.where(deep % 8, deep - 1, -1), "name": deep + 1, "class": deep + 1},
        },
        strings=strings,
        info={"start_realtime_ns": 1_700_000_000_000_000_000},
    )  # fmt: skip


def pattern(levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and durations of one operator and its descendants, sorted by start."""
    if levels == 1:
        return np.zeros(1, np.int64), np.full(1, 20, np.int64)
    starts, durations = pattern(levels - 1)
    step = int(durations[0]) + 5
    inside = [(starts + 5 + number * step, durations) for number in range(_FAN)]
    return (
        np.concatenate([np.zeros(1, np.int64), *(start for start, _ in inside)]),
        np.concatenate([np.full(1, _FAN * step + 10, np.int64), *(duration for _, duration in inside)]),
    )


def add(
    parts: dict[str, list[np.ndarray]],
    thread: int,
    start: np.ndarray,
    duration: np.ndarray,
    stream: int,
    generator: np.random.Generator,
) -> None:
    """Add the spans of a thread."""
    count = len(start)
    parts["thread"].append(np.full(count, thread, np.int32))
    parts["start_ns"].append(start)
    parts["duration_ns"].append(duration)
    parts["name"].append(generator.integers(1, NAMES + 1, count, dtype=np.int32))
    parts["stream"].append(np.full(count, stream, np.int32))
    # Consecutive operators are in the same function and module.
    where = np.full(count, -1, np.int32) if stream >= 0 else (np.arange(count) // 16 % NAMES).astype(np.int32)
    parts["own_stack"].append(where)
    parts["own_module"].append(where)


def window_ms(trace: Trace, share: float, rounds: int) -> tuple[list[float], int, int, int]:
    """Measure windows of a share of the trace at several positions; return times, spans covered, spans sent, and bytes."""
    layout_facts = answer(trace, "tracks", {})
    wanted = [
        track
        for group in layout_facts["groups"]
        for track in group["tracks"]
        if track["sort"] in ("thread", "stream")
    ]
    assert sum(track["rows"] for track in wanted) == ROWS
    names = ",".join(str(track["id"]) for track in wanted)
    length = layout_facts["duration_ns"]
    times, covered, sent, size = [], 0, 0, 0
    for place in np.linspace(0, 1 - share, rounds).tolist():
        query = {
            "start": repr(place * length),
            "end": repr((place + share) * length),
            "width": str(WIDTH),
            "tracks": names,
        }
        began = time.perf_counter()
        table = answer(trace, "window", query)
        body = encoded(table).body
        times.append((time.perf_counter() - began) * 1e3)
        covered, sent, size = sum(table["count"].to_pylist()), table.num_rows, len(body)
    return times, covered, sent, size


def seconds(trace: Trace, path: str, query: dict[str, str]) -> float:
    """Measure one request."""
    began = time.perf_counter()
    answer(trace, path, query)
    return time.perf_counter() - began


def options_of(parser: ArgumentParser) -> None:
    """Add the option for the size; making the trace takes about 400 bytes of memory per span."""
    parser.add_argument("--spans", type=int, default=10_000_000)


def measure(options: Namespace) -> list[Result]:
    """Measure windows without stacks, then the layout of a trace with stacks and modules."""
    spans = 50_000 if options.quick else options.spans
    trace = big_trace(spans, with_stacks=False)
    layout = seconds(trace, "tracks", {})
    results = []
    # The first window reads the columns into memory.
    window_ms(trace, SHARES[0], 1)
    for share in SHARES:
        times, covered, sent, size = window_ms(trace, share, 3 if options.quick else 15)
        worst = max(times)
        results.append(
            Result(
                f"window of {share:.1%} of {len(trace.columns('spans')):,} spans, {ROWS} rows x {WIDTH} pixels",
                f"< {LIMIT_MS:.0f} ms",
                f"{statistics.median(times):.1f} ms (longest {worst:.1f})",
                worst < LIMIT_MS,
                [
                    f"{covered:,} spans shown as {sent:,}, {size / 1e6:.2f} MB of Arrow, including serialization"
                ],
            )
        )
    deep = big_trace(spans // 10, with_stacks=True)
    once = seconds(deep, "tracks", {})
    results.append(
        Result(
            f"layout of {len(deep.columns('spans')):,} spans with stacks and modules, first time",
            f"< {LAYOUT_LIMIT_S:.0f} s",
            f"{once:.2f} s",
            once < LAYOUT_LIMIT_S,
            [f"{len(trace.columns('spans')):,} spans without stacks and modules: {layout:.2f} s"],
        )
    )
    return results


if __name__ == "__main__":
    run(measure, options_of)
