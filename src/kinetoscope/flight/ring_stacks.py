"""The stacks of a process's threads as they were last sampled, read from its ring: nothing in the process has to answer."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kinetoscope.flight.live_stacks import StackLine, ThreadStack, live_stacks
from kinetoscope.flight.step_log import StepLog
from kinetoscope.model.names import source_line, stack_frames
from kinetoscope.model.rows import StackRow
from kinetoscope.model.schema import SAMPLE_STATES, SAMPLE_WAITS
from kinetoscope.storage.recording_parts import clone, keep_from
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace


@contextmanager
def opened_ring(ring: Path, from_ns: int | None = None) -> Iterator[Trace]:
    """Open a ring as it is at this moment; its process may go on writing, which does not matter.

    Args:
        ring: The ring.
        from_ns: What had ended before, by the monotonic clock, is left out; None for all of it.

    Raises:
        FormatError: The file is not a recording, or its version is not supported.
        OSError: It cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="kinetoscope-ring-") as scratch:
        copy = Path(scratch, ring.name)
        clone(ring, copy)
        if from_ns is not None:
            with open_trace(copy) as trace:
                zero_ns = trace.run_info.start_monotonic_ns or 0
            keep_from(copy, max(from_ns - zero_ns, 0))
        with open_trace(copy) as trace:
            yield trace


def ring_stacks(ring: Path) -> list[ThreadStack]:
    """Read the last sample of each thread from a ring, or from any other recording.

    Args:
        ring: The recording; its process may go on writing.

    Returns:
        The stacks, that of the main thread first. Steps that are not recorded have no samples, unless they hang.

    Raises:
        FormatError: The file is not a recording, or its version is not supported.
        OSError: It cannot be read.
    """
    with opened_ring(ring) as trace:
        threads = np.unique(trace.columns("samples")["thread"]).tolist()
        stacks = [stack for thread in threads if (stack := last_sample(trace, thread)[0]) is not None]
        # The main thread has the id of the process.
        return sorted(stacks, key=lambda stack: (stack.thread != trace.run_info.process, stack.thread))


def stacks_from_outside(process: int | None, ring: Path, log: StepLog | None) -> tuple[str, str]:
    """The stacks of a process as text, without its help: those of now, or the last samples in its ring.

    Returns:
        `process` or `ring`, and the text.

    Raises:
        FormatError: The ring is not a recording, or its version is not supported.
        OSError: It cannot be read.
    """
    if process and log is not None and log.is_of_here and (stacks := live_stacks(process, log.layout)):
        return "process", stacks_text(stacks, stacks[0].time_ns)
    return "ring", stacks_text(ring_stacks(ring))


def stacks_text(stacks: list[ThreadStack], now_ns: int | None = None) -> str:
    """All stacks as text; `now_ns` is the monotonic clock."""
    if not stacks:
        return "the ring has no samples: the last steps were not recorded\n"
    now_ns = time.monotonic_ns() if now_ns is None else now_ns
    return "\n\n".join(stack.text(now_ns) for stack in stacks) + "\n"


def stack_lines(trace: Trace, stack: int) -> tuple[StackLine, ...]:
    """A stack of a trace, outermost frame first; empty for -1."""
    rows = reversed(stack_frames(trace, StackRow(stack)))
    return tuple(StackLine(*source_line(trace, row)) for row in rows)


def last_sample(trace: Trace, thread: int) -> tuple[ThreadStack | None, int]:
    """The last sample of a thread, by its row, and the row of the module that it is in; None and -1 without one."""
    samples, threads = trace.columns("samples"), trace.columns("threads")
    rows = np.flatnonzero(samples["thread"] == thread)
    if len(rows) == 0:
        return None, -1
    row = int(rows[np.argmax(samples["time_ns"][rows])])
    wait = SAMPLE_WAITS[int(samples["wait"][row])]
    stack = ThreadStack(
        str(threads["name"][thread]),
        int(threads["os_tid"][thread]),
        SAMPLE_STATES[int(samples["state"][row])] + (f" by {wait}" if wait else ""),
        (trace.run_info.start_monotonic_ns or 0) + int(samples["time_ns"][row]),
        stack_lines(trace, int(samples["stack"][row])),
    )
    return stack, int(samples["module"][row])
