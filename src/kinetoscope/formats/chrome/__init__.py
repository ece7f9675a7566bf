"""Read and write Chrome's trace event format."""

__all__ = ["graph_annotations", "read", "slices", "write"]
