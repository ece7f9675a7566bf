"""Read Chakra execution traces, and join them with the trace of the same run."""

TABLES = {
    "execution": "read",
    "execution_tensors": "read",
}
"""The tables of a trace that are made in this room, and the module of each: its function has the name of the table."""
