"""The processor time of the recorder's own threads, read by the program's thread.

A thread is found by its name in /proc, and its clock has the number that Linux makes of the thread's id (`clock_getcpuclockid(3)`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from kinetoscope.storage.system_files import text_of

_TASKS = "/proc/self/task"
# What our native threads, and those of Python, are called.
_NATIVE = ("kinetoscope", "kscope ")
_PYTHON = "kinetoscope"
# Threads that are started later are found after so many readings.
_LOOK_AGAIN = 32
_READ_EVERY_NS = 2_000_000_000


class OwnThreads:
    """Reads the processor time of our threads from time to time."""

    def __init__(self) -> None:
        self._clocks: dict[int, int] = {}
        self._read_ns = 0
        self._readings = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time for a reading, by the monotonic clock."""
        return now_ns - self._read_ns >= _READ_EVERY_NS

    def read(self, now_ns: int) -> float | None:
        """The processor time of our threads since the last reading as a share of the time; None at the first one."""
        if self._readings % _LOOK_AGAIN == 0:
            for thread in own_threads():
                self._clocks.setdefault(thread, processor_ns(thread))
        self._readings += 1
        used_ns = 0
        for thread, before_ns in self._clocks.items():
            now = processor_ns(thread)
            used_ns += max(now - before_ns, 0)
            self._clocks[thread] = now
        before, self._read_ns = self._read_ns, now_ns
        # What the threads do once, when they begin, is no permanent cost.
        return used_ns / (now_ns - before) if self._readings > 2 else None


def own_threads() -> list[int]:
    """The system's ids of the recorder's threads in this process."""
    tids = [
        thread.native_id
        for thread in threading.enumerate()
        if thread.name.startswith(_PYTHON) and thread.native_id is not None
    ]
    for task in os.listdir(_TASKS) if os.path.isdir(_TASKS) else []:
        is_named = text_of(Path(_TASKS, task, "comm")).startswith(_NATIVE)
        if is_named and int(task) not in tids and _blocks_signals(task):
            tids.append(int(task))
    return tids


def _blocks_signals(task: str) -> bool:
    """Whether a thread receives no SIGTERM, as those of the recorder. A program may be called as they are, and so its threads."""
    for line in text_of(Path(_TASKS, task, "status")).splitlines():
        if line.startswith("SigBlk:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def processor_ns(thread: int) -> int:
    """The processor time of a thread of this process; 0 if it has ended."""
    try:
        return time.clock_gettime_ns(~thread << 3 | 6)
    except OSError:
        return 0
