"""The distinct operator calls of a trace: calls with the same operator, shapes, types and scalars are one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows, ShapesRow
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.call import OperatorCall, Shape
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.evaluate import parsed_inputs
from kinetoscope.tables.costs.operator_names import names
from kinetoscope.tables.deep_steps import shapes_of

VIEWS = names(
    "aten::view aten::reshape aten::select aten::slice aten::t aten::transpose aten::unsqueeze aten::squeeze aten::expand aten::detach"
    " aten::permute aten::alias"
)
"""Operators that usually return a view of their input."""


@dataclass(slots=True, eq=False, repr=False)
class DistinctCall(OperatorCall):
    """An operator call with its row among the distinct calls and the family of its cost formula."""

    row: int = -1
    family: str = ""

    @property
    def operands(self) -> list[Shape]:
        """The shapes of all tensors, including those in lists."""
        return [
            sizes
            for shape in self.shapes
            for sizes in (shape if isinstance(shape, list) else [shape])
            if isinstance(sizes, tuple)
        ]

    @property
    def result(self) -> Shape:
        """The shape of the result of a matrix product or a linear layer; empty for other calls."""
        shapes = [shape for shape in self.shapes if isinstance(shape, tuple)]
        if self.name == "aten::linear" and len(shapes) > 1 and shapes[0] and shapes[1]:
            return (*shapes[0][:-1], shapes[1][0])
        pair = shapes[-2:] if self.name in ("aten::mm", "aten::bmm", "aten::matmul") else shapes[1:3]
        if len(pair) == 2 and len(pair[0]) > 1 and len(pair[1]) > 1:
            return (*pair[0][:-1], pair[1][-1])
        return ()


def call_of_span(trace: TraceData, span: int) -> DistinctCall | None:
    """The call of a span, without row and family; None if its inputs are unknown, and for span -1."""
    shapes = ShapesRow(int(shapes_of(trace)[span]) if span >= 0 else -1)
    inputs = parsed_inputs(trace, shapes) if shapes >= 0 else None
    return (
        None if inputs is None else DistinctCall(trace.strings[trace.column("spans", "name")[span]], *inputs)
    )


class Calls:
    """The distinct calls with known inputs."""

    def __init__(self, trace: TraceData) -> None:
        costs, spans = costs_of(trace), trace.columns("spans")
        self.of_span = costs.calls.of_span
        first = costs.calls.first
        names_, kind = (spans[name][first].tolist() for name in ("name", "kind"))
        shapes = shapes_of(trace)[first].tolist()
        self.all = [
            DistinctCall(trace.strings[name], *inputs, row=row, family=costs.calls.family[row])
            for row, (name, shape, span_kind) in enumerate(zip(names_, shapes, kind, strict=True))
            if span_kind == SpanKind.OPERATOR and shape >= 0
            and (inputs := parsed_inputs(trace, ShapesRow(shape))) is not None
        ]  # fmt: skip

    def named(self, *names_: str) -> list[DistinctCall]:
        """The distinct calls of operators with one of these names."""
        return [call for call in self.all if call.name in names_]

    def times(self, of_spans: NDArray[Any] | slice = slice(None)) -> Rows:
        """How often each call ran, in all or some spans."""
        return Groups(self.of_span[of_spans], int(self.of_span.max(initial=-1)) + 1).sizes()

    def spans_of(self, rows: dict[int, float]) -> tuple[Rows, NDArray[np.float64]]:
        """The spans of some calls, and for each span the value of its call."""
        if not rows:
            return np.zeros(0, np.int64), np.zeros(0)
        values = np.zeros(int(self.of_span.max()) + 1)
        for row, value in rows.items():
            values[row] = value
        spans = np.flatnonzero((values != 0)[self.of_span])
        return spans, values[self.of_span[spans]]


@derived
def calls_of(trace: TraceData) -> Calls:
    """The distinct calls of a trace, parsed once."""
    return Calls(trace)
