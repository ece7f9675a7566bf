"""What ran on a device, as events of a Chrome trace, with an arrow from the call that launched it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace import SpanKind

if TYPE_CHECKING:
    from kinetoscope.formats._chrome_tracks import Tracks
    from kinetoscope.trace import Trace


def device_events(
    trace: Trace, tracks: Tracks, categories: Mapping[SpanKind, str]
) -> Iterator[dict[str, Any]]:
    """The events of every span that ran on a stream.

    A kernel carries the id of the host span that launched it (`External id`), as Kineto's do. The host span has the
    number of its row among the host's spans, counted from 1.
    """
    spans, streams = trace.columns("spans"), trace.columns("streams")
    rows = np.flatnonzero(spans["stream"] >= 0)
    if len(rows) == 0:
        return
    launches = trace.columns("launches")
    launcher = dict(zip(launches["device"].tolist(), launches["host"].tolist(), strict=True))
    external_id = np.cumsum(spans["stream"] < 0)
    process = int(trace.info.get("process") or 0)

    def place(row: int) -> tuple[int, int]:
        """The process and track of a span."""
        track = int(tracks.first_of_thread[spans["thread"][row]] + spans["lane"][row])
        device = tracks.device[track]
        return (process if device < 0 else device), int(tracks.tid[track])

    for flow, row in enumerate(rows.tolist(), 1):
        kind, stream = SpanKind(int(spans["kind"][row])), spans["stream"][row]
        device, tid = place(row)
        start_ns = int(spans["start_ns"][row])
        host = launcher.get(row)
        args: dict[str, Any] = {
            "device": device,
            "stream": int(streams["number"][stream]),
            "correlation": flow,
        }
        if host is not None:
            args["External id"] = int(external_id[host])
        yield {
            "ph": "X",
            "cat": "gpu_user_annotation" if kind is SpanKind.USER_ANNOTATION else categories[kind],
            "name": trace.strings[int(spans["name"][row])],
            "pid": device,
            "tid": tid,
            "ts": _microseconds(start_ns),
            "dur": _microseconds(int(spans["duration_ns"][row])),
            "args": args,
        }
        if host is not None:
            arrow = {"cat": "ac2g", "name": "ac2g", "id": flow}
            host_pid, host_tid = place(host)
            host_us = _microseconds(int(spans["start_ns"][host]))
            yield {"ph": "s", "pid": host_pid, "tid": host_tid, "ts": host_us, **arrow}
            yield {"ph": "f", "bp": "e", "pid": device, "tid": tid, "ts": _microseconds(start_ns), **arrow}


def _microseconds(time_ns: int) -> float:
    """Nanoseconds as microseconds; exact to the nanosecond for traces of up to a month."""
    return round(time_ns / 1000, 3)
