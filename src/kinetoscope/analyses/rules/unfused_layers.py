"""Attention and normalization are computed from several operators, where one fused operator could.

Source: TraceLens (impact of at least 2 % of the time), and torch's documentation of `scaled_dot_product_attention`, `layer_norm` and
`rms_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.schema import Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_PERCENT = 2.0
_PRODUCTS = frozenset({"aten::bmm", "aten::baddbmm", "aten::matmul", "aten::einsum"})
_SOFTMAX = ("aten::softmax", "aten::_softmax", "aten::_safe_softmax")
# Between the products stand a scale, a mask, a softmax and a dropout, and little else.
_NEAR_SOFTMAX = 12
_ROOTS = ("aten::rsqrt", "aten::sqrt", "aten::std")
_MEANS = frozenset({"aten::mean", "aten::var", "aten::std", "aten::sum"})
_SCALES = frozenset({"aten::mul", "aten::div", "aten::mul_", "aten::div_"})
# A mean, a difference, a square, a mean and an epsilon come before the root, a product and perhaps a weight and a bias after it.
_NEAR_ROOT = 7


def unfused_attention(loop: Loop) -> Finding | None:
    """Find a softmax with a matrix product before and after it, in one module."""
    found = [_nearest(one, _PRODUCTS, _PRODUCTS) for one in _around(loop, _SOFTMAX, _NEAR_SOFTMAX)]
    advice = "Use torch.nn.functional.scaled_dot_product_attention: it does not store the attention matrix."
    return _by_hand(loop, "unfused-attention", "Attention", found, advice)


def unfused_normalization(loop: Loop) -> Finding | None:
    """Find a square root with a mean before it and a product after it, in one module."""
    module = loop.trace.column("spans", "module")
    # Outside modules, norms of gradients and statistics look the same.
    has_modules = bool((module[loop.inside] >= 0).any())
    found = [
        _widest(one, _MEANS, _SCALES)
        for one in _around(loop, _ROOTS, _NEAR_ROOT)
        if module[one.row] >= 0 or not has_modules
    ]
    advice = "Use torch.nn.functional.layer_norm, rms_norm or batch_norm, or compile the module with torch.compile."
    return _by_hand(loop, "unfused-normalization", "Normalization", found, advice)


@dataclass(frozen=True)
class _Around:
    """An operator with those around it that the program called in the same module, each as its row and its name in order of time."""

    row: int
    before: list[tuple[int, str]]
    after: list[tuple[int, str]]


def _around(loop: Loop, names: tuple[str, ...], near: int) -> list[_Around]:
    """The operators of some names, with up to `near` operators before and after each."""
    spans, texts = loop.trace.columns("spans"), loop.trace.strings
    chosen, outer = loop.rows_named(*names), loop.outermost_rows
    chosen = chosen[loop.outermost[chosen]]
    chosen, outer = (
        rows[
            (spans["phase"][rows] == Phase.FORWARD)
            & loop.threads[spans["thread"][rows]]
            & ~loop.in_optimizer[rows]
        ]
        for rows in (chosen, outer)
    )
    middle = np.searchsorted(outer, chosen)
    module, name = (np.append(spans[column][outer], -2) for column in ("module", "name"))

    def same_module(offsets: NDArray[np.int64]) -> list[list[tuple[int, str]]]:
        """The operators at some distances from each that are of its module."""
        at = middle[:, None] + offsets
        at = np.where((at >= 0) & (at < len(outer)), at, len(outer))
        which, place = np.nonzero(module[at] == module[middle][:, None])
        rows = at[which, place]
        found: list[list[tuple[int, str]]] = [[] for _ in middle]
        for one, row, text in zip(which.tolist(), outer[rows].tolist(), name[rows].tolist(), strict=True):
            found[one].append((row, texts[text]))
        return found

    sides = same_module(np.arange(-near, 0)), same_module(np.arange(1, near + 1))
    return [_Around(row, *both) for row, *both in zip(chosen.tolist(), *sides, strict=True)]


def _nearest(one: _Around, before: frozenset[str], after: frozenset[str]) -> tuple[int, int, int] | None:
    """The last operator of some names before one, that itself, and the first of others after it; None where one is missing."""
    first = next((row for row, name in reversed(one.before) if name in before), None)
    last = next((row for row, name in one.after if name in after), None)
    return None if first is None or last is None else (first, one.row, last)


def _widest(one: _Around, before: frozenset[str], after: frozenset[str]) -> tuple[int, int, int] | None:
    """The same with the first operator before, and the last after it."""
    first = next((row for row, name in one.before if name in before), None)
    last = next((row for row, name in reversed(one.after) if name in after), None)
    return None if first is None or last is None else (first, one.row, last)


def _by_hand(
    loop: Loop, code: str, what: str, layers: list[tuple[int, int, int] | None], advice: str
) -> Finding | None:
    """A finding about layers, each the rows of its first operator, of the one in its middle, and of its last."""
    found = [one for one in layers if one is not None]
    if not found:
        return None
    spans = loop.trace.columns("spans")
    outer = np.flatnonzero(loop.outermost & loop.threads[spans["thread"]])
    within = np.zeros(len(outer) + 1, dtype=np.int64)
    np.add.at(within, np.searchsorted(outer, [first for first, _, _ in found]), 1)
    np.add.at(within, np.searchsorted(outer, [last for _, _, last in found]) + 1, -1)
    forward = outer[np.cumsum(within)[:-1] > 0]
    backward = loop.backward_of(forward)
    time_ns = loop.cost_ns(forward) + loop.cost_ns(backward)
    share = loop.share(time_ns)
    if share < LEAST_PERCENT:
        return None
    row = found[0][1]
    place, module = loop.place_of(row), loop.module_of(row)
    where = f" in {module}" if module else f" at {place}" if place else ""
    return Finding(
        code,
        sentence(
            f"{what} by hand{where} ({{}}{loop.unit.each}) takes {{}} of {loop.unit.time}",
            max(1, round(loop.per_step(len(found)))),
            (share, "%"),
        ),
        advice,
        share,
        time_ns,
        place,
        module,
        tuple(middle for _, middle, _ in found[:MOST_ROWS]),
        time=loop.when(np.concatenate((forward, backward))),
    )
