"""Merges many traces into one, and cuts a part out of one."""

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
