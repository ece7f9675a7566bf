"""The trace of a rank reduced to a fixed size, and the job that the summaries of all ranks describe."""

SUFFIX = ".parquet"
"""How the name of a summary ends."""

__all__ = ["communication", "job", "lateness", "summary"]
