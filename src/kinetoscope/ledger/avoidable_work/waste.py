"""Operator work that could be skipped, and why operators are slow where the trace shows it.

Tensor sizes alone reveal some waste: a dense gradient for an embedding table with few lookups, a result of which a small part is used, a constant
that is rebuilt. Work that repeats earlier work on the same values is found only if tensor versions were recorded: see `repeats`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from kinetoscope.ledger.avoidable_work.distinct_calls import (
    VIEWS,
    Calls,
    DistinctCall,
    call_of_span,
    calls_of,
)
from kinetoscope.ledger.avoidable_work.repeats import is_random, repeats_of
from kinetoscope.ledger.avoidable_work.shortcuts import shortcuts
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import nearest_of, outermost_operators
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.rows import Mask, Rows, begins_run, ends_run, hashed, mask_of
from kinetoscope.model.schema import OPTIMIZER_STEP, Phase
from kinetoscope.model.time_spent import Cause
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.attainable import FRESH_BYTES
from kinetoscope.tables.costs.call import Shape
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.operator_names import names
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.stacks import program_frames


@dataclass(frozen=True, eq=False)
class Waste:
    """Avoidable work per span. Each array has one entry per span, and one more for "no span".

    Attributes:
        part: The fraction of the work that could be skipped, from 0 to 1.
        why: The `Cause` that makes it avoidable.
        slow: The `Cause` that makes the rest slower than necessary.
        fresh: Whether the span writes to memory that it gets from the operating system on every call.
    """

    part: NDArray[np.float64]
    why: NDArray[np.uint8]
    slow: NDArray[np.uint8]
    fresh: Mask

    def mark(self, spans: Rows, part: NDArray[np.float64], reason: Cause) -> None:
        """Mark a fraction of some spans as avoidable, where it exceeds what is already marked."""
        more = part > self.part[spans]
        self.part[spans[more]], self.why[spans[more]] = part[more], reason


LEAST_ZERO = 0.75
"""A gradient counts as mostly zero from this fraction of zeros on."""
MOST_USED = 0.125
"""A result counts as discarded if at most this fraction of it is used."""
LEAST_ELEMENTS = 65_536
"""Smaller tensors are ignored."""
MOST_FACTOR = 13
"""FFT libraries have fast code for lengths whose prime factors are at most this."""

# New memory explains a slow operator if it is at least this fraction of the bytes that the operator moves.
_LEAST_FRESH_PART = 0.25

_GOOD_FACTOR = 7
_ADAGRAD_STEP = f"{OPTIMIZER_STEP}Adagrad.step"
_TABLE_BACKWARD = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
_PARTS = names("aten::slice aten::select aten::index")
_PART_BACKWARD = ("aten::slice_backward", "aten::select_backward", "aten::_index_put_impl_")
# Each element of their results may depend on all elements of an input.
_MIXING = frozenset(
    {"matmul", "indexing", "embedding", "attention", "convolution", "recurrent", "pooling", "ordering"}
)
_LAYOUTS = names("aten::contiguous aten::reshape aten::flatten")
_CONSTANTS = names("aten::ones aten::zeros aten::full aten::arange aten::eye aten::linspace")
_INDEXING = names("aten::index aten::index_select aten::gather")


@derived
def waste_of(trace: TraceData) -> Waste:
    """Find avoidable work and the causes of slow operators; computed once per trace."""
    count = len(trace.columns("spans")) + 1
    waste = Waste(
        np.zeros(count), np.zeros(count, np.uint8), np.zeros(count, np.uint8), np.zeros(count, bool)
    )
    calls = calls_of(trace)
    _zero_gradients(trace, calls, waste)
    _discarded(trace, calls, waste)
    _made_again(trace, calls, waste)
    _repeated(trace, waste)
    for spans, part, shortcut in shortcuts(trace, calls):
        waste.mark(spans, part, shortcut)
    _slow(trace, calls, waste)
    _fresh_memory(trace, waste)
    return waste


LEAST_REPEATED = 10
"""Fewer calls of an operator by one line in a step are not a loop: several layers, or terms of a formula, look the same."""


@derived
def called_again(trace: TraceData) -> Mask:
    """Repeated calls in a loop, without the first: one line calls an operator many times per step and module, where one call could process a whole tensor.

    Includes what these calls run inside and their backward. Loops in optimizers belong to torch and do not count. The last entry, for no span, is False.
    """
    spans = trace.columns("spans")
    outer = outermost_operators(trace)
    around = nearest_of(trace, outer)
    rows = outer[(spans["phase"][outer] == Phase.FORWARD) & (spans["stack"][outer] >= 0)]
    keys = [spans[name][rows].astype(np.int32) for name in ("step", "stack", "module", "name")]
    groups = Groups.by(keys)
    again = groups.sizes()[groups.of_row] >= LEAST_REPEATED
    again[groups.first] = False
    is_again = mask_of(rows[again], len(spans) + 1)
    backward = np.flatnonzero(spans["forward"] >= 0)
    is_again[around[backward[is_again[around[spans["forward"][backward]]]]]] = True
    is_again[-1] = False
    return is_again[around]


def _zero_gradients(trace: TraceData, calls: Calls, waste: Waste) -> None:
    """Dense gradients of embedding tables of which a step looks up few rows, and the work on all their rows."""
    makers = {
        call.row: sizes for call in calls.named(*_TABLE_BACKWARD) if (sizes := _table(call)) is not None
    }
    zero: dict[Shape, float] = {}
    for table, part in makers.values():
        zero[table] = min(part, zero.get(table, 1.0))
    zero = {
        table: part for table, part in zero.items() if part >= LEAST_ZERO and prod(table) >= LEAST_ELEMENTS
    }
    # A table that matrix products use, too, has a dense gradient anyway.
    for call in calls.all:
        if call.family == "matmul":
            for shape in call.operands:
                zero.pop(shape, None)
                zero.pop(shape[::-1], None)
    if not zero:
        return
    marked = {row: part for row, (table, part) in makers.items() if table in zero}
    updates: dict[Shape, set[str]] = defaultdict(set)
    phase = trace.column("spans", "phase")
    in_optimizer = calls.times(phase == Phase.OPTIMIZER)
    for call in calls.all:
        shapes = call.operands
        share = sum(prod(shape) * zero[shape] for shape in shapes if shape in zero)
        if share and call.row not in marked and call.family not in ("embedding", "matmul"):
            marked[call.row] = share / sum(map(prod, shapes))
            for shape in shapes if in_optimizer[call.row] else ():
                updates[shape].add(call.name)
    spans, parts = calls.spans_of(marked)
    # An optimizer with a momentum moves rows whose gradient is zero, too; Adagrad's state does not.
    optimizers = {text for text in trace.strings if text.startswith(OPTIMIZER_STEP)}
    simple = optimizers == {_ADAGRAD_STEP} or all(len(updates[table]) <= 1 for table in zero)
    later = phase[spans] == Phase.BACKWARD if not simple else phase[spans] != Phase.FORWARD
    waste.mark(spans[later], parts[later], Cause.ZERO_GRADIENT)


def _table(call: DistinctCall) -> tuple[Shape, float] | None:
    """The shape of the table whose dense gradient a call computes, and the least fraction of zeros in it; None if unknown."""
    rows = call.value(5 if "bag" in call.name else 2)
    if not (call.has_tensor(0) and call.has_tensor(1) and call.shape(0)) or type(rows) is not int:
        return None
    return (rows, call.shape(0)[-1]), 1.0 - min(1.0, call.numel(1) / max(rows, 1))


def _discarded(trace: TraceData, calls: Calls, waste: Waste) -> None:
    """Matrix products of whose result only a part is used, and the work on all of it. The gradient of the part shows it.

    Skipped if layers of the same size pass the result on, or if anything reads other parts of it.
    """
    spans, counts = trace.columns("spans"), costs_of(trace).counted.counts
    forward = spans["phase"] == Phase.FORWARD
    times, made_forward, ran_forward = calls.times(), calls.times(counts & forward), calls.times(forward)
    uses: dict[Shape, list[tuple[DistinctCall, int]]] = defaultdict(list)
    for call in calls.named(*_PART_BACKWARD):
        if (use := _use(call)) is not None and prod(use[0]) >= LEAST_ELEMENTS:
            uses[use[0]].append((call, use[1]))
    marked: dict[int, float] = {}
    for sizes, parts in uses.items():
        flat = (prod(sizes[:-1]), sizes[-1])
        makers = [call for call in calls.all if call.family == "matmul" and call.result in (sizes, flat)]
        makes = sum(int(made_forward[call.row]) for call in makers)
        used = sum(int(times[call.row]) * elements for call, elements in parts)
        concerned = [
            call for call in calls.all if any(tensor in (sizes, flat, flat[::-1]) for tensor in call.operands)
        ]
        mixed = any(
            call.family in _MIXING and call.name not in _PARTS and ran_forward[call.row]
            # A view may have another shape.
            and any(prod(tensor) == prod(sizes) for tensor in call.operands)
            for call in calls.all
        )  # fmt: skip
        if mixed or not 0 < makes <= sum(int(times[call.row]) for call, _ in parts):
            continue
        share = 1.0 - min(1.0, used / (makes * prod(sizes)))
        if share >= 1.0 - MOST_USED:
            wasteful = (*makers, *concerned, *(call for call, _ in parts))
            marked |= {call.row: max(share, marked.get(call.row, 0.0)) for call in wasteful}
    rows, shares = calls.spans_of(marked)
    inside = spans["phase"][rows] != Phase.OPTIMIZER
    waste.mark(rows[inside], shares[inside], Cause.DISCARDED)


def _use(call: DistinctCall) -> tuple[Shape, int] | None:
    """The shape of a sliced tensor and the element count of the slice, read from the slice's gradient call; None if unknown."""
    part, sizes = 0, call.value(1)
    if "index_put" in call.name:
        part, sizes = 2, call.shape(0) if call.has_tensor(0) and call.value(3) is True else None
    if not call.has_tensor(part) or not isinstance(sizes, (list, tuple)) or len(sizes) < 2:
        return None
    return tuple(int(size) for size in sizes if isinstance(size, int)), call.numel(part)


def _made_again(trace: TraceData, calls: Calls, waste: Waste) -> None:
    """Runs of operators on constants and indices only, such as a mask or the degrees of a graph.

    A result of constants is needed once; one of indices once per step, because the next step may have others.
    """
    spans = trace.columns("spans")
    rows = outermost_operators(trace, (spans["phase"] == Phase.FORWARD) & (spans["stack"] >= 0))
    makes = np.array([text in _CONSTANTS for text in trace.strings], dtype=bool)[spans["name"][rows]]
    if not makes.any():
        return
    run, first, length = _runs(trace, rows, makes)
    # Inspect runs of the same operators with the same shapes once.
    index = np.arange(len(rows)) - first[run]
    operators = hashed(index, spans["name"][rows], shapes_of(trace)[rows])
    alike = Groups.by([Groups(run, len(first)).sums(operators.view(np.int64)), length])
    same = alike.of_row
    call_of = {call.row: call for call in calls.all}
    reasons = [
        _again(call_of, calls.of_span[rows[first[first_row] : first[first_row] + length[first_row]]])
        for first_row in alike.first.tolist()
    ]
    step = np.append(spans["step"], -1)[rows[first]]
    in_step = Groups.by([same, step])
    times = np.where(step >= 0, in_step.sizes()[in_step.of_row], 1)
    for reason in (Cause.CONSTANT, Cause.REPEATED):
        taken = np.array([pair[0] if pair[1] == reason else 0 for pair in reasons], np.int64)[same]
        often = times if reason == Cause.REPEATED else alike.sizes()[same]
        part = np.where(
            (taken > 0) & (often > 1), 1.0 if reason == Cause.CONSTANT else 1.0 - 1.0 / often, 0.0
        )
        inside, around = _inside(trace, rows[(index < taken[run]) & (part[run] > 0)])
        value = np.zeros(len(spans) + 1)
        value[rows] = part[run]
        waste.mark(inside, value[around], reason)


def _inside(trace: TraceData, rows: Rows) -> tuple[Rows, Rows]:
    """The operators among or inside some spans, and for each the span that it belongs to."""
    around = nearest_of(trace, rows)[:-1]
    inside = np.flatnonzero((around >= 0) & is_operator(trace.column("spans", "kind")))
    return inside, around[inside].astype(np.int64)


def _repeated(trace: TraceData, waste: Waste) -> None:
    repeats = repeats_of(trace)
    for rows, reason in (
        (repeats.same_step, Cause.RECOMPUTED),
        (repeats.earlier_step, Cause.UNCHANGED),
        (repeats.overwritten_by, Cause.OVERWRITTEN),
    ):
        if (rows >= 0).any():
            inside, _ = _inside(trace, np.flatnonzero(rows[:-1] >= 0))
            waste.mark(inside, np.ones(len(inside)), reason)


def _runs(trace: TraceData, rows: Rows, makes: Mask) -> tuple[Rows, Rows, Rows]:
    """Split the operators into runs within one Python function that need no gradient: the run of each operator, and the first row and length of each run.

    A run begins with the first constant that a function makes. Every other operator is a run by itself.
    """
    spans, frames = trace.columns("spans"), trace.columns("frames")
    function = np.append(Groups.by([frames["file"], frames["function"]]).of_row, np.int32(-1))[
        program_frames(trace)[spans["stack"][rows]]
    ]
    random = np.array([is_random(text) for text in trace.strings], dtype=bool)
    outer = nearest_of(trace, rows)
    differentiable = np.zeros(len(spans) + 1, bool)
    forward = spans["forward"]
    differentiable[outer[forward[forward >= 0]]] = True
    apart = differentiable[rows] | random[spans["name"][rows]]
    cut = (
        apart | np.append(True, apart[:-1]) | begins_run(function, spans["thread"][rows], spans["step"][rows])
    )
    index = np.arange(len(rows))
    begin = np.maximum.accumulate(np.where(cut, index, 0))
    last_made = np.maximum.accumulate(np.where(makes & ~apart, index, -1))
    made_before = np.append(-1, last_made[:-1])
    # In a stretch the first constant begins a run; what comes before is apart.
    starts = cut | (last_made < begin) | (makes & (made_before < begin))
    first = np.flatnonzero(starts)
    return np.cumsum(starts) - 1, first, np.diff(np.append(first, len(rows)))


def _again(known: dict[int, DistinctCall], calls: NDArray[np.int32]) -> tuple[int, Cause]:
    """How many leading operators of a run use constants and indices only, and `CONSTANT` or, with indices, `REPEATED`; 0 if they compute nothing large."""
    sizes: set[int] = set()
    counted_up, of_indices, taken, computing = False, False, 0, 0
    for row in calls.tolist():
        call = known.get(row)
        if call is None:
            break
        if call.name in _CONSTANTS:
            sizes.add(_made_elements(call))
            counted_up |= call.name == "aten::arange"
        else:
            inputs = [
                (prod(shape), dtype in ("int64", "int32"))
                for shape, dtype in zip(call.shapes, call.dtypes, strict=True)
                if isinstance(shape, tuple) and shape
            ]
            if not inputs or any(count not in sizes and not is_index for count, is_index in inputs):
                break
            # Integer inputs are indices, unless the run itself made them.
            from_outside = (is_index and not (counted_up and count in sizes) for count, is_index in inputs)
            of_indices |= any(from_outside) or call.name in _INDEXING
            sizes |= {count for count, is_index in inputs if not is_index}
            computing += call.name not in VIEWS
        taken += 1
    if computing == 0 or max(sizes, default=0) < LEAST_ELEMENTS // 16:
        return 0, Cause.NONE
    return taken, Cause.REPEATED if of_indices else Cause.CONSTANT


def _made_elements(call: DistinctCall) -> int:
    if call.name in ("aten::arange", "aten::eye", "aten::linspace"):
        count = next((value for value in call.values if type(value) is int), 0)
        return count ** (2 if call.name == "aten::eye" else 1) if 0 <= count < 2**20 else 0
    sizes = call.value(0)
    return prod(sizes) if isinstance(sizes, list) else 0


def _slow(trace: TraceData, calls: Calls, waste: Waste) -> None:
    """Mark slow operators with their cause: an FFT length, a type conversion, a copy to another layout."""
    reasons: dict[int, float] = {}
    for call in calls.all:
        if call.family == "fourier" and _largest_factor(_length(call)) > MOST_FACTOR:
            reasons[call.row] = Cause.LENGTH
        elif call.name == "aten::copy_" and len({*call.dtypes[:2], None}) > 2:
            reasons[call.row] = Cause.TYPE
    rows, reason = calls.spans_of(reasons)
    waste.slow[rows] = reason
    spans = trace.columns("spans")
    changes = np.array([text in _LAYOUTS for text in trace.strings], dtype=bool)
    copies = np.array([text == "aten::clone" for text in trace.strings], dtype=bool)
    parent = np.append(changes.take(spans["name"]), False).take(spans["parent"])
    waste.slow[np.flatnonzero(copies.take(spans["name"]) & parent)] = Cause.LAYOUT


def _length(call: DistinctCall) -> int:
    dims = call.value(1)
    if not call.has_tensor(0) or not call.shape(0) or not isinstance(dims, list) or not dims:
        return 1
    if "c2r" in call.name:
        return call.value(3) if type(call.value(3)) is int else 1
    shape, last = call.shape(0), dims[-1]
    return shape[last] if type(last) is int and -len(shape) <= last < len(shape) else 1


def transform_length(trace: TraceData, span: int) -> int:
    """The length of a span's Fourier transform; 1 if unknown."""
    call = call_of_span(trace, span)
    return 1 if call is None else _length(call)


def good_length(length: int) -> int:
    """The smallest length that is at least `length` and whose prime factors are at most 7."""
    candidate = length
    while _largest_factor(candidate) > _GOOD_FACTOR:
        candidate += 1
    return candidate


def table_rows(trace: TraceData, spans: Rows) -> int:
    """The row count of the largest embedding table whose dense gradient one of the spans computes; 0 if none does."""
    calls = (call_of_span(trace, span) for span in spans.tolist())
    tables = (_table(call) for call in calls if call is not None and call.name in _TABLE_BACKWARD)
    return max((table[0][0] for table in tables if table is not None), default=0)


def _largest_factor(number: int) -> int:
    """The largest prime factor of a number; 1 for numbers below 2 and for those too large to be lengths."""
    largest, factor = 1, 2
    while 1 < number < 2**40 and factor * factor <= number:
        while number % factor == 0:
            number, largest = number // factor, factor
        factor += 1
    return max(largest, number) if 1 < number < 2**40 else largest


def _fresh_memory(trace: TraceData, waste: Waste) -> None:
    """Mark operators that write large, newly allocated blocks: in each outermost operator, the one that moves the most bytes."""
    allocations, spans = trace.columns("allocations"), trace.columns("spans")
    blocks = np.flatnonzero((allocations["bytes"] >= FRESH_BYTES) & (allocations["device_type"] == 0))
    # The `span` column is expensive: compute it only for traces with large blocks.
    blocks = blocks[allocations["span"][blocks] >= 0] if len(blocks) else blocks
    if len(blocks) == 0:
        return
    operator = is_operator(spans["kind"])
    parent = np.append(np.where(np.append(operator, False).take(spans["parent"]), spans["parent"], -1), -1)
    top = allocations["span"][blocks].astype(np.int64)
    while (parent[top] >= 0).any():
        top = np.where(parent[top] >= 0, parent[top], top)
    bytes_of = Groups(top, len(spans)).sums(allocations["bytes"][blocks])
    outer = nearest_of(trace, top)[:-1]
    costs = costs_of(trace)
    writers = np.flatnonzero((outer >= 0) & costs.counted.counts & (costs.bytes_moved > 0))
    order = writers[np.lexsort((costs.bytes_moved[writers], outer[writers]))]
    chosen = order[ends_run(outer[order])]
    waste.fresh[chosen] = _LEAST_FRESH_PART * costs.bytes_moved[chosen] <= bytes_of[outer[chosen]]
