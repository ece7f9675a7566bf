"""All built-in formulas by the name of the operator."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kinetoscope.tables.costs import matmul

if TYPE_CHECKING:
    from kinetoscope.tables.costs._rule import Rule

_FAMILIES = (matmul,)


@cache
def built_in() -> dict[str, Rule]:
    """The built-in rules; made on first use."""
    found: dict[str, Rule] = {}
    for family in _FAMILIES:
        found.update(family.RULES)
    return found


def is_made_of_others(name: str) -> bool:
    """Whether an operator computes nothing but by calling operators that are recorded too."""
    return "::" not in name or name.startswith(("autograd::", "torch::autograd::"))
