"""Facts: pure functions from a trace to a table."""

__all__ = [
    "costs",
    "deep_steps",
    "device",
    "host",
    "intervals",
    "memory",
    "processor_waits",
    "stacks",
    "step_extents",
    "step_kinds",
    "stored",
    "windows",
]

TABLES = {
    "step_kinds": "step_kinds",
    "flops": "costs.flops",
    "flops_coverage": "costs.flops",
    "spans": "stored",
    "cycles": "stored",
    "threads": "stored",
    "allocations": "stored",
    "origins": "stored",
    "frames": "stored",
    "shapes": "stored",
    "counters": "stored",
    "samples": "stored",
    "losses": "stored",
    "info": "stored",
    "strings": "stored",
}
"""The tables of a trace that are made in this room, and the module of each: its function has the name of the table."""
