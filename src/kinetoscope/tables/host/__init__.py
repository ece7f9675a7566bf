"""Tables of what ran on the host."""

__all__ = [
    "compiling",
    "data_loading",
    "host_shares",
    "lines",
    "modules",
    "ops",
    "places",
    "python_time",
    "rebuilt_calls",
    "requests",
    "source_lines",
    "units_of_work",
]

TABLES = {
    "ops": "ops",
    "modules": "modules",
    "module_operators": "modules",
    "histogram": "places",
    "instances": "places",
    "lines": "lines",
    "stacks": "lines",
    "data_loading": "data_loading",
    "request_modules": "requests",
    "compiles": "compiling",
    "graph_breaks": "compiling",
}
"""The tables of a trace that are made in this room, and the module of each: its function has the name of the table."""
