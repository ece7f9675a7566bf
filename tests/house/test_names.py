"""Names say what a value is: placeholders are few and get fewer."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "kinetoscope"
PLACEHOLDERS = {
    *(
        "found",
        "one",
        "mine",
        "own",
        "known",
        "given",
        "made",
        "told",
        "said",
        "kept",
        "tried",
        "seen",
        "what",
        "which",
        "many",
    ),
    *("few", "shown", "whole", "of", "at", "each", "place", "places", "others", "these", "those"),
}
MOST = 50
"""How many there are at most in the whole package; lower it as they become fewer."""
MOST_OF = {
    "analyses": 0,
    "cli": 0,
    "collect": 0,
    "combine": 0,
    "comparison": 0,
    "display": 0,
    "flight": 0,
    "formats": 0,
    "integrations": 1,
    "launcher": 0,
    "ledger": 0,
    "model": 0,
    "storage": 0,
    "summaries": 0,
    "tables/device": 0,
    "tables/host": 0,
    "torch_events": 12,
    "trace": 0,
    "viewer": 0,
}
"""The same of a folder."""


def placeholders_in(folder: Path) -> list[str]:
    """Return what functions of more than five lines assign to a placeholder, as file, line and name."""
    return [
        f"{path.relative_to(PACKAGE)}:{name.lineno} {name.id}"
        for path in sorted(folder.rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and function.end_lineno - function.lineno >= 5
        for name in ast.walk(function)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id in PLACEHOLDERS
    ]


def test_placeholders_in_the_package_get_fewer():
    assert len(placeholders_in(PACKAGE)) <= MOST


@pytest.mark.parametrize("folder", MOST_OF)
def test_a_folder_has_no_more_placeholders_than_before(folder):
    listed = placeholders_in(PACKAGE / folder)
    assert len(listed) <= MOST_OF[folder], listed
