"""Names say what a value is: placeholders are few and get fewer, and no class name stands for two things."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "kinetoscope"
PLACEHOLDERS = set(
    "found one mine own known given made told said kept tried seen what which many few shown whole of at each place places "
    "others these those".split()
)
MOST_PLACEHOLDERS = 1800
"""How many there are at most in the whole package. Lower it as they become fewer."""
CLEAN = (
    "storage",
    "formats",
    "combine",
    "model",
    "launcher",
    "collect",
    "flight",
    "integrations",
    "summaries",
)
MOST_PERCENT = 1.0
"""The share of placeholders among the locals of each folder of `CLEAN`."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def assigned(path: Path) -> list[str]:
    """Return the names that functions of more than five lines assign to."""
    return [
        name.id
        for function in ast.walk(tree_of(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and function.end_lineno - function.lineno >= 5
        for name in ast.walk(function)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    ]


def test_placeholders_are_few_and_get_fewer():
    count = sum(name in PLACEHOLDERS for path in PACKAGE.rglob("*.py") for name in assigned(path))
    assert count <= MOST_PLACEHOLDERS
    assert count > 0.9 * MOST_PLACEHOLDERS, "lower MOST_PLACEHOLDERS"
