"""What a trace is made of: its schema, columns, strings, processes and losses."""

__all__ = [
    "arrow",
    "assemble",
    "closures",
    "columns",
    "compile_facts",
    "device_time",
    "hierarchy",
    "kinds",
    "losses",
    "names",
    "nesting",
    "pauses",
    "processes",
    "rows",
    "run_info",
    "schema",
    "steps",
    "strings",
    "trace_data",
    "units",
]
