"""Tables of memory."""

__all__ = ["blocks", "categories", "memories", "peak", "timeline"]

TABLES = {
    "memory": "peak",
    "memory_peak": "peak",
    "memory_timeline": "timeline",
}
"""The tables of a trace that are made in this room, and the module of each: its function has the name of the table."""
