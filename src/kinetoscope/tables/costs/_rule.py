"""What a formula is to the tables: who it belongs to, and how firmly it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kinetoscope.tables.costs._call import FREE, Cost, OperatorCall

Formula = Callable[[OperatorCall], Cost]


class Rule(NamedTuple):
    """How the cost of one operator is found.

    Attributes:
        formula: Gives the cost of a call; may raise LookupError, TypeError or ValueError where a call is not as it
            must be.
        family: The family of operators, such as `matmul`.
        deferred: True for an operator that is usually made of others that are recorded too: its own formula counts only
            where those account for less than half of it.
    """

    formula: Formula
    family: str
    deferred: bool = False


def free(call: OperatorCall) -> Cost:
    """The cost of what neither computes nor touches data."""
    return FREE


def rules(family: str, formulas: dict[Formula, str], *, deferred: bool = False) -> dict[str, Rule]:
    """Make rules of a mapping from formulas to the names, separated by blanks, of the operators they serve."""
    return {
        f"aten::{name}" if "::" not in name else name: Rule(formula, family, deferred)
        for formula, names in formulas.items()
        for name in names.split()
    }
