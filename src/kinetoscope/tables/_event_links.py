"""What torch copies from one event to another: autograd's numbers to the engine's wrappers, and arrows to backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kinetoscope.tables._event_numbers import event_of_launch
from kinetoscope.tables._visible import event_tree
from kinetoscope.trace._assemble import ENGINE_WRAPPER
from kinetoscope.trace._schema import SCOPE_BACKWARD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace


class Autograd(NamedTuple):
    """Of every span autograd's sequence number, and the thread (a row of `threads`) its forward ran on."""

    sequence: NDArray[np.int64]
    forward_thread: NDArray[np.int32]


class Arrows(NamedTuple):
    """Of every span the arrow that links it with the other end of a forward-backward pair, 0 without; where it starts."""

    number: NDArray[np.int64]
    starts: NDArray[np.bool_]


def autograd(trace: Trace) -> Autograd:
    """Autograd's columns; the engine's wrapper around a backward function has those of the function."""

    def make() -> Autograd:
        spans, tree = trace.columns("spans"), event_tree(trace)
        sequence, thread = spans["sequence"].copy(), spans["forward_thread"].copy()
        rows = np.flatnonzero(spans["scope"] == SCOPE_BACKWARD)
        around = (spans["parent"] if tree is None else tree.parent)[rows]
        is_wrapper = np.array([text.startswith(ENGINE_WRAPPER) for text in trace.strings], dtype=bool)
        wrapped = (around >= 0) & is_wrapper[spans["name"][around]]
        for values in (sequence, thread):
            values[around[wrapped]] = values[rows[wrapped]]
        # torch names a forward thread only where a number says which call on it is meant.
        thread[sequence < 0] = -1
        return Autograd(sequence, thread)

    return trace.cached("event_autograd", make)


def arrows(trace: Trace) -> Arrows:
    """Which forward operators and backward functions belong together."""

    def make() -> Arrows:
        forward = trace.column("spans", "forward")
        number, starts = np.zeros(len(forward), dtype=np.int64), np.zeros(len(forward), dtype=bool)
        ends = np.flatnonzero(forward >= 0)
        number[ends] = number[forward[ends]] = forward[ends] + 1
        starts[forward[ends]] = True
        return Arrows(number, starts)

    return trace.cached("event_arrows", make)


class Launches(NamedTuple):
    """Which event started which device event, both ways, sorted to be searched."""

    hosts: NDArray[np.int32]
    started: NDArray[np.int32]
    devices: NDArray[np.int32]
    starters: NDArray[np.int32]

    def started_by(self, row: int) -> list[int]:
        """The device events that an event started, in the order of the launches."""
        first, last = np.searchsorted(self.hosts, [row, row + 1])
        found: list[int] = self.started[first:last].tolist()
        return found

    def starter_of(self, row: int) -> int:
        """The event that started a device event, -1 without."""
        place = int(np.searchsorted(self.devices, row))
        known = place < len(self.devices) and self.devices[place] == row
        return int(self.starters[place]) if known else -1


def launches(trace: Trace) -> Launches:
    """The launches of a trace by the events that people see."""

    def make() -> Launches:
        host, device = event_of_launch(trace), trace.column("launches", "device")
        by_host, by_device = np.argsort(host, kind="stable"), np.argsort(device, kind="stable")
        return Launches(host[by_host], device[by_host], device[by_device], host[by_device])

    return trace.cached("event_launches", make)
