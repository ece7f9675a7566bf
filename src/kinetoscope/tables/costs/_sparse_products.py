"""Finding out which products had sparse operands, and what they cost; see `kinetoscope.tables.costs.sparse`."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.tables.costs._evaluate import Standing, parsed_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.tables.costs._evaluate import DistinctCalls
    from kinetoscope.trace import Trace

_MARKS = frozenset(
    f"aten::{name}"
    for name in (
        "_nnz", "_indices", "_values", "values", "indices", "crow_indices", "col_indices", "ccol_indices", "row_indices",
    )
)  # fmt: skip


def settle_sparse(
    trace: Trace,
    calls: DistinctCalls,
    standing: NDArray[np.uint8],
    flops: NDArray[np.int64],
    bytes_: NDArray[np.int64],
) -> None:
    """Correct, in place, the costs of products whose operands turn out to be sparse.

    Args:
        trace: The trace.
        calls: Its distinct calls.
        standing: The standing of each span.
        flops: The operations of each span.
        bytes_: The bytes of each span.
    """
    strings = trace.strings
    marks = np.array([text in _MARKS for text in strings], dtype=bool)
    if not marks.any():
        return
    spans = trace.columns("spans")
    is_product = np.array([family == "matmul" for family in calls.family], dtype=bool)[calls.of_span]
    is_product &= (standing == Standing.FIRM) | (standing == Standing.DEFERRED)
    shares = _shares(trace, np.flatnonzero(marks[spans["name"]]))
    parent = spans["parent"]
    found: dict[int, set[tuple[int, int] | None]] = {}
    for row, share in shares.items():
        above = int(parent[row])
        while above >= 0:
            if is_product[above]:
                found.setdefault(above, set()).add(share)
            above = int(parent[above])
    for row, kinds in found.items():
        known = kinds - {None}
        bytes_[row] = -1
        if len(known) == 1 and (share := known.pop()) is not None and share[1] > 0:
            flops[row] = int(flops[row]) * share[0] // share[1]
        else:
            standing[row] = Standing.NO_INPUTS
            flops[row] = 0


def _shares(trace: Trace, rows: NDArray[np.int64]) -> dict[int, tuple[int, int] | None]:
    """For each mark how many numbers are stored and how many the matrix would have, or None where that is not shown."""
    spans = trace.columns("spans")
    stored: dict[int, int] = {}
    alias = np.flatnonzero(np.isin(spans["parent"], rows))
    for row in alias.tolist():
        if trace.strings[spans["name"][row]] == "aten::alias":
            inputs = parsed_inputs(trace, int(spans["shapes"][row]))
            if inputs is not None and isinstance(inputs.shapes[0], tuple):
                stored[int(spans["parent"][row])] = prod(inputs.shapes[0])
    found: dict[int, tuple[int, int] | None] = {}
    for row in rows.tolist():
        inputs = parsed_inputs(trace, int(spans["shapes"][row]))
        whole = inputs.shapes[0] if inputs is not None and inputs.shapes else None
        is_values = trace.strings[spans["name"][row]] == "aten::values"
        found[row] = (
            (stored[row], prod(whole)) if is_values and row in stored and isinstance(whole, tuple) else None
        )
    return found
