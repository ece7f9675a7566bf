"""The message of a run without --children about unrecorded processes, from their CPU time, which costs nothing to read."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path

from kinetoscope.model import units

# Less CPU time, or a smaller share of the program's own, is not mentioned.
LEAST_CPU_S, LEAST_SHARE = 1.0, 0.01


def unrecorded_children(used_s: float, engine: str) -> list[str]:
    """Return a message about processes that a program started and that are not recorded, if they used much time.

    Args:
        used_s: The CPU time of these processes.
        engine: The engine that was chosen.
    """
    if used_s < LEAST_CPU_S or used_s < LEAST_SHARE * time.process_time():
        return []
    other = ", with another engine than kineto," if engine == "kineto" else ""
    used = units.duration(used_s * 1e9)
    usage = f"processes that the program started used {used} of CPU time and are not in the trace"
    return [f"{usage}: `kinetoscope run --children`{other} records those that use PyTorch"]


def children_cpu_s() -> float:
    """The CPU time, in seconds, of all processes that this one has started, ended or running."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    total_s = used.ru_utime + used.ru_stime
    for process in descendants()[1:]:
        with suppress(OSError, ValueError, IndexError):
            # The name of a process may contain blanks and brackets.
            fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
            total_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total_s


def descendants() -> list[int]:
    """The ids of this process and its running descendants."""
    processes = [os.getpid()]
    for process in processes:
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            with suppress(OSError):
                children = map(int, file.read_text().split())
                processes += [child for child in children if child not in processes]
    return processes
