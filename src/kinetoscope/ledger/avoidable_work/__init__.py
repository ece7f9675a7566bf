"""Avoidable work: results that are recomputed, discarded or overwritten, and operators with a cheaper equivalent."""

__all__ = ["dataflow", "distinct_calls", "padding", "repeats", "waste"]
