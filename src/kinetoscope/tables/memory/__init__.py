"""Tables of memory."""

__all__ = ["blocks", "categories", "peak", "timeline"]
