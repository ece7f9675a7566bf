"""Tables of work on devices."""

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
"""The tables that this room makes, and the module of each. The function has the name of the table."""
