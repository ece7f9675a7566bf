"""Layers by hand: several operators compute attention or normalization, where one fused operator could."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import Phase

_PRODUCTS = frozenset({"aten::bmm", "aten::baddbmm", "aten::matmul", "aten::einsum"})
_SOFTMAX = ("aten::softmax", "aten::_softmax", "aten::_safe_softmax")
# Between the products stand a scale, a mask, a softmax and a dropout, and little else.
_NEAR_SOFTMAX = 12
_ROOTS = ("aten::rsqrt", "aten::sqrt", "aten::std")
_MEANS = frozenset({"aten::mean", "aten::var", "aten::std", "aten::sum"})
_SCALES = frozenset({"aten::mul", "aten::div", "aten::mul_", "aten::div_"})
# A mean, a difference, a square, a mean and an epsilon come before the root, a product and perhaps a weight and a bias after it.
_NEAR_ROOT = 7


@Rule(
    "unfused-attention",
    "Attention by hand{where} ({layers:each}{a_step}) takes {share} of {time}",
    "Use torch.nn.functional.scaled_dot_product_attention: it does not store the attention matrix.",
    finds="attention runs as two matrix products and a softmax",
    source="TraceLens (impact of at least 2 %), and torch's documentation of `scaled_dot_product_attention`",
    least=2.0,
    explains=("below-roofline", "dominant-kernel", "memory-bound-elementwise"),
).selects
def unfused_attention(loop: Loop) -> Answer:
    """A softmax with a matrix product before and after it, in one module."""
    return _by_hand(
        loop, [_nearest(layer, _PRODUCTS, _PRODUCTS) for layer in _around(loop, _SOFTMAX, _NEAR_SOFTMAX)]
    )


@Rule(
    "unfused-normalization",
    "Normalization by hand{where} ({layers:each}{a_step}) takes {share} of {time}",
    "Use torch.nn.functional.layer_norm, rms_norm or batch_norm, or compile the module with torch.compile.",
    finds="normalization runs as a mean, a square root and a product",
    source="TraceLens (impact of at least 2 %), and torch's documentation of `layer_norm` and `rms_norm`",
    least=2.0,
    explains=("dominant-kernel", "memory-bound-elementwise"),
).selects
def unfused_normalization(loop: Loop) -> Answer:
    """A square root with a mean before it and a product after it, in one module."""
    module = loop.trace.column("spans", "module")
    # Outside modules, norms of gradients and statistics look the same.
    has_modules = bool((module[loop.inside] >= 0).any())
    around = [root for root in _around(loop, _ROOTS, _NEAR_ROOT) if module[root.row] >= 0 or not has_modules]
    return _by_hand(loop, [_widest(root, _MEANS, _SCALES) for root in around])


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

    def same_module(offsets: Rows) -> list[list[tuple[int, str]]]:
        """The operators at some distances from each that are of its module."""
        near_rows = middle[:, None] + offsets
        near_rows = np.where((near_rows >= 0) & (near_rows < len(outer)), near_rows, len(outer))
        root, offset = np.nonzero(module[near_rows] == module[middle][:, None])
        rows = near_rows[root, offset]
        near_roots: list[list[tuple[int, str]]] = [[] for _ in middle]
        for index, row, text in zip(root.tolist(), outer[rows].tolist(), name[rows].tolist(), strict=True):
            near_roots[index].append((row, texts[text]))
        return near_roots

    sides = same_module(np.arange(-near, 0)), same_module(np.arange(1, near + 1))
    return [_Around(row, *both) for row, *both in zip(chosen.tolist(), *sides, strict=True)]


def _nearest(layer: _Around, before: frozenset[str], after: frozenset[str]) -> tuple[int, int, int] | None:
    """The last operator named in `before` ahead of the middle one, the middle one, and the first named in `after` behind it; None where one is missing."""
    first = next((row for row, name in reversed(layer.before) if name in before), None)
    last = next((row for row, name in layer.after if name in after), None)
    return None if first is None or last is None else (first, layer.row, last)


def _widest(layer: _Around, before: frozenset[str], after: frozenset[str]) -> tuple[int, int, int] | None:
    """Like `_nearest`, but the first operator ahead of the middle one and the last behind it."""
    first = next((row for row, name in layer.before if name in before), None)
    last = next((row for row, name in reversed(layer.after) if name in after), None)
    return None if first is None or last is None else (first, layer.row, last)


def _by_hand(loop: Loop, layers: list[tuple[int, int, int] | None]) -> Answer:
    """A layer is its first, middle and last operator, by their rows; the match covers all operators between first and last."""
    of_layers = [rows for rows in layers if rows is not None]
    if not of_layers:
        return None
    outer = np.flatnonzero(loop.outermost & loop.on_threads)
    first, _, last = np.array(of_layers, np.int64).T
    begins = Groups(np.searchsorted(outer, first), len(outer) + 1)
    ends = Groups(np.searchsorted(outer, last) + 1, len(outer) + 1)
    within = begins.sizes() - ends.sizes()
    forward = outer[np.cumsum(within)[:-1] > 0]
    rows = np.concatenate((forward, loop.backward_of(forward)))
    time_ns = loop.cost_ns(forward) + loop.cost_ns(rows[len(forward) :])
    middle = np.array([row for _, row, _ in of_layers], np.int64)
    line, module = loop.place_of(int(middle[0])), loop.module_of(int(middle[0]))
    where = f" in {module}" if module else f" at {line}" if line else ""
    words = {"where": where, "layers": len(middle)}
    return Match(rows, time_ns, words, place=line, module=module, spans=middle, time=loop.when(rows))
