"""Judgements about a trace: sentences with their numbers and evidence, computed from its tables."""

__all__ = [
    "account",
    "description",
    "findings",
    "flame",
    "health",
    "lateness",
    "line_tree",
    "loop",
    "meetings",
    "overview",
    "parts",
    "ran",
    "replay",
    "rule",
    "rule_findings",
    "rules",
    "trace_blocks",
    "warm_up",
    "what_if",
]

TABLES = {
    "account": "account",
    "findings": "findings",
    "step_difference": "step_difference",
}
"""The tables of a trace that are made in this room, and the module of each: its function has the name of the table."""
