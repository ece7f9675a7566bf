"""Waste that the flow of tensors shows, in steps recorded in full: results that nothing reads, and work on copies of the same rows.

A storage identifies a tensor, so a view is the tensor that it views. A result for one call holds for all calls of the operator from the same stack in the same module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from kinetoscope.ledger.avoidable_work.distinct_calls import VIEWS, Calls, DistinctCall
from kinetoscope.ledger.avoidable_work.repeats import has_unknown_readers
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import nearest_of, outermost_operators
from kinetoscope.model.rows import Mask, Rows, begins_run
from kinetoscope.model.schema import Phase
from kinetoscope.model.time_spent import Cause
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.operator_names import names

LEAST_PART = 0.03
"""Unused results that take a smaller fraction of the forward time are ignored."""
LEAST_COPIES = 2.0
"""Fewer copies per row are ignored."""
LEAST_ROWS = 64
"""With fewer rows, a batch and its parameters may be confused."""
_LOOK_UPS = names("aten::index_select aten::index")
_REPEATS = names("aten::repeat_interleave")
# These compute each row of the result from one row of the inputs.
_BY_ROW = frozenset({"matmul", "pointwise", "embedding"})
_SAME_ROWS = (
    VIEWS
    | names("aten::contiguous aten::to aten::_to_copy aten::cat aten::layer_norm aten::clone aten::flatten")
) - names("aten::expand aten::select")
_BAGS = names("aten::embedding_bag")
_WITH_BIAS_FIRST = names("aten::addmm aten::baddbmm")


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator recorded with its tensors: its span, the (argument, storage) pairs that it reads, and the storages of its results."""

    span: int
    reads: tuple[tuple[int, int], ...]
    results: tuple[int, ...]


def of_flow(trace: TraceData, calls: Calls) -> list[tuple[Rows, float, Cause]]:
    """Find results that nothing reads, and work on copies of the same rows.

    Args:
        trace: The trace.
        calls: Its distinct calls.

    Returns:
        For each finding the forward operators, the fraction of their work that is avoidable, and the cause.
    """
    spans = trace.columns("spans")
    if len(trace.columns("tensor_versions")) == 0 or has_unknown_readers(trace):
        return []
    outer = outermost_operators(trace)
    forward = outer[spans["phase"][outer] == Phase.FORWARD]
    unused = _without_backward(trace, outer, forward)
    copies = [call for call in calls.all if not 0 < _copies(call) < LEAST_COPIES]
    took_ns = spans["duration_ns"]
    least_ns = LEAST_PART * took_ns[forward].sum()
    looks_for_unused = took_ns[unused].sum() >= least_ns and len(unused) < len(forward)
    if not (copies or looks_for_unused):
        return []
    operations = recorded_operations(trace)
    key = Groups.by([spans[name][forward] for name in ("name", "stack", "module")])
    key_of = np.full(len(spans), -1)
    key_of[forward] = key.of_row
    listed: list[tuple[Rows, float, Cause]] = []
    if looks_for_unused:
        in_full = unused[_is_in_full_step(trace, forward, operations)[unused]]
        dead = _never_read(operations, dict(zip(in_full.tolist(), key_of[in_full].tolist(), strict=True)))
        listed.append((unused[np.isin(key_of[unused], list(dead))], 1.0, Cause.UNUSED_RESULT))
    of_part: dict[float, list[int]] = defaultdict(list)
    if copies:
        call_of, flow = {call.row: call for call in calls.all}, _Copies()
        for operation in operations:
            copied = flow.make(operation, call_of.get(int(calls.of_span[operation.span])))
            if copied >= LEAST_COPIES and key_of[operation.span] >= 0:
                of_part[1.0 - 1.0 / copied].append(int(key_of[operation.span]))
    listed += [
        (forward[np.isin(key.of_row, keys)], part, Cause.COPIED_ROWS) for part, keys in of_part.items()
    ]
    return listed


def _without_backward(trace: TraceData, outer: Rows, forward: Rows) -> Rows:
    """The forward operators that autograd recorded but whose backward never ran, for any call from the same stack."""
    spans = trace.columns("spans")
    has_backward = np.zeros(len(spans) + 1, bool)
    has_backward[nearest_of(trace, outer)[spans["forward"]]] = True
    if not has_backward[:-1].any():
        return np.zeros(0, np.int64)
    order = forward[np.lexsort((spans["start_ns"][forward], spans["thread"][forward]))]
    # Only an operator that autograd records raises the number of the next one.
    sequence, thread = spans["sequence"][order], spans["thread"][order]
    raises = np.append((np.diff(sequence) > 0) & ~begins_run(thread)[1:], False)
    calls = Groups.by([spans[name][order] for name in ("name", "stack", "module")])
    never = calls.sums(has_backward[order]) == 0
    return np.sort(order[raises & (sequence >= 0) & never[calls.of_row]])


@derived
def recorded_operations(trace: TraceData) -> list[Operation]:
    """The operators recorded with their tensors, in order of time."""
    spans, versions = trace.columns("spans"), trace.columns("tensor_versions")
    span = nearest_of(trace, outermost_operators(trace))[versions["span"]]
    rows = np.flatnonzero((span >= 0) & (versions["number"] == 0) & (versions["storage"] > 0))
    rows = rows[np.lexsort((rows, span[rows], spans["start_ns"][span[rows]]))]
    if len(rows) == 0:
        return []
    of_span = span[rows]
    first = np.flatnonzero(begins_run(of_span))
    argument, is_result = (versions[name][rows].tolist() for name in ("argument", "result"))
    # Storage numbers are unique per process only.
    process = trace.column("threads", "process_row")[spans["thread"][of_span]].astype(np.int64)
    storage = (versions["storage"][rows] + ((process + 1) << 44)).tolist()
    operations = []
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(rows)], strict=True):
        numbers = range(begin, end)
        reads = tuple((argument[row], storage[row]) for row in numbers if not is_result[row])
        results = tuple(storage[row] for row in numbers if is_result[row])
        operations.append(Operation(int(of_span[begin]), reads, results))
    return operations


def calls_that_follow(trace: TraceData, call_of: Mapping[int, int], step: Rows) -> tuple[int, int]:
    """Count which calls compute from the result of an earlier one like them.

    Args:
        trace: The trace.
        call_of: Which call, a number from 0, some operators are, by their rows.
        step: The step of each span; -1 for those whose results do not count.

    Returns:
        How many of the operators are not the first like them in a step, and how many of these compute from an earlier one like them.
    """
    of_storage: dict[int, int] = defaultdict(int)
    again = follows = ran = 0
    at_step = -1
    for operation in recorded_operations(trace):
        if step[operation.span] < 0:
            continue
        if step[operation.span] != at_step:
            at_step, ran = step[operation.span], 0
            of_storage.clear()
        # The calls that a tensor was computed from are bits of a number.
        calls = 0
        for _, storage in operation.reads:
            calls |= of_storage[storage]
        if operation.span in call_of:
            this = 1 << call_of[operation.span]
            again += bool(ran & this)
            follows += bool(calls & this)
            ran, calls = ran | this, calls | this
        of_storage.update(dict.fromkeys(operation.results, calls))
    return again, follows


def _is_in_full_step(trace: TraceData, forward: Rows, operations: list[Operation]) -> Mask:
    """Spans in steps whose first and last forward operators were recorded with tensors: a slice of a step hides some readers."""
    spans = trace.columns("spans")
    is_recorded = np.zeros(len(spans), bool)
    is_recorded[[operation.span for operation in operations]] = True
    order = forward[np.lexsort((spans["start_ns"][forward], spans["step"][forward]))]
    runs = Groups.runs(spans["step"][order])
    last = np.append(runs.first[1:], len(order)) - 1
    full = is_recorded[order[runs.first]] & is_recorded[order[last]]
    in_full = np.isin(spans["step"], spans["step"][order[runs.first[full]]]) & (spans["step"] >= 0)
    return np.asarray(in_full)


def _never_read(operations: list[Operation], key_of: dict[int, int]) -> set[int]:
    """The keys of candidates whose results no live operator reads in any step."""
    read: set[int] = set()
    candidates: set[int] = set()
    alive: set[int] = set()
    for operation in reversed(operations):
        key = key_of.get(operation.span)
        if key is not None:
            candidates.add(key)
            if operation.results and read.isdisjoint(operation.results):
                continue
            alive.add(key)
        read.update(storage for _, storage in operation.reads)
    return candidates - alive


def _copies(call: DistinctCall) -> float:
    """The mean number of copies of each row that a call makes; 1 if it makes none, 0 for a lookup with an index of unknown size."""
    tensors = call.operands
    dims = len(tensors[0]) if tensors else 0
    dim = call.value(2 if call.name in _REPEATS else 1)
    is_of_rows = dims == 1 or call.name == "aten::index" or (type(dim) is int and dim in (0, -dims))
    if call.name in _REPEATS:
        times = call.value(1)
        return float(times) if type(times) is int and is_of_rows else 1.0
    if call.name in _LOOK_UPS and dims > 1 and is_of_rows:
        return tensors[1][0] / max(tensors[0][0], 1) if len(tensors) > 1 and len(tensors[1]) == 1 else 0.0
    return 1.0


class _Copies:
    """The tensors with copied rows: for each storage the number of copies of each row, and the rows in all."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, int]] = {}
        # For the result of a lookup with an index of unknown size: the rows of its source.
        self._source_rows: dict[int, int] = {}

    def make(self, operation: Operation, call: DistinctCall | None) -> float:
        """Follow an operator; return how many copies of each row it multiplies, 1 unless it is a matrix product."""
        copies = None if call is None else self._made_by(operation, call)
        for storage in operation.results:
            self._known.pop(storage, None)
            if copies is not None and copies[1] >= LEAST_ROWS:
                self._known[storage] = copies
        if call is not None and _copies(call) == 0 and len(operation.reads) == 2:
            self._source_rows.update(dict.fromkeys(operation.results, call.operands[0][0]))
        return copies[0] if copies is not None and call is not None and call.family == "matmul" else 1.0

    def _made_by(self, operation: Operation, call: DistinctCall) -> tuple[float, int] | None:
        if (copies := _copies(call)) >= LEAST_COPIES:
            rows = call.operands[1][0] if call.name in _LOOK_UPS else round(call.operands[0][0] * copies)
            return copies, rows
        if call.family not in _BY_ROW and call.name not in _SAME_ROWS | _BAGS:
            return None
        shapes = _shapes(operation, call)
        read = {storage: shape for (_, storage), shape in zip(operation.reads, shapes, strict=True) if shape}
        for storage in read.keys() & self._source_rows.keys():
            rows, source_rows = read[storage][0], self._source_rows.pop(storage)
            if rows >= LEAST_COPIES * source_rows:
                self._known[storage] = rows / source_rows, rows
        copied = {storage: self._known[storage] for storage in read if storage in self._known}
        rows_of_product = int(call.name in _WITH_BIAS_FIRST)
        first = next((storage for argument, storage in operation.reads if argument == rows_of_product), 0)
        if not copied or (call.family == "matmul" and first not in copied):
            return None
        copies, rows = min(copied.values())
        are_rows = {
            storage: shape[0] % rows == 0 or prod(shape[:-1]) % rows == 0 for storage, shape in read.items()
        }
        # The offsets of an embedding bag have one row per bag; they are not data.
        differ = (
            any(are_rows[storage] for storage in read if storage not in copied) and call.name not in _BAGS
        )
        return None if differ or not all(are_rows[storage] for storage in copied) else (copies, rows)


def _shapes(operation: Operation, call: DistinctCall) -> list[tuple[int, ...]]:
    """The shapes of the tensors that an operator reads, in the order of its reads; empty if unknown."""
    position: dict[int, int] = defaultdict(int)
    shapes = []
    for argument, _ in operation.reads:
        sizes = call.shapes[argument] if argument < len(call.shapes) else None
        if isinstance(sizes, list):
            sizes = sizes[position[argument]] if position[argument] < len(sizes) else None
            position[argument] += 1
        shapes.append(sizes if isinstance(sizes, tuple) else ())
    return shapes
