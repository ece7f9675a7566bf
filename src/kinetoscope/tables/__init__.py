"""Facts: pure functions from a trace to a table."""
