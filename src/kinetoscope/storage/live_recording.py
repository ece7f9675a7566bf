"""The state of a recording from its headers alone: whether its process still runs, and its progress.

The layout of the file is defined in `native/core/recording/format.h` only; `LAYOUT` has its values.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import kinetoscope._core as _core
from kinetoscope.model.run_info import RunInfo
from kinetoscope.storage.system_files import BOOT_ID, text_of

LAYOUT: dict[str, Any] = _core.recording_layout()
"""Magic, version, sizes and offsets in bytes, and the numbers of kinds of chunks and notes."""

MAGIC: bytes = LAYOUT["magic"]
"""The first bytes of every recording."""

# The kernel counts the starts of processes in ticks.
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Progress(NamedTuple):
    """The progress of a recording.

    Attributes:
        stopped: Whether it was stopped, so that nothing more will be written.
        process: The id of the process that records, or did.
        position: A number that changes when something is recorded or lost; clock readings alone do not change it.
    """

    stopped: bool
    process: int
    position: int


def progress(path: str | os.PathLike[str]) -> Progress | None:
    """Read the headers of a recording, which may be growing.

    Args:
        path: The file.

    Returns:
        How far it is; None if the file is not a recording, or one that this release cannot read.

    Raises:
        OSError: The file cannot be read.
    """
    with Path(path).open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return None
    try:
        headers = _core.recording_progress(os.fspath(path))
    except ValueError:
        return None
    return Progress(headers["stopped"], headers["process"], headers["position"])


def is_running(run: RunInfo) -> bool:
    """Whether the process of a recording still records, as far as this machine can see.

    False if the recording was stopped, was made on another or an unknown machine or before the last boot, or if its process has ended, even if
    its id was reused.

    Args:
        run: The metadata of the recording.
    """
    if run.complete or not run.process:
        return False
    boot = run.boot_id.split()
    # A clock may follow the boot number. Without a number, any process may have this id here.
    if not boot or text_of(BOOT_ID) != boot[0]:
        return False
    return is_alive(run.process, run.start_monotonic_ns)


def is_alive(process: int, wrote_ns: int | None = None) -> bool:
    """Whether a process of this machine still runs.

    Args:
        process: Its id.
        wrote_ns: A time of the monotonic clock, since this boot, at which it ran: a process that was started later is another one
            with the same id.
    """
    began_ns = started_ns(process)
    if began_ns is None or wrote_ns is None:
        return began_ns is not None
    # The monotonic clock stops while the machine sleeps, so this is no earlier than that time.
    slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return began_ns <= wrote_ns + slept_ns + _TICK_NS


def started_ns(process: int) -> int | None:
    """When a process started, since this machine did; None if it has ended."""
    try:
        # The name of the program, in parentheses, may have spaces in it.
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        state, ticks = fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
    return None if state in ("Z", "X") else ticks * _TICK_NS
