"""The rules for findings: each module declares those of one subject, and is found by its name. A new rule needs no other place."""

from importlib import import_module
from pkgutil import iter_modules

from kinetoscope.analyses.rule import Rule

MODULES = [import_module(f"{__name__}.{one.name}") for one in iter_modules(__path__)]
"""The modules, by name."""
RULES = {rule.code: rule for module in MODULES for rule in vars(module).values() if isinstance(rule, Rule)}
"""All rules by their code."""

__all__ = ["communication", "ranks"]
