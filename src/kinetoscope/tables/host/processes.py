"""The process tree of a trace of several processes, and the steps of one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.processes import process_runs
from kinetoscope.model.trace_data import TraceData


def process_tree(trace: TraceData) -> list[dict[str, Any]]:
    """Return the processes as a tree: each before those that it started, these in order of their start.

    Returns:
        For each its `row` in the table `processes`, its `name`, `pid`, `rank` and `depth` in the tree, `duration_ns`, and `began`
        and `ended` in words, empty if unknown. Nothing for a trace of one process.
    """
    table = trace.columns("processes")
    runs = process_runs(trace)
    pids = table["pid"].tolist()
    below: dict[int, list[int]] = {}
    for row, pid in enumerate(pids):
        parent = runs[row].recorded_parent or runs[row].parent_process
        # A process that became another program is there twice: the first entry is used for both.
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
            "began": runs[row].began,
            "ended": runs[row].ended,
        }
        for row, depth in ordered
    ]


def steps_of_one(trace: TraceData) -> tuple[str, NDArray[np.bool_]]:
    """Choose the steps to show: those of the first process that has any, since ranks step together.

    Returns:
        That process by name, empty where there is one process alone, and which rows of `steps` are its own.
    """
    whose = trace.column("steps", "process_row")
    if len(trace.columns("processes")) == 0 or len(whose) == 0:
        return "", np.ones(len(whose), dtype=np.bool_)
    first = int(whose.min())
    return process_and_rank(trace, first), whose == first


def process_and_rank(trace: TraceData, row: int) -> str:
    """Return the name of a process and its rank, if it has one, as `train.py, rank 3`.

    Args:
        trace: The trace.
        row: A row of `processes`.
    """
    table = trace.columns("processes")
    rank = f"rank {table['rank'][row]}" if table["rank"][row] >= 0 else ""
    return ", ".join(filter(None, (str(table["name"][row]), rank)))
