"""Texts of traces as Kineto writes them, and the traces they become. Times are in microseconds, as in the files."""

import io
import json
from typing import Any

from kinetoscope import open as open_trace
from kinetoscope.model.schema import KIND_NAMES
from kinetoscope.trace import Trace
from tests.support.chrome_text import x

PID = 100


def opened(*events: Any, header: dict[str, Any] | None = None, **options: Any) -> Trace:
    """The trace of these events; lists of events count as their events."""
    flat = [one for event in events for one in (event if isinstance(event, list) else [event])]
    text = json.dumps({"schemaVersion": 1, **(header or {}), "traceEvents": flat})
    return open_trace(io.BytesIO(text.encode()), **options)


def op(name: str, ts: float, dur: float, tid: Any = PID, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    """A slice on the host."""
    return x(name, ts, dur, cat, PID, tid, **args)


def call(name: str, ts: float, dur: float, correlation: int, tid: Any = PID, **args: Any) -> dict[str, Any]:
    """A call into CUDA's runtime."""
    return x(name, ts, dur, "cuda_runtime", PID, tid, **{"correlation": correlation, **args})


def kernel(
    name: str, ts: float, dur: float, correlation: int | None = None, cat: str = "kernel", **args: Any
) -> dict[str, Any]:
    """A slice on stream 7 of device 0, or on another."""
    said = {"device": 0, "stream": 7, **({} if correlation is None else {"correlation": correlation}), **args}
    return x(name, ts, dur, cat, said["device"], said["stream"], **said)


def arrow(
    number: int, begin: tuple[Any, Any, float], end: tuple[Any, Any, float], cat: str = "fwdbwd"
) -> list[dict[str, Any]]:
    """A flow between two slices, each given by process, thread and time."""
    return [
        {"ph": phase, "id": number, "cat": cat, "name": cat, "pid": pid, "tid": tid, "ts": ts, "bp": "e"}
        for phase, (pid, tid, ts) in (("s", begin), ("f", end))
    ]


def named(what: str, pid: Any, tid: Any, said: str) -> dict[str, Any]:
    """A metadata event."""
    key = "labels" if what == "process_labels" else "name"
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {key: said}}


def spans(trace: Trace, *columns: str) -> list[Any]:
    """The name of each span in order, with more columns where asked for."""
    own = trace.columns("spans")
    made = [[trace.strings[name] for name in own["name"].tolist()]]
    for name in columns:
        values = own[name].tolist()
        made.append([KIND_NAMES[value] for value in values] if name == "kind" else values)
    return made[0] if len(made) == 1 else list(zip(*made, strict=True))


def kinds(trace: Trace) -> dict[str, str]:
    """The kind of each span by name."""
    return dict(spans(trace, "kind"))


def launches(trace: Trace) -> list[tuple[str, str]]:
    """Launches as pairs of names."""
    texts = spans(trace)
    rows = trace.columns("launches")
    return [(texts[host], texts[device]) for host, device in zip(rows["host"], rows["device"], strict=True)]
