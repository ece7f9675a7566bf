"""Facts: pure functions from a trace to a table, and torch's event lists as views of them."""
