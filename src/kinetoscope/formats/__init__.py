"""Formats of other tools, one module or package each."""

__all__ = ["chrome", "execution_trace", "memory_timeline", "perfetto", "stacks", "suffixes"]
