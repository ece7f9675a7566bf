"""Facts: pure functions from a trace to a table."""

__all__ = [
    "breakdown",
    "costs",
    "device",
    "host",
    "intervals",
    "memory",
    "processor_waits",
    "shares",
    "stacks",
    "step_kinds",
    "stored",
    "windows",
]
