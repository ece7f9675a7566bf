"""When the content of a block changed in place, as far as the names of operators tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.tables.memory.blocks import blocks_of, keys_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


def content_changes(trace: TraceData) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return when which block was written over.

    torch names an operator that writes into its first operand with an underscore at the end (`aten::add_`,
    `aten::_foreach_mul_`); of nested ones the outermost counts. Known only where operands were recorded.

    Args:
        trace: The trace.

    Returns:
        The times in nanoseconds, rising, and the blocks.
    """
    spans, given = trace.columns("spans"), trace.columns("operands")
    in_place = np.array([_writes(text) for text in trace.strings], dtype=bool)[spans["name"]]
    parent = spans["parent"]
    nested = (parent >= 0) & in_place[np.maximum(parent, 0)]
    span = given["span"]
    rows = np.flatnonzero((given["argument"] == 0) & (in_place & ~nested)[span])
    times = spans["start_ns"][span[rows]]
    block = blocks_of(trace).at(keys_of(trace, "operands", rows), times)
    known = np.flatnonzero(block >= 0)
    known = known[np.argsort(times[known], kind="stable")]
    return times[known], block[known]


def _writes(name: str) -> bool:
    """Whether an operator of this name writes into its first operand."""
    return "::" in name and name.endswith("_") and not name.endswith("__")
