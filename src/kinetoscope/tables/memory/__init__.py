"""Tables of memory."""

__all__ = ["blocks", "categories", "memories", "peak", "timeline"]

TABLES = {
    "memory": "peak",
    "memory_peak": "peak",
    "memory_timeline": "timeline",
}
"""The tables that this room makes, and the module of each. The function has the name of the table."""
