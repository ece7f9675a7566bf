"""Floating-point operations and bytes moved of every operator of a trace; see ``docs/flops.md``.

`columns` makes the columns of `spans`, `registry` holds the formulas that programs register, and each family of operators has
its built-in formulas in the module whose kind of formula they share (`pointwise`, `reductions`, `matmul`, `convolution` ...).
"""

from kinetoscope.tables.costs.call import OperatorCall
from kinetoscope.tables.costs.peaks import register_peak_flops
from kinetoscope.tables.costs.registry import register_flops, unregister_flops

__all__ = [
    "OperatorCall",
    "attainable",
    "call",
    "columns",
    "evaluate",
    "flops",
    "operator_names",
    "peaks",
    "register_flops",
    "register_peak_flops",
    "unregister_flops",
]
