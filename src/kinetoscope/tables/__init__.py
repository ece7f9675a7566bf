"""Facts: pure functions from a trace to a table."""

__all__ = [
    "breakdown",
    "costs",
    "device",
    "host",
    "intervals",
    "memory",
    "processor_waits",
    "stacks",
    "step_kinds",
    "stored",
    "windows",
]
