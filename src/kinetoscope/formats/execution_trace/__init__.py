"""Read Chakra execution traces, and join them with the trace of the same run."""

__all__ = ["mend", "read"]
