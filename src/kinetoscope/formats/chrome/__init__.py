"""Read and write Chrome's trace event format."""

__all__ = ["read", "slices", "write"]
