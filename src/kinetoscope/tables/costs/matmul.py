"""Matrix products: 2 operations for each multiply-add, the addition of a bias or of another matrix left out.

This is the convention of LAPACK Working Note 41 (appendix C: 2 m n k) without its lower-order terms, and that of
`torch.profiler`, so the numbers of `mm`, `addmm` and `bmm` are the same as there.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs._call import Cost
from kinetoscope.tables.costs._rule import rules
from kinetoscope.tables.costs._sizes import moved, multiply_add

if TYPE_CHECKING:
    from kinetoscope.tables.costs._call import OperatorCall, Shape


def product(call: OperatorCall, left: int, right: int, *also: int) -> Cost:
    """The cost of `left @ right` in any number of dimensions; `also` are further inputs that are read."""
    out, inner = matmul_sizes(call.shape(left), call.shape(right))
    flops = multiply_add(call, left) * prod(out) * inner
    return Cost(flops, moved(call, (left, right, *also), prod(out), left))


def matmul_sizes(left: Shape, right: Shape) -> tuple[Shape, int]:
    """The sizes of `left @ right` as `torch.matmul` defines them, and the length of the sums.

    Raises:
        ValueError: They cannot be multiplied.
    """
    if not left or not right or left[-1] != (right[-2] if len(right) > 1 else right[0]):
        raise ValueError(f"{left} and {right} cannot be multiplied")
    rows = left[-2:-1]
    columns = right[-1:] if len(right) > 1 else ()
    return (*broadcast(left[:-2], right[:-2]), *rows, *columns), left[-1]


def broadcast(*shapes: Shape) -> Shape:
    """The sizes that tensors of these sizes have together.

    Raises:
        ValueError: They do not fit each other.
    """
    length = max(map(len, shapes), default=0)
    out = [1] * length
    for shape in shapes:
        for place, size in enumerate(shape, length - len(shape)):
            if size != 1 and out[place] not in (1, size):
                raise ValueError(f"{shapes} do not fit each other")
            if size != 1:
                out[place] = size
    return tuple(out)


def two(call: OperatorCall) -> Cost:
    """`mm(self, other)` and its like."""
    return product(call, 0, 1)


def three(call: OperatorCall) -> Cost:
    """`addmm(self, first, second)` and its like, whose first argument is added."""
    return product(call, 1, 2, 0)


RULES = rules(
    "matmul", {two: "mm bmm mv dot vdot _int_mm", three: "addmm addmm_ baddbmm baddbmm_ addmv addmv_"}
)
