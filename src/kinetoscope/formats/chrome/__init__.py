"""Read and write Chrome's trace event format."""
