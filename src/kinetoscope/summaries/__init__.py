"""Summaries: the trace of each rank reduced to a fixed size, and the analysis of a job from those of all ranks."""

SUFFIX = ".parquet"
"""The file name suffix of summaries."""

__all__ = ["communication", "job", "lateness", "summary"]
