"""Many traces as one, and one trace as a part of it."""

__all__ = [
    "clocks",
    "compiled",
    "concatenate",
    "cut",
    "device",
    "extend",
    "graph_replays",
    "loader_workers",
    "processes",
    "ranks",
    "sources",
]
