"""The columns of everything that a Chrome trace shows on the tracks of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope.formats._chrome_calls import RebuiltCalls, rebuilt_calls
from kinetoscope.trace import SpanKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.formats._chrome_stacks import ShownStacks
    from kinetoscope.trace import Trace

_AS_THEY_ARE = (
    "start_ns",
    "duration_ns",
    "name",
    "kind",
    "thread",
    "lane",
    "sequence",
    "forward_thread",
    "module",
    "shapes",
    "flags",
)


def host_spans(trace: Trace, shown: ShownStacks) -> dict[str, NDArray[Any]]:
    """The columns that `_core.ChromeWriter` takes of spans, without those of devices and with rebuilt calls.

    Args:
        trace: The trace.
        shown: Its stacks as slices show them.

    Returns:
        The columns by the writer's names, contiguous, sorted as spans are.
    """
    spans = trace.columns("spans")
    on_host: NDArray[np.bool_] = spans["stream"] < 0
    chosen: slice | NDArray[np.bool_] = slice(None)
    forward = spans["forward"]
    if not on_host.all():
        chosen = on_host
        # Rows move up when the device's are left out; the last entry stands for the row -1.
        moved = np.append(np.where(on_host, np.cumsum(on_host) - 1, -1), -1).astype(np.int32)
        forward = moved[forward]
    columns = {name: np.ascontiguousarray(spans[name][chosen]) for name in _AS_THEY_ARE}
    columns["forward"] = np.ascontiguousarray(forward[chosen])
    columns["stack"] = np.ascontiguousarray(shown.of_span[chosen])
    if (spans["record_function"] >= 0).any():
        columns["record_function"] = np.ascontiguousarray(spans["record_function"][chosen])
    calls = rebuilt_calls(trace, shown)
    return columns if calls is None else _with_calls(columns, calls, trace)


def _with_calls(
    columns: dict[str, NDArray[Any]], calls: RebuiltCalls, trace: Trace
) -> dict[str, NDArray[Any]]:
    """The same columns with calls in their places; lanes are those of all of them together."""
    count, more = len(columns["start_ns"]), len(calls.start_ns)
    nothing = np.full(more, -1, np.int32)
    zeros = np.zeros(more, np.uint8)
    function = trace.columns("frames")["function"][trace.columns("stacks")["frame"][calls.stack]]
    added: dict[str, NDArray[Any]] = {
        "start_ns": calls.start_ns,
        "duration_ns": calls.duration_ns,
        "name": function,
        "kind": zeros + np.uint8(SpanKind.PYTHON),
        "thread": calls.thread,
        "lane": nothing,
        "flags": zeros,
        "stack": calls.stack,
    }
    # Of what begins at the same time the longer one is around the other, and a call around what runs in it.
    order = np.lexsort(
        (
            np.append(np.arange(count, dtype=np.int64) + more, calls.depth.astype(np.int64)),
            -np.append(columns["duration_ns"], calls.duration_ns),
            np.append(columns["start_ns"], calls.start_ns),
            np.append(columns["thread"], calls.thread),
        )
    )
    merged = {
        name: np.append(values, added.get(name, nothing.astype(values.dtype))).astype(values.dtype)[order]
        for name, values in columns.items()
    }
    moved = np.full(count + more + 1, -1, np.int32)
    moved[order] = np.arange(count + more, dtype=np.int32)
    merged["forward"] = moved[merged["forward"]]
    nested = _core.nest(merged["thread"], merged["start_ns"], merged["duration_ns"])
    merged["lane"] = nested["lane"]
    return merged
