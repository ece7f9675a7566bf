"""Tables of what ran on devices."""

__all__ = [
    "collective_facts",
    "collectives",
    "copies",
    "kernels",
    "launches",
    "streams",
    "work",
]
