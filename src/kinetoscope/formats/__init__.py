"""Formats of other tools, one module or package each."""

__all__ = [
    "chrome",
    "execution_trace",
    "memory_snapshot",
    "memory_timeline",
    "nsight_systems",
    "stacks",
    "suffixes",
]
