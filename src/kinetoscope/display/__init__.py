"""Format times, bytes, tables and traces for terminals and notebooks."""
