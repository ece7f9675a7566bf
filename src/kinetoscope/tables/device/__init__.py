"""Tables of what ran on devices."""

__all__ = [
    "collective_facts",
    "collectives",
    "communication_kernels",
    "copies",
    "kernels",
    "launches",
    "streams",
    "work",
]
