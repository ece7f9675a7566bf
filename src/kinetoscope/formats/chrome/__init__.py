"""Chrome's trace event format: reading and writing it."""
