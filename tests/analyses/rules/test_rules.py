import ast
import inspect

from kinetoscope.analyses.rules import MODULES, RULES

MOST_LINES = 35
"""A rule has at most so many lines, its declaration included."""


def lengths():
    """Return how many lines each rule has, from its declaration to the end of its function."""
    return {
        part.name: part.end_lineno - part.decorator_list[0].lineno + 1
        for module in MODULES
        for part in ast.parse(inspect.getsource(module)).body
        if isinstance(part, ast.FunctionDef) and part.decorator_list
    }


def test_rules_are_short():
    lines = lengths()
    assert {name.replace("_", "-") for name in lines} == set(RULES)
    assert max(lines.values()) <= MOST_LINES, lines


def test_each_rule_says_what_it_explains_and_where_its_threshold_comes_from():
    for rule in RULES.values():
        assert rule.source
        assert rule.reported_from, rule.code
        assert set(rule.explains) <= set(RULES), rule.code
