"""Judgements about a trace: sentences with their numbers and evidence, computed from its tables."""

__all__ = [
    "account",
    "finding",
    "findings",
    "flame",
    "health",
    "lateness",
    "loop",
    "overview",
    "parts",
    "rules",
    "step_difference",
    "warm_up",
]
