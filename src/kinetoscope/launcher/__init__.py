"""Run a program under a recording, with the processes that it starts."""

__all__ = ["children", "interleave", "options", "overhead", "program", "recording", "run", "unrecorded"]
