"""Allocations and frees outside all events: torch lists each as an event of its own, named `[memory]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._event_numbers import attribute_again, changes
from kinetoscope.tables._visible import event_tree, visible_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

MEMORY_KEY = "[memory]"


def loose_allocations(trace: Trace) -> NDArray[np.int64]:
    """The rows of `allocations` that lie in no event, in order of time.

    Frees of blocks from before the recording whose size is not known are left out; torch lists none of them.
    So are the blocks that a window of a longer trace began with.
    """
    allocations = trace.columns("allocations")
    if len(allocations) == 0:
        return np.zeros(0, dtype=np.int64)

    def make() -> NDArray[np.int64]:
        known = (allocations["bytes"] != 0) | (allocations["match"] >= 0) | (allocations["freed_bytes"] > 0)
        known &= allocations["time_ns"] >= 0
        return np.flatnonzero(known & (_event_of_allocation(trace) < 0))

    return trace.cached("loose_allocations", make)


def change_on(trace: Trace, rows: NDArray[Any], *, device: bool) -> NDArray[np.int64]:
    """By how many bytes some allocations change what is live on the host, or on devices."""
    on_device = trace.column("allocations", "device_type")[rows] != 0
    return np.where(on_device == device, changes(trace, rows), 0)


def _event_of_allocation(trace: Trace) -> NDArray[np.int32]:
    """For each allocation the event it happened in, -1 without."""
    tree = event_tree(trace)
    span: NDArray[np.int32] = trace.column("allocations", "span")
    if tree is not None:
        numbers = np.append(tree.rows, -1).astype(np.int32)
        span = np.full(len(span), -1, dtype=np.int32)
        for on_device in (False, True):
            part = attribute_again(trace, tree, on_device=on_device)
            span[part["rows"]] = numbers[part["span"]]
    return visible_spans(trace).shown(span)
