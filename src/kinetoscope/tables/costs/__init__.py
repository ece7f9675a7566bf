"""Floating-point operations and bytes moved of every operator of a trace; see ``docs/flops.md``.

`columns` makes the columns of `spans`, `registry` holds the formulas that programs register, and `formulas.txt` says which built-in
formula each operator has, with which settings; they are functions of `pointwise`, `reductions`, `matmul`, `convolution` and so on.
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
