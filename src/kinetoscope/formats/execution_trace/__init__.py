"""Chakra execution traces: reading them, and joining them to the trace of the same run."""
