"""What a trace is made of: its schema, columns, strings, processes and losses."""

__all__ = [
    "arrow",
    "assemble",
    "closures",
    "columns",
    "compile_facts",
    "device_time",
    "dictionary",
    "groups",
    "hierarchy",
    "kinds",
    "losses",
    "marks",
    "names",
    "nesting",
    "pauses",
    "processes",
    "rows",
    "run_info",
    "schema",
    "step_plan",
    "steps",
    "strings",
    "time_spent",
    "trace_data",
    "units",
]

TABLES = {
    "processes": "processes",
}
"""The tables of a trace that are made in this room, and the module of each: its function has the name of the table."""
