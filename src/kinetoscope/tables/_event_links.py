"""What torch copies from one event to another: autograd's numbers to the engine's wrappers, and arrows to backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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
