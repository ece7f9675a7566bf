"""Where the time went: the ledger assigns each nanosecond of a step or request to a cause, and its sums are the time tables."""

__all__ = ["avoidable_work", "breakdown", "ledger", "parts", "requests", "steps"]

TABLES = {
    "breakdown": "breakdown",
    "overlap": "breakdown",
    "steps": "steps",
    "requests": "requests",
    "request_names": "requests",
}
"""The tables that this room makes, and the module of each. The function has the name of the table."""
