"""Where the time went: what each nanosecond of a step or request was spent on, and all tables that are sums of it."""

__all__ = ["avoidable_work", "breakdown", "ledger", "parts", "requests", "steps"]

TABLES = {
    "breakdown": "breakdown",
    "overlap": "breakdown",
    "steps": "steps",
    "requests": "requests",
    "request_names": "requests",
}
"""The tables of a trace that are made in this room, and the module of each: its function has the name of the table."""
