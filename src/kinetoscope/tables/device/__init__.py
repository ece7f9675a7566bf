"""Tables of what ran on devices."""

__all__ = [
    "collective_facts",
    "collectives",
    "copies",
    "kernels",
    "launches",
    "streams",
    "utilization",
    "work",
]

TABLES = {
    "kernels": "kernels",
    "launches": "launches",
    "copies": "copies",
    "streams": "streams",
    "devices": "streams",
    "utilization": "utilization",
    "collectives": "collectives",
}
"""The tables of a trace that are made in this room, and the module of each: its function has the name of the table."""
