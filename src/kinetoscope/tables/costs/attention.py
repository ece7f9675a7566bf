"""Scaled-dot-product attention: 2 operations for each multiply-add of its matrix products; the softmax between is left out.

Forward: queries with keys and weights with values, 2 L S (E + Ev) for each head. Backward: the weights again, and the gradients
of weights, values, queries and keys, 2 L S (3 E + 2 Ev). That is how the authors of FlashAttention count (4 L S E forward, 2.5
times that backward, https://arxiv.org/abs/2307.08691, section 4.1), and `torch.utils.flop_counter`. Where attention is causal,
L S becomes the number of pairs that are not masked, which is about half; `flop_counter` counts all pairs there.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kinetoscope.tables.costs.call import UNKNOWN, Cost, Rule, rules
from kinetoscope.tables.costs.sizes import moved

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall


class Layout(NamedTuple):
    """At which argument an operator takes what.

    Attributes:
        query: The queries; keys and values follow.
        causal: Whether it is causal; a truth value, or the number of a kind of mask, 0 for none.
        backward: Whether it is a backward function.
        heads_last: Whether heads come after the sequence.
        lengths: Where the ends of packed sequences are given, -1 where they cannot be.
    """

    query: int
    causal: int
    backward: bool = False
    heads_last: bool = False
    lengths: int = -1


_LAYOUTS: dict[Layout, str] = {
    Layout(0, 4): "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu",
    Layout(0, 6): "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    Layout(0, 5): "_scaled_dot_product_fused_attention_overrideable",
    Layout(1, 11, True, False, 6): "_scaled_dot_product_flash_attention_backward",
    Layout(1, 7, True): "_scaled_dot_product_flash_attention_for_cpu_backward",
    Layout(1, 11, True): "_scaled_dot_product_efficient_attention_backward",
    Layout(0, 10, False, False, 4): "_cudnn_attention_forward",
    Layout(1, 14, True, False, 9): "_scaled_dot_product_cudnn_attention_backward _cudnn_attention_backward",
    Layout(1, 13, True, False, 8): "_scaled_dot_product_fused_attention_overrideable_backward",
    Layout(0, 8, False, True, 3): "_flash_attention_forward",
    Layout(0, 9, False, True, 4): "_efficient_attention_forward",
    Layout(1, 11, True, True, 6): "_flash_attention_backward",
    Layout(1, 14, True, True, 6): "_efficient_attention_backward",
}


def pairs(queries: int, keys: int, causal: bool) -> int:
    """How many pairs of a query and a key meet: all, or those of a key no later than its query (the upper left aligned)."""
    if not causal:
        return queries * keys
    full = max(queries - keys, 0)
    rising = queries - full
    return rising * (rising + 1) // 2 + full * keys


def attention(call: OperatorCall, layout: Layout) -> Cost:
    """The cost of one call."""
    query, key, value = (call.shape(layout.query + place) for place in range(3))
    if layout.lengths >= 0 and call.has_tensor(layout.lengths) and call.numel(layout.lengths) > 0:
        # Sequences of different lengths lie one after the other; a trace does not say where they end.
        return UNKNOWN
    at = -3 if layout.heads_last else -2
    width, value_width = query[-1], value[-1]
    # With fewer heads for keys than for queries (grouped queries) each query still meets the keys of one head.
    heads = prod(query) // max(query[at] * width, 1)
    met = heads * pairs(query[at], key[at], bool(call.value(layout.causal, False)))
    per_pair = 3 * width + 2 * value_width if layout.backward else width + value_width
    if layout.backward:
        written = prod(query) + prod(key) + prod(value)
    else:
        written = prod(query) // max(width, 1) * value_width
    read = range(layout.query + 3)
    return Cost(2 * met * per_pair, moved(call, read, written, layout.query))


def multi_head(call: OperatorCall) -> Cost:
    """`_native_multi_head_attention(query, key, value, width, heads, qkv weight, its bias, out weight, ...)`."""
    batch, length, width = call.shape(0)
    weights = call.numel(5) + call.numel(7)
    flops = 2 * batch * length * weights + 4 * batch * length * call.shape(1)[1] * width
    return Cost(flops, moved(call, (0, 1, 2, 5, 6, 7, 8), batch * length * width, 0))


def _with(layout: Layout) -> Formula:
    """The formula of the operators with a layout."""
    return lambda call: attention(call, layout)


RULES: dict[str, Rule] = {
    **{
        name: rule
        for layout, names in _LAYOUTS.items()
        for name, rule in rules("attention", {_with(layout): names}).items()
    },
    **rules(
        "attention",
        {_with(Layout(0, 5)): "scaled_dot_product_attention", multi_head: "_native_multi_head_attention"},
        deferred=True,
    ),
}
