"""Operators for which a cheaper one gives the same result, found by how later operators use their results.

A sort of which only the first elements are read, an inverse that is only multiplied, a product with one-hot rows: each operator by itself may be as fast as possible; what
follows it in the step shows its purpose. Values are not recorded: a tensor is followed by its element count, and if anything else reads as many elements, nothing is reported.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from kinetoscope.ledger.avoidable_work.dataflow import of_flow
from kinetoscope.ledger.avoidable_work.distinct_calls import VIEWS, Calls, DistinctCall
from kinetoscope.ledger.avoidable_work.padding import on_padding
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import nearest_of, outermost_operators
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.nesting import depths_of, spread_down
from kinetoscope.model.rows import Mask, Rows, ShapesRow, mask_of
from kinetoscope.model.schema import Phase, SpanKind
from kinetoscope.model.time_spent import Cause
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.costs.call import Shape
from kinetoscope.tables.costs.evaluate import parsed_inputs
from kinetoscope.tables.costs.operator_names import names
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.stacks import stacks_with

LEAST_PART = 0.01
"""Calls that take a smaller fraction of the time of all operators are ignored."""
MOST_USED = 0.125
"""A result counts as discarded if at most this fraction of it is used."""
LEAST_ELEMENTS = 4_096
"""Smaller results are ignored."""
LEAST_EXPANDED = 65_536
"""Smaller intermediates stay in the CPU's caches."""
LEAST_GROWTH = 8
"""An intermediate counts as expanded if it has this many times the elements of each input, and of the reduced result."""
EXPANDED_PART = 0.85
"""The fraction that a matrix product or `torch.cdist` saves, measured with intermediates of 2 million elements: 0.8 to 0.9."""
ONE_HOT_PART = 0.95
SORTED_PART = 0.9
"""The fraction that `topk` saves over a sort of 1,000 to 100,000 elements: 0.85 to 0.98 was measured."""
MOST_OF_CHEAPER_ORDER = 0.6
"""Another order of products must need at most this fraction of the operations."""
INVERSE_PART, FACTORED_AGAIN_PART = 2 / 3, 0.9
"""An inverse takes 2 n^3 operations, a factorization for solving 2/3 n^3; a determinant then follows from the factors."""
_MOST_FOLLOWED = 400
_MOST_BETWEEN = 6
_MOST_EXAMPLES = 8

_SORTS = names("aten::sort aten::argsort aten::msort")
_SHUFFLES = names("aten::randperm")
_INVERSES = names("aten::linalg_inv aten::inverse aten::linalg_inv_ex")
_FACTORED = names(
    "aten::logdet aten::slogdet aten::linalg_slogdet aten::det aten::linalg_det aten::linalg_solve aten::linalg_cholesky"
)
_PARTS = names("aten::slice aten::select aten::narrow")
_LOOK_UPS = names("aten::index aten::index_select")
_SAME_ELEMENTS = VIEWS - _PARTS | names(
    "aten::contiguous aten::flatten aten::_unsafe_view aten::unflatten aten::movedim"
)
_CONVERSIONS = names("aten::to aten::_to_copy aten::type_as")
# An operator that changes a tensor in place updates a parameter or uses a gradient, except these.
_NOT_UPDATES = names("aten::zero_ aten::detach_ aten::requires_grad_ aten::resize_ aten::as_strided_")
_COMPARISONS = names(
    "aten::gt aten::greater aten::lt aten::less aten::ge aten::greater_equal aten::le aten::less_equal aten::eq"
)
# These compute all elements and then reduce them.
_DISTANCES = names("aten::cosine_similarity aten::pairwise_distance")
_JOINS = names("aten::cat aten::concat aten::concatenate aten::hstack aten::vstack")
LEAST_GROWN, LEAST_IN_FULL = 10, 4
"""Fewer concatenations are not a loop; if only some calls have recorded shapes, this many of them stand for all."""
_PARAMETRIZE = "torch/nn/utils/parametrize.py"
_ACCUMULATES = "torch::autograd::AccumulateGrad"

Found = tuple["Rows", "NDArray[np.float64]", Cause]
# A cheaper way: its cause, the fraction of time that it saves, and the positions of the operators in question.
Saving = tuple[Cause, float, list[int]]


def shortcuts(trace: TraceData, calls: Calls) -> list[Found]:
    """Find operators for which there is a cheaper way.

    Args:
        trace: The trace.
        calls: Its distinct calls with known shapes.

    Returns:
        For each finding the spans with their backward, the fraction of each that could be saved, and the cause.
    """
    forward = _Forward(trace, calls)
    marked: dict[tuple[Cause, float], list[int]] = defaultdict(list)
    for call in forward.heavy():
        for shortcut, part, positions in _of_call(forward, call):
            marked[shortcut, round(part, 3)] += positions
    for call, part in on_padding(trace, calls.all):
        marked[Cause.PADDING, round(part, 3)] += forward.positions(call.row)
    listed = [
        (*_with_backward(trace, forward.rows[np.unique(positions)], part), shortcut)
        for (shortcut, part), positions in marked.items()
    ]
    return [
        *listed,
        *_grown(trace, forward),
        *_parametrized(trace, forward),
        *_unused_gradients(trace, calls),
        *((*_with_backward(trace, rows, part), cause) for rows, part, cause in of_flow(trace, calls)),
    ]


class _Forward:
    """The outermost forward operators on the host, in the order in which each thread ran them in each step."""

    def __init__(self, trace: TraceData, calls: Calls) -> None:
        spans = trace.columns("spans")
        self.rows = outermost_operators(trace, spans["phase"] == Phase.FORWARD)
        self._known = {call.row: call for call in calls.all}
        self.call: Rows = calls.of_span[self.rows].astype(np.int64)
        self._group = Groups.runs(spans["thread"][self.rows], spans["step"][self.rows]).of_row
        self._has_shapes = spans["shapes"][self.rows] >= 0
        self._took_ns = spans["duration_ns"][self.rows]

    def heavy(self) -> list[DistinctCall]:
        """The distinct calls that take at least `LEAST_PART` of the forward time."""
        call_ns = Groups(self.call, int(self.call.max(initial=-1)) + 1).sums(self._took_ns)
        return [
            self._known[row]
            for row in np.flatnonzero((call_ns > 0) & (call_ns >= LEAST_PART * call_ns.sum())).tolist()
            if row in self._known
        ]

    def positions(self, row: int) -> list[int]:
        """The positions in `rows` at which the distinct call with this row ran."""
        positions: list[int] = np.flatnonzero(self.call == row).tolist()
        return positions

    def examples(self, positions: list[int]) -> list[int]:
        """A few positions of a call, all in one step near the middle; positions with recorded shapes take precedence."""
        positions = [position for position in positions if self._has_shapes[position]] or positions
        middle = self._group[positions[len(positions) // 2]]
        return [position for position in positions if self._group[position] == middle][:_MOST_EXAMPLES]

    def at(self, position: int) -> DistinctCall | None:
        """The call at a position; None if its inputs are unknown."""
        return self._known.get(int(self.call[position]))

    def after(self, position: int, elements: int, result: Shape = ()) -> Iterator[tuple[int, DistinctCall]]:
        """The later calls in the same step that read a tensor with this many elements, until the same call comes again.

        A call without recorded shapes borrows those of another call, which may differ from `result` in one dimension.
        """
        for later in range(position + 1, min(len(self.call), position + _MOST_FOLLOWED)):
            if self._group[later] != self._group[position] or self.call[later] == self.call[position]:
                return
            call = self._known.get(int(self.call[later]))
            if call is not None and any(
                prod(shape) == elements or (not self._has_shapes[later] and _is_alike(shape, result))
                for shape in call.operands
            ):
                yield later, call


def _of_call(forward: _Forward, call: DistinctCall) -> list[Saving]:
    """The cheaper ways for a call and its neighbors."""
    positions, tensors = forward.positions(call.row), call.operands
    examples = forward.examples(positions)
    result = call.result if call.family == "matmul" else ()
    if call.family == "pointwise":
        result = _broadcast([shape for shape in tensors if shape])
    if call.name in _SORTS or call.name in _SHUFFLES:
        used = _used(forward, examples, _elements_of_order(call))
        shortcut = Cause.SORTED if call.name in _SORTS else Cause.SHUFFLED
        return [(shortcut, SORTED_PART, positions)] if used is not None and used <= MOST_USED else []
    if result and prod(result) >= LEAST_ELEMENTS:
        used = _used(forward, examples, prod(result), result)
        if used is not None and used <= MOST_USED:
            return [(Cause.DISCARDED, 1.0 - used, positions)]
    if call.family == "matmul":
        return _one_hot(forward, call, positions, examples) or _order(forward, call, positions, examples)
    if call.name in _JOINS and (part := _shifted(forward, call, examples)) > 0:
        return [(Cause.SHIFTED, part, positions)]
    if call.name in _INVERSES and tensors and len(tensors[0]) > 1:
        return _inverse(forward, positions, examples, tensors[0])
    if (part := _full_factors(call)) > 0:
        return [(Cause.FULL_FACTORS, part, positions)]
    if (call.family == "pointwise" or call.name in _DISTANCES) and len(tensors) > 1:
        return _expanded(forward, call, positions, examples)
    return []


def _elements_of_order(call: DistinctCall) -> int:
    if call.name in _SHUFFLES:
        count = call.value(0)
        return count if type(count) is int else 0
    return prod(call.operands[0]) if call.operands else 0


def _is_alike(shape: Shape, result: Shape) -> bool:
    """Whether two shapes of three or more dimensions differ in exactly one, not the last: sequences of another length."""
    differ = sum(here != there for here, there in zip(shape, result, strict=False))
    return len(shape) == len(result) > 2 and differ == 1 and shape[-1] == result[-1]


def _used(forward: _Forward, examples: list[int], elements: int, result: Shape = ()) -> float | None:
    """The largest fraction of a result that is used at any example; None if all of it may be used, or it is unknown."""
    if elements < LEAST_ELEMENTS:
        return None
    parts = [_used_after(forward, example, elements, result) for example in examples]
    counts = [count for count in parts if count is not None]
    return max(counts) / elements if counts and len(counts) == len(parts) else None


def _used_after(forward: _Forward, position: int, elements: int, result: Shape) -> int | None:
    """How many elements of the result at a position its step reads; None if it may read all of them."""
    elements_read = 0
    for _, call in forward.after(position, elements, result):
        if call.name in _SAME_ELEMENTS:
            continue
        part = _part(call)
        if part is None:
            return None
        elements_read += part if part < elements else 0
    return elements_read or None


def _part(call: DistinctCall) -> int | None:
    """How many elements a slice or lookup takes from its first input; None for other calls."""
    if not call.has_tensor(0) or not call.shape(0):
        return None
    shape, dim = call.shape(0), call.value(1)
    if call.name in _LOOK_UPS:
        index = [other for other in call.operands[1:] if other]
        integers = all(dtype in (None, "float32", "int64", "int32") for dtype in call.dtypes[1:])
        fits = len(index) == 1 and integers
        return prod(index[0]) * prod(shape) // max(shape[0], 1) if fits else None
    if call.name not in _PARTS or type(dim) is not int or not -len(shape) <= dim < len(shape):
        return None
    size, rest = shape[dim], prod(shape) // max(shape[dim], 1)
    if call.name == "aten::select":
        return rest
    if call.name == "aten::narrow":
        return call.value(3) * rest if type(call.value(3)) is int else None
    begin, end, stride = (
        call.value(argument) if type(call.value(argument)) is int else default
        for argument, default in ((2, 0), (3, size), (4, 1))
    )
    return len(range(*slice(begin, end, stride).indices(size))) * rest


def _one_hot(
    forward: _Forward, call: DistinctCall, positions: list[int], examples: list[int]
) -> list[Saving]:
    """A matrix product with rows that `one_hot` made just before, possibly converted since."""
    rows = call.operands[0] if call.operands else ()
    if not rows or not all(_one_hot_before(forward, example, rows) for example in examples):
        return []
    makers = (_one_hot_before(forward, position, rows) for position in positions)
    return [(Cause.ONE_HOT, ONE_HOT_PART, sorted({*positions, *itertools.chain.from_iterable(makers)}))]


def _one_hot_before(forward: _Forward, position: int, rows: Shape) -> list[int]:
    """The positions of the `one_hot` and the conversions that made the rows of a product; empty if they were made another way."""
    makers: list[int] = []
    for before in range(position - 1, max(position - _MOST_BETWEEN, -1), -1):
        maker = forward.at(before)
        if maker is None or not maker.operands:
            return []
        elements = prod(maker.operands[0])
        if maker.name == "aten::one_hot":
            classes = maker.value(1)
            fits = type(classes) is int and classes in (rows[-1], -1) and elements * rows[-1] == prod(rows)
            return [*makers, before] if fits else []
        if elements == prod(rows) and maker.name in _CONVERSIONS:
            makers.append(before)
        elif elements == prod(rows) and maker.name not in _SAME_ELEMENTS:
            return []
    return []


def _order(forward: _Forward, call: DistinctCall, positions: list[int], examples: list[int]) -> list[Saving]:
    """A product that goes straight into another product, where the other order needs far fewer operations."""
    factors, result = _factors(call), call.result
    if factors is None:
        return []
    parts: list[tuple[float, int]] = []
    for example in examples:
        uses = [
            (use_at, use)
            for use_at, use in forward.after(example, prod(result))
            if use.name not in _SAME_ELEMENTS
        ]
        other = _factors(uses[0][1]) if len(uses) == 1 else None
        if other is None:
            return []
        (rows, inner, columns), (left, middle, right) = factors, other
        if (left, middle) == (rows, columns):  # (A B) C
            now, then = rows * columns * (inner + right), inner * columns * right + rows * inner * right
        elif (middle, right) == (rows, columns):  # C (A B)
            now, then = rows * columns * (inner + left), left * rows * inner + left * inner * columns
        else:
            return []
        if then > MOST_OF_CHEAPER_ORDER * now:
            return []
        parts.append((1.0 - then / now, uses[0][0] - example))
    part, distance = parts[0]
    second = [position + distance for position in positions if position + distance < len(forward.rows)]
    return [(Cause.ORDER, part, [*positions, *second])]


def _factors(call: DistinctCall) -> tuple[int, int, int] | None:
    """The rows, inner size and columns of a product of two matrices or of each pair in a batch; None for other calls."""
    if call.name not in ("aten::mm", "aten::bmm", "aten::matmul", "aten::linalg_matmul"):
        return None
    shapes = call.operands
    if len(shapes) != 2 or min(map(len, shapes)) < 2 or shapes[0][:-2] != shapes[1][:-2]:
        return None
    return shapes[0][-2], shapes[0][-1], shapes[1][-1]


def _inverse(forward: _Forward, positions: list[int], examples: list[int], matrix: Shape) -> list[Saving]:
    """An inverse that is only needed for a product."""
    if matrix[-1] < 8:
        return []
    again: set[int] = set()
    for example in examples:
        uses = list(forward.after(example, prod(matrix)))
        if not any(use.family == "matmul" for _, use in uses):
            return []
        again |= {use.row for _, use in uses if use.name in _FACTORED and use.operands[0] == matrix}
    savings = [(Cause.INVERSE, INVERSE_PART, positions)]
    if again:
        rows = sorted(index for call in again for index in forward.positions(call))
        savings.append((Cause.INVERSE, FACTORED_AGAIN_PART, rows))
    return savings


def _shifted(forward: _Forward, call: DistinctCall, examples: list[int]) -> float:
    """The copied fraction of a sliding window: the first part was cut off and a new one appended to a tensor of constant size."""
    sizes = [prod(shape) for shape in call.operands]
    if len(sizes) != 2 or sum(sizes) < LEAST_ELEMENTS or sizes[0] < LEAST_GROWTH * sizes[1]:
        return 0.0
    for example in examples:
        before = [forward.at(position) for position in range(max(example - _MOST_BETWEEN, 0), example)]
        cuts = [part for part in before if part is not None and part.name in _PARTS and part.operands]
        if not any(
            prod(part.operands[0]) == sum(sizes) and len(part.operands[0]) == len(call.operands[0])
            for part in cuts
        ):
            return 0.0
    return sizes[0] / sum(sizes)


def _full_factors(call: DistinctCall) -> float:
    """The fraction of a decomposition that computes full square factors of a non-square matrix, where the reduced form would do.

    Counts the operations of LAPACK's usual algorithms: 4 m^2 n + 22 n^3 for all of U, 6 m n^2 + 20 n^3 for its first n columns (Golub and Van Loan, Matrix
    Computations, 4th edition, section 8.6); QR takes 2 (m n^2 - n^3 / 3), and 4 (m^2 n - m n^2 + n^3 / 3) more for the full Q.
    """
    shape = call.operands[0] if call.operands else ()
    if len(shape) < 2 or prod(shape) < LEAST_ELEMENTS:
        return 0.0
    rows, columns = sorted(shape[-2:], reverse=True)
    if rows < 2 * columns:
        return 0.0
    if call.name in ("aten::linalg_svd", "aten::_linalg_svd", "aten::svd"):
        # The flag of `svd` means the opposite: some=True.
        is_full = call.value(1) is (call.name != "aten::svd")
        full, thin = 4 * rows**2 * columns + 22 * columns**3, 6 * rows * columns**2 + 20 * columns**3
    elif call.name == "aten::linalg_qr":
        is_full = call.value(1) == "complete"
        thin = 4 * (rows * columns**2 - columns**3 // 3)
        full = thin // 2 + 4 * (rows**2 * columns - rows * columns**2 + columns**3 // 3)
    else:
        return 0.0
    return max(0.0, 1.0 - thin / full) if is_full else 0.0


def _expanded(
    forward: _Forward, call: DistinctCall, positions: list[int], examples: list[int]
) -> list[Saving]:
    """An intermediate far larger than its inputs that is soon reduced to something small, and the operators on it."""
    shapes = [shape for shape in call.operands if shape]
    result = _broadcast(shapes)
    elements = prod(result)
    largest = max(map(prod, shapes), default=1)
    if elements < LEAST_EXPANDED or elements < LEAST_GROWTH * largest:
        return []
    if call.name in _DISTANCES:
        dim = call.value(2) if call.name == "aten::cosine_similarity" else -1
        dim = dim if type(dim) is int else 1
        is_contraction = all(_sizes(shape, len(result))[dim] == result[dim] for shape in shapes)
        return [(Cause.EXPANDED, EXPANDED_PART, positions)] if is_contraction else []
    # Sorting both inputs also counts the pairs for which a comparison holds.
    compares = call.name in _COMPARISONS
    distances: set[int] = set()
    for example in examples:
        chain, is_reduced = {0}, False
        for use_at, use in forward.after(example, elements):
            if use.family == "pointwise":
                if elements != prod(_broadcast(use.operands)):
                    return []
            elif use.family == "reduction" and len(use.operands[0]) == len(result):
                dims = _reduced(use)
                is_contraction = all(
                    _sizes(shape, len(result))[dim] == result[dim] for shape in shapes for dim in dims
                )
                if not (is_contraction or compares) or prod(result[dim] for dim in dims) < LEAST_GROWTH:
                    return []
                is_reduced = True
            elif use.name not in _SAME_ELEMENTS | _CONVERSIONS:
                return []
            chain.add(use_at - example)
        if not is_reduced or (distances and chain != distances):
            return []
        distances = chain
    concerned = sorted(
        {row + distance for row in positions for distance in distances if row + distance < len(forward.rows)}
    )
    return [(Cause.EXPANDED, EXPANDED_PART, concerned)]


def _broadcast(shapes: list[Shape]) -> Shape:
    """The broadcast shape; empty if the shapes do not fit."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return ()


def _sizes(shape: Shape, dims: int) -> Shape:
    """A shape padded with leading ones to `dims` dimensions, as broadcasting does."""
    return (*[1] * (dims - len(shape)), *shape)


def _reduced(call: DistinctCall) -> set[int]:
    """The dimensions that a reduction reduces, as non-negative numbers; all of them if it has no such argument."""
    shape, values = call.operands[0], call.values
    dim_values = next((value for value in values[1:] if isinstance(value, list) or type(value) is int), None)
    dims = dim_values if isinstance(dim_values, list) else [dim_values]
    chosen = {dim % len(shape) for dim in dims if type(dim) is int and shape}
    return chosen or set(range(len(shape)))


def _grown(trace: TraceData, forward: _Forward) -> list[Found]:
    """Tensors that grow by concatenation in a loop: each iteration copies all earlier parts."""
    spans = trace.columns("spans")
    joins = np.array([text in _JOINS for text in trace.strings], dtype=bool)[spans["name"][forward.rows]]
    joined_at = np.flatnonzero(joins & (spans["stack"][forward.rows] >= 0))
    groups = Groups.by([spans[name][forward.rows[joined_at]] for name in ("stack", "step", "thread")])
    rows: list[int] = []
    times: list[int] = []
    for group in np.flatnonzero(groups.sizes() >= LEAST_GROWN).tolist():
        of_group = joined_at[groups.of_row == group]
        # For a loop outside of steps, only slices of time were recorded in full.
        in_full = of_group[spans["shapes"][forward.rows[of_group]] >= 0]
        looked_at = in_full if len(in_full) >= LEAST_IN_FULL else of_group
        inputs = [
            call.operands if (call := forward.at(row)) is not None else [] for row in looked_at.tolist()
        ]
        sizes = [(prod(shapes[0]), sum(map(prod, shapes[1:]))) for shapes in inputs if len(shapes) > 1]
        grows = sum(now == before + new for (before, new), (now, _) in itertools.pairwise(sizes))
        least = (LEAST_GROWN if len(looked_at) == len(of_group) else LEAST_IN_FULL) - 1
        if len(sizes) == len(looked_at) and grows >= least and 2 * grows >= len(sizes):
            rows += of_group.tolist()
            times.append(len(of_group))
    if not rows:
        return []
    # One concatenation at the end writes all parts once, like the last and longest of these calls.
    part = 1.0 - 2.0 / float(np.median(times))
    return [(*_with_backward(trace, forward.rows[rows], part), Cause.GROWN)]


def _parametrized(trace: TraceData, forward: _Forward) -> list[Found]:
    """Weights that `torch.nn.utils.parametrize` recomputes at each access, more than once per step."""
    spans = trace.columns("spans")
    inside = np.append(stacks_with(trace, _PARAMETRIZE), False)[spans["own_stack"][forward.rows]]
    # Without steps, "once per step" means nothing.
    rows = np.flatnonzero(inside & (spans["step"][forward.rows] >= 0))
    call = forward.call[rows]
    calls = Groups.by([*(spans[name][forward.rows[rows]] for name in ("step", "module", "stack")), call])
    often = calls.sizes()[calls.of_row]
    # A weight is computed as often as its least frequent operator runs.
    weights = Groups.by([spans[name][forward.rows[rows]] for name in ("step", "module")])
    times = weights.minima(often)[weights.of_row]
    listed = []
    for count in np.unique(times[times >= 2]).tolist():
        part = 1.0 - 1.0 / count
        listed.append((*_with_backward(trace, forward.rows[rows[times == count]], part), Cause.PARAMETRIZED))
    return listed


def _with_backward(trace: TraceData, rows: Rows, part: float) -> tuple[Rows, NDArray[np.float64]]:
    """Some operators with those inside and their backward."""
    spans = trace.columns("spans")
    inside = nearest_of(trace, rows) >= 0
    backward = nearest_of(trace, inside.take(spans["forward"]))[:-1] >= 0
    saved = np.flatnonzero((inside[:-1] | backward) & is_operator(spans["kind"]))
    return saved, np.full(len(saved), part)


def _unused_gradients(trace: TraceData, calls: Calls) -> list[Found]:
    """The backward work after the last gradient that anything uses: nothing updates the parameters that follow.

    A gradient counts as used if tensors of its shape appear in the optimizer, or in in-place, pointwise or reduction operators outside of modules.
    """
    spans, strings = trace.columns("spans"), trace.strings
    if _ACCUMULATES not in strings:
        return []
    phase = spans["phase"]
    in_optimizer = calls.times(phase == Phase.OPTIMIZER) > 0
    if not in_optimizer.any():
        return []
    rows = outermost_operators(trace)
    # Before the first backward, for example during initialization, there are no gradients.
    is_backward = phase[rows] == Phase.BACKWARD
    first_ns = spans["start_ns"][rows[is_backward]].min(initial=np.iinfo(np.int64).max)
    # Operators in modules or with a backward do not work on gradients either.
    has_backward = mask_of(nearest_of(trace, rows)[spans["forward"]], len(spans) + 1)
    outside = rows[(phase[rows] == Phase.FORWARD) & (spans["module"][rows] < 0) & ~has_backward[rows]]
    outside = outside[spans["start_ns"][outside] > first_ns]
    in_forward = calls.times(outside) > 0
    used: set[Shape] = set()
    for call in calls.all:
        in_place = call.name.endswith("_") or call.name.startswith("aten::_foreach")
        looks = in_place or call.family in ("pointwise", "reduction")
        if in_optimizer[call.row] or (in_forward[call.row] and looks and call.name not in _NOT_UPDATES):
            used.update(call.operands)
    shapes = shapes_of(trace)
    sums = np.flatnonzero(
        (spans["name"] == strings.index(_ACCUMULATES)) & (spans["kind"] == SpanKind.BACKWARD) & (shapes >= 0)
    )
    of_shapes = {row: _is_used(trace, row, used) for row in np.unique(shapes[sums]).tolist()}
    is_used = np.zeros(len(spans), bool)
    is_used[sums] = [of_shapes[row] for row in shapes[sums].tolist()]
    is_used[sums] &= _is_of_updated_module(trace, spans["parameter"][sums], has_backward)
    if is_used[sums].all() or not is_used.any():
        return []
    # Number the backward passes: consecutive backward operators on a thread.
    number = Groups.runs(spans["thread"][rows], spans["step"][rows], is_backward).of_row
    needs = mask_of(nearest_of(trace, rows)[:-1][is_used], len(spans) + 1)
    # The last use counts; a pass without any use wastes nothing.
    last, uses = np.full(int(number.max(initial=0)) + 1, len(rows)), np.flatnonzero(needs[rows])
    last[number[uses]] = uses
    wasted = rows[is_backward & (np.arange(len(rows)) > last[number])]
    inside = np.flatnonzero(nearest_of(trace, wasted) >= 0)
    return [(inside.astype(np.int64), np.ones(len(inside)), Cause.UNUSED_GRADIENT)] if len(inside) else []


def _is_of_updated_module(trace: TraceData, parameter: Rows, has_backward: Mask) -> Mask:
    """Whether parameters, rows of `parameters`, may belong to modules that read what the optimizer updates; True if unknown.

    A module may read the parameters of a submodule, as attention does.
    """
    spans, versions, modules = (trace.columns(name) for name in ("spans", "tensor_versions", "modules"))
    phase, module = (spans[name][versions["span"]] for name in ("phase", "module"))
    updated = np.unique(versions["storage"][(phase == Phase.OPTIMIZER) & (versions["result"] == 0)])
    reads = has_backward[versions["span"]] & (versions["result"] == 0)
    reads &= (phase == Phase.FORWARD) & np.isin(versions["storage"], updated)
    is_read = np.zeros(len(modules) + 1, np.int8)
    is_read[module[reads]] = 1
    if not is_read[:-1].any() or is_read[-1]:
        return np.ones(len(parameter), bool)
    inside = spread_down(modules["parent"], depths_of(modules["parent"]), is_read[:-1], 0)
    of_module = np.append(trace.column("parameters", "module"), -1)[parameter]
    return np.asarray((of_module < 0) | (np.append(inside, 1)[of_module] > 0))


def _is_used(trace: TraceData, shapes: int, used: set[Shape]) -> bool:
    """Whether anything uses gradients of a shape; True if the shape is unknown."""
    inputs = parsed_inputs(trace, ShapesRow(shapes))
    shape = inputs.shapes[0] if inputs is not None and inputs.shapes else None
    return not isinstance(shape, tuple) or shape in used
