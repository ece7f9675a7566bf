"""The columns `spans.flops` and `spans.bytes_moved`, and what the tables of costs are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.tables.costs import _registry
from kinetoscope.tables.costs._evaluate import DistinctCalls, Standing, distinct_calls
from kinetoscope.tables.costs._once import Counted, count_once
from kinetoscope.trace._schema import SpanKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

_UNKNOWN = (Standing.NO_FORMULA, Standing.NO_INPUTS)


@dataclass(frozen=True)
class Costs:
    """The costs of a trace.

    Attributes:
        calls: The distinct calls and the cost of each.
        counted: Which spans count.
        unknown: The operator spans of which nothing is known and that are inside none that counts.
    """

    calls: DistinctCalls
    counted: Counted
    unknown: NDArray[np.bool_]

    def flops(self) -> NDArray[np.int64]:
        """Operations counted at each span, -1 where they are not known."""
        values = np.where(self.counted.counts, self.calls.flops[self.calls.of_span], 0)
        values[self.unknown] = -1
        return values

    def bytes_moved(self) -> NDArray[np.int64]:
        """Bytes counted at each span, -1 where they are not known."""
        values = np.where(self.counted.counts, self.calls.bytes[self.calls.of_span], 0)
        values[self.unknown] = -1
        return values


def costs_of(trace: Trace) -> Costs:
    """The costs of a trace, computed once for the formulas known now."""
    return trace.cached("flops_and_bytes_moved", lambda: _compute(trace))


def span_costs(trace: Trace) -> dict[str, NDArray[np.int64]]:
    """The columns `flops` and `bytes_moved` of `spans`."""
    costs = costs_of(trace)
    return {"flops": costs.flops(), "bytes_moved": costs.bytes_moved()}


def _compute(trace: Trace) -> Costs:
    """Evaluate the distinct calls and count each operation once."""
    spans = trace.columns("spans")
    _registry.note_computed(trace)
    calls = distinct_calls(trace)
    standing = calls.standing[calls.of_span]
    counted = count_once(spans["parent"], spans["depth"], spans["name"], standing, calls.flops[calls.of_span])
    asked = (spans["kind"] == SpanKind.OPERATOR) | calls.by_user[calls.of_span]
    unknown = np.isin(standing, _UNKNOWN) & ~counted.inside & asked
    return Costs(calls, counted, unknown)
