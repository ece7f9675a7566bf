"""Tables of what ran on the host."""

__all__ = [
    "compiling",
    "data_loading",
    "lines",
    "modules",
    "ops",
    "places",
    "processes",
    "python_time",
    "rebuilt_calls",
    "samples",
    "source_lines",
    "steps",
]
