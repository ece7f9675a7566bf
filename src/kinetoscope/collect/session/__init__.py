"""Sessions: when something is recorded, and what is read from it."""
