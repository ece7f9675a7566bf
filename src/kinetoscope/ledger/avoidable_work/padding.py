"""Work on padding: what operators compute for the elements that fill up the rows of a batch of sequences.

In steps recorded in full, the recorder reads the batches that layers receive and counts their padding; for `pad_sequence`, the shapes suffice. An operator on a
tensor with the rows and columns of such a batch computes its padding, too; one that compares all columns with each other, such as attention, the square of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kinetoscope.ledger.avoidable_work.distinct_calls import Calls, DistinctCall, calls_of
from kinetoscope.model.rows import Rows
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.call import Shape
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.operator_names import names

LEAST_PART = 0.2
"""Batches with a smaller fraction of padding are ignored."""
MOST_OF_FIXED = 0.85
"""Batches are padded to a fixed length if their longest row fills at most this fraction of the columns."""
LEAST_ELEMENTS = 256
"""Smaller batches are ignored."""
# Which argument of each operator is the batch of sequences.
_SEQUENCES = {"aten::embedding": 1, "aten::linear": 0, "aten::lstm": 0, "aten::gru": 0}
_PADS = names("aten::pad_sequence")


@dataclass(frozen=True)
class Padding:
    """The padding of batches of one size.

    Attributes:
        rows: The number of rows of a batch.
        columns: The number of columns.
        longest: The length of the longest row, averaged over the batches.
        part: The fraction of all elements that is padding.
        maker: The operator that made one of the batches, -1 if that was not recorded.
    """

    rows: int
    columns: int
    longest: float
    part: float
    maker: int

    @property
    def is_fixed(self) -> bool:
        """Whether batches are padded to a fixed length, beyond their longest row."""
        return self.longest <= MOST_OF_FIXED * self.columns

    def avoidable(self, dimensions: int) -> float:
        """The fraction of work that less padding saves, for tensors with the columns in this many dimensions.

        With a fixed length: the columns beyond the longest row. Otherwise: all padding, as batches of equally long rows
        would save it, assuming that row lengths spread evenly between the shortest and the longest.
        """
        needed = self.longest / self.columns if self.is_fixed else 1.0 - self.part
        spread = 0.0 if self.is_fixed or dimensions < 2 else (1.0 - needed) ** 2 / 3
        return max(0.0, 1.0 - needed**dimensions - spread)


@derived
def paddings_of(trace: TraceData) -> tuple[Padding, ...]:
    """The padding of the batches that layers receive, most padding first."""
    has_pads = any(text in _PADS for text in trace.strings)
    if not has_pads and not (trace.column("tensor_versions", "longest_row") >= 0).any():
        return ()
    calls = calls_of(trace)
    by_size = {padding[:2]: Padding(*padding) for padding in _of_sizes(trace, calls)}
    by_size |= {padding[:2]: Padding(*padding) for padding in _of_values(trace, calls)}
    large = [
        padding
        for padding in by_size.values()
        if padding.rows * padding.columns >= LEAST_ELEMENTS and padding.part >= LEAST_PART
    ]
    return tuple(sorted(large, key=lambda padding: -padding.part * padding.rows * padding.columns))


def _of_sizes(trace: TraceData, calls: Calls) -> Iterator[tuple[int, int, float, float, int]]:
    """The fields of `Padding` for the results of `pad_sequence`, from the lengths of the sequences."""
    first = costs_of(trace).calls.first
    for call in calls.named(*_PADS):
        lengths = [sizes[0] for sizes in call.shape_list(0) if sizes]
        longest = max(lengths, default=0)
        part = 1.0 - sum(lengths) / max(len(lengths) * longest, 1)
        yield len(lengths), longest, float(longest), part, int(first[call.row])


def _of_values(trace: TraceData, calls: Calls) -> Iterator[tuple[int, int, float, float, int]]:
    """The fields of `Padding` for batches whose values were read when a layer received them."""
    versions = trace.columns("tensor_versions")
    call_of = {call.row: call for call in calls.named(*_SEQUENCES)}
    has_padding = versions["longest_row"] >= 0
    by_size: dict[Shape, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    call_row = calls.of_span[versions["span"]]
    for row in np.flatnonzero((versions["result"] == 0) & np.isin(call_row, list(call_of))).tolist():
        call = call_of[int(call_row[row])]
        if versions["argument"][row] != _SEQUENCES[call.name]:
            continue
        sizes, is_look_up = call.shape(_SEQUENCES[call.name]), call.name == "aten::embedding"
        if len(sizes) == (2 if is_look_up else 3) and (is_look_up or has_padding[row]):
            by_size[sizes[:2]][call.shape(0)[0] if is_look_up else 0].append(row)
    for (rows, columns), of_table in by_size.items():
        # Tables of positions and token types are smaller than the table of words.
        batches = np.array(of_table[max(of_table)])
        longest = np.where(has_padding, versions["longest_row"], columns)[batches].mean()
        part = versions["padding"][batches].mean() / max(rows * columns, 1)
        yield rows, columns, float(longest), float(part), _maker(trace, batches)


def _maker(trace: TraceData, batches: Rows) -> int:
    """The first operator that returned one of the tensors in some rows of `tensor_versions`; -1 if none did."""
    versions = trace.columns("tensor_versions")
    returned = (versions["result"] != 0) & (versions["storage"] > 0)
    makers = versions["span"][returned & np.isin(versions["storage"], versions["storage"][batches])]
    return int(makers[np.argmin(trace.column("spans", "start_ns")[makers])]) if len(makers) else -1


def on_padding(trace: TraceData, calls: list[DistinctCall]) -> Iterator[tuple[DistinctCall, float]]:
    """Distinct calls that work on padding, and the fraction of their work that is avoidable."""
    paddings = paddings_of(trace)
    for call in calls if paddings else ():
        shapes = [*call.operands, call.result]
        part = max(
            padding.avoidable(max(_dimensions(shape, padding, call.family) for shape in shapes))
            for padding in paddings
        )
        if part > 0:
            yield call, part


def _dimensions(sizes: Shape, batch: Padding, family: str) -> int:
    """How many dimensions of a tensor are the columns of a batch; 0 if its shape does not come from the batch."""
    rows, columns = batch.rows, batch.columns
    if not sizes:
        return 0
    if sizes[0] == rows * columns or sizes[:2] in ((rows, columns), (columns, rows)):
        return 1
    # Attention heads have their own dimension or share that of the rows.
    if len(sizes) < 3 or sizes[0] % rows or columns not in sizes[1:]:
        return 0
    return 2 if sizes[-2:] == (columns, columns) or family == "attention" else 1
