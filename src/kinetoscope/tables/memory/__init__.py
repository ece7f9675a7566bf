"""Tables of memory."""

__all__ = ["blocks", "categories", "memories", "peak", "timeline"]
