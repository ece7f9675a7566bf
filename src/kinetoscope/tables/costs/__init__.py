"""Floating-point operations and bytes moved of every operator of a trace; see ``docs/flops.md``.

`columns` makes the columns of `spans`, each family of operators has its formulas in a file of its own, and
`_registry` keeps those that programs register.
"""

from kinetoscope.tables.costs.call import OperatorCall
from kinetoscope.tables.costs.peaks import register_peak_flops
from kinetoscope.tables.costs.registry import register_flops, unregister_flops

__all__ = ["OperatorCall", "register_flops", "register_peak_flops", "unregister_flops"]
