"""The processes of a trace as a tree: each under the one that started it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


def process_tree(trace: Trace) -> list[dict[str, Any]]:
    """The processes of a trace of several, each before those that it started, and those in the order of their beginning.

    Returns:
        For each its `row` in the table `processes`, its `name`, `pid`, `rank` and `depth` in the tree, `duration_ns`, and `began`
        and `ended` in words, empty where nobody said it. Nothing for a trace of one process.
    """
    table = trace.columns("processes")
    entries = trace.info.get("processes")
    told = (
        [entry if isinstance(entry, dict) else {} for entry in entries] if isinstance(entries, list) else []
    )
    told = [*told, *({} for _ in range(len(table) - len(told)))]
    pids = table["pid"].tolist()
    below: dict[int, list[int]] = {}
    for row, pid in enumerate(pids):
        parent = told[row].get("recorded_parent", told[row].get("parent_process"))
        # A process that became another program is there twice: what it was first stands for both.
        above = pids.index(parent) if parent in pids and parent != pid else -1
        below.setdefault(above, []).append(row)
    ordered: list[tuple[int, int]] = []
    waiting = [(row, 0) for row in reversed(below.pop(-1, []))]
    while waiting:
        row, depth = waiting.pop()
        ordered.append((row, depth))
        waiting += [(child, depth + 1) for child in reversed(below.pop(row, []))]
    # Numbers that were used again can make processes each other's parents.
    ordered += [(row, 0) for left in below.values() for row in left]
    return [
        {
            "row": row,
            "name": table["name"][row],
            "pid": pids[row],
            "rank": int(table["rank"][row]),
            "depth": depth,
            "duration_ns": int(table["duration_ns"][row]),
            "began": str(told[row].get("began", "")),
            "ended": str(told[row].get("ended", "")),
        }
        for row, depth in ordered
    ]
