"""Attention is computed by two matrix products and a softmax, where one fused operator could.

Source: TraceLens (impact of at least 2 % of the time) and torch's documentation of `scaled_dot_product_attention`.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.hierarchy import lies_in
from kinetoscope.model.schema import Phase

LEAST_PERCENT = 2.0
_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::matmul", "aten::einsum")
# Between the products stand a scale, a mask, a softmax and a dropout, and little else.
_NEAR = 12


def unfused_attention(loop: Loop) -> Finding | None:
    """Find a softmax with a matrix product before and after it, in one module."""
    spans = loop.trace.columns("spans")
    names = loop.trace.strings
    softmax = loop.rows_named("aten::softmax", "aten::_softmax", "aten::_safe_softmax")
    softmax = softmax[loop.outermost[softmax] & (spans["phase"][softmax] == Phase.FORWARD)]
    rows = np.flatnonzero(loop.inside & (spans["phase"] == Phase.FORWARD) & (spans["thread"] == loop.thread))
    outer = rows[loop.outermost[rows]]
    place_in = {row: at for at, row in enumerate(outer.tolist())}
    found, parts = [], []
    for row in softmax.tolist():
        at = place_in.get(row)
        if at is None:
            continue
        module = spans["module"][row]
        before = [one for one in outer[max(0, at - _NEAR) : at].tolist() if spans["module"][one] == module]
        after = [one for one in outer[at + 1 : at + 1 + _NEAR].tolist() if spans["module"][one] == module]
        first = next((one for one in reversed(before) if names[int(spans["name"][one])] in _PRODUCTS), None)
        last = next((one for one in after if names[int(spans["name"][one])] in _PRODUCTS), None)
        if first is None or last is None:
            continue
        found.append(row)
        parts += outer[place_in[first] : place_in[last] + 1].tolist()
    if not found:
        return None
    forward = np.array(sorted(set(parts)), dtype=np.int64)
    # Backward computes each product twice, and the softmax once: as much again, at least.
    back = np.flatnonzero(
        np.isin(spans["forward"], np.flatnonzero(lies_in(loop.trace, forward))) & loop.inside
    )
    time_ns = loop.cost_ns(forward) + loop.cost_ns(back[loop.is_outermost(back)])
    share = loop.share(time_ns)
    if share < LEAST_PERCENT:
        return None
    place, module_path = loop.place_of(found[0]), loop.module_of(found[0])
    return Finding(
        "unfused-attention",
        sentence(
            f"Attention by hand{f' in {module_path}' if module_path else ''} ({{}} a step) takes {{}} of step time",
            round(loop.per_step(len(found))),
            (share, "%"),
        ),
        "Use torch.nn.functional.scaled_dot_product_attention: it does not store the attention matrix.",
        share,
        time_ns,
        place,
        module_path,
        tuple(found[:MOST_ROWS]),
    )
