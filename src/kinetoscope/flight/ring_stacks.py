"""The stacks of a process's threads as they were last sampled, read from its ring: nothing in the process has to answer."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.model import units
from kinetoscope.model.names import frame_location, stack_frames
from kinetoscope.model.rows import StackRow
from kinetoscope.model.schema import SAMPLE_STATES, SAMPLE_WAITS
from kinetoscope.storage.recording_parts import clone
from kinetoscope.trace import open as open_trace

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


@dataclass(frozen=True)
class SampledStack:
    """The last sample of a thread.

    Attributes:
        name: The name of the thread.
        thread: Its id of the system.
        state: What it did, one of `kinetoscope.model.schema.SAMPLE_STATES`; with what it waited for, if that is known.
        time_ns: When it was sampled, by the monotonic clock.
        lines: The stack as `file:line function`, outermost first.
    """

    name: str
    thread: int
    state: str
    time_ns: int
    lines: tuple[str, ...]

    def text(self, now_ns: int) -> str:
        """As lines of text; `now_ns` is the monotonic clock."""
        age = units.duration(max(now_ns - self.time_ns, 0))
        head = (
            f"thread {self.name or self.thread} ({self.thread}), {self.state} when it was sampled {age} ago"
        )
        return "\n".join([head, *(f"  {line}" for line in self.lines)])


def ring_stacks(ring: Path) -> list[SampledStack]:
    """Read the last sample of each thread from a ring, or from any other recording.

    Args:
        ring: The recording; its process may go on writing.

    Returns:
        The stacks, that of the main thread first. Steps that are not recorded have no samples, unless they hang.

    Raises:
        FormatError: The file is not a recording, or its version is not supported.
        OSError: It cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="kinetoscope-stacks-") as scratch:
        copy = Path(scratch, ring.name)
        clone(ring, copy)
        with open_trace(copy) as trace:
            return _last_samples(trace)


def stacks_text(stacks: list[SampledStack], now_ns: int | None = None) -> str:
    """All stacks as text; `now_ns` is the monotonic clock."""
    if not stacks:
        return "the ring has no samples: the last steps were not recorded\n"
    now_ns = time.monotonic_ns() if now_ns is None else now_ns
    return "\n\n".join(stack.text(now_ns) for stack in stacks) + "\n"


def _last_samples(trace: Trace) -> list[SampledStack]:
    samples, threads = trace.columns("samples"), trace.columns("threads")
    made = []
    for thread in np.unique(samples["thread"]).tolist():
        of_thread = np.flatnonzero(samples["thread"] == thread)
        row = int(of_thread[np.argmax(samples["time_ns"][of_thread])])
        wait = SAMPLE_WAITS[int(samples["wait"][row])]
        made.append(
            SampledStack(
                str(threads["name"][thread]),
                int(threads["os_tid"][thread]),
                SAMPLE_STATES[int(samples["state"][row])] + (f" by {wait}" if wait else ""),
                (trace.run_info.start_monotonic_ns or 0) + int(samples["time_ns"][row]),
                _lines(trace, StackRow(int(samples["stack"][row]))),
            )
        )
    # Of the process, the main thread has the same id.
    return sorted(made, key=lambda one: (one.thread != trace.run_info.process, one.thread))


def _lines(trace: Trace, stack: StackRow) -> tuple[str, ...]:
    """A stack in words, outermost frame first."""
    return tuple(frame_location(trace, frame) for frame in reversed(stack_frames(trace, stack)))
