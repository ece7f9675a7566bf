"""Format times, bytes, tables and traces for terminals and notebooks."""

__all__ = [
    "arrow_text",
    "blocks",
    "html",
    "lines",
    "out_of_memory",
    "sentence",
    "terminal",
]
