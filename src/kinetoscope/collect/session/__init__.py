"""Sessions: they decide when to record, and read the recordings."""
