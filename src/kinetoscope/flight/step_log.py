"""The log of a job's last steps, recorded or not: a file beside the ring, which a native thread watches and anybody can read.

The layout is that of native/recorder/step_watch.h: 16 numbers, then the steps, then readings of memory, all of 8 bytes; then where the
interpreter keeps its stacks, as in native/recorder/frame_layout.h; then text.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from kinetoscope._runtime import StepCount
from kinetoscope.flight.live_stacks import CRASHED, StackLine, ThreadStack
from kinetoscope.storage.system_files import BOOT_ID, text_of

SUFFIX = ".steps"
"""What the name of a log ends with."""

# Of each text in the facts of an incident, until all fits.
_MOST_TEXT = (1000, 300, 50)
_MAGIC = int.from_bytes(b"KSSTEPS1", "little")
_STEPS, _READINGS = 1024, 512
_STEP, _READING = struct.Struct("<4q"), struct.Struct("<2q")
_HEADER = struct.Struct("<16q")
_UNDER_WAY = struct.Struct("<4q")
_NUMBER = struct.Struct("<q")
# As _STEP, for reading many of them.
_LOGGED_STEP = struct.Struct("<3q?7x")
# Offsets of fields of the header.
_STOPPED, _CURRENT, _MOST_BYTES, _LOGGED, _HUNG, _MEMORY_NOTICED, _SEEN_FROM = 16, 24, 56, 64, 72, 96, 104
_TWO_NUMBERS = struct.Struct("<2q")
_FIRST_READING = _HEADER.size + _STEPS * _STEP.size
_LAYOUT_NAMES = (
    "python_hex", "thread_frame", "with_cframe", "cframe_current", "previous", "code", "instruction", "owner", "first_local",
    "code_first_instruction", "code_function", "code_file", "code_first_line", "code_lines", "object_type", "object_size", "bytes_data",
    "text_bytes", "newest_thread", "thread_next", "thread_interpreter", "thread_number", "thread_system", "gil_holder", "gil_locked",
    "gil_bytes", "pointer_mask", "interpreter", "gil", "code_type", "text_type", "bytes_type", "newest_at_start", "thread_at_start",
    "text_flags", "text_kind_shift", "text_wide_bytes",
)  # fmt: skip
_LAYOUT = struct.Struct("<26I8Q3I4x")
_LAYOUT_AT = _FIRST_READING + _READINGS * _READING.size
_END, _END_BYTES = _LAYOUT_AT + _LAYOUT.size, 4096
_THREAD = _END + _END_BYTES
_JUDGED = _THREAD + _NUMBER.size
_JUDGEMENT, _JUDGEMENT_BYTES = _JUDGED + _NUMBER.size, 1016
_PLACES = _JUDGEMENT + _JUDGEMENT_BYTES
_PLACE = struct.Struct("<4q4064s")
SIZE_BYTES = _PLACES + 2 * _PLACE.size
"""The size of a log."""


class LoggedStep(NamedTuple):
    """A step that has ended.

    Attributes:
        number: Its number.
        began_ns: When it began, by the monotonic clock.
        duration_ns: How long it took; of several short ones that were looked at together, how long each did on average. They have
            one row, with the number of the last.
        recorded: Whether the ring has its operators, unless they were overwritten.
    """

    number: int
    began_ns: int
    duration_ns: int
    recorded: bool


# A log has a thousand of them, and a job a thousand logs.
_as_step = partial(tuple.__new__, LoggedStep)


@dataclass(frozen=True)
class StepLog:
    """What a log says.

    Attributes:
        process: The process that writes, or wrote.
        stopped: Whether it has stopped recording, as at its regular end.
        left_ring: Whether it has stopped, but could not move its ring to an incident that has no whole copy of it.
        number: The number of the step under way; -1 before the first.
        began_ns: When that step began, by the monotonic clock; 0 before the first.
        recorded: Whether it is recorded.
        hang_ns: A step that takes longer is overdue, and hangs if the process does not judge otherwise; 0: that is not watched.
        most_bytes: The resident memory from which the program may be killed; 0 if unknown.
        is_of_here: Whether its process can be seen by its id from this one: on the same machine, since the same boot, in the same
            namespace of processes. False if that is unknown.
        hung: Whether the step under way was noticed to hang.
        steps: The last steps that have ended, the oldest first.
        memory: The resident memory in bytes, once a second, the oldest first, each with its time by the monotonic clock.
        layout: Where the process's interpreter keeps its stacks, for `live_stacks`; empty if that is unknown.
        end: What the process said of the incident that has no whole copy of the ring; empty without one.
        signal: The number of the signal that it crashed by; 0 if it did not, or that is unknown.
        thread: The system's id of the thread that marks the steps; 0 if unknown.
        place: Where that thread was, as is noted once a second, or the one that crashed; None if its stacks cannot be read.
        place_step: The step that was under way then; None in none.
        judged_ns: When the process last judged whether the step that is overdue hangs, by the monotonic clock; 0 if it never did.
        judgement: What it said, see `hangs.HangWatch`; where the program ended by `sys.exit`, the `line` of that.
    """

    process: int
    stopped: bool
    number: int
    began_ns: int
    recorded: bool
    hang_ns: int
    most_bytes: int
    is_of_here: bool
    hung: bool
    steps: tuple[LoggedStep, ...]
    memory: tuple[tuple[int, int], ...]
    layout: dict[str, int]
    left_ring: bool = False
    end: dict[str, Any] = field(default_factory=dict)
    signal: int = 0
    thread: int = 0
    place: ThreadStack | None = None
    place_step: int | None = None
    judged_ns: int = 0
    judgement: dict[str, Any] = field(default_factory=dict)

    @property
    def last_seen_ns(self) -> int:
        """When the process was last seen to live, by the monotonic clock; 0 if it never was."""
        ended_ns = self.steps[-1].began_ns + self.steps[-1].duration_ns if self.steps else 0
        placed_ns = self.place.time_ns if self.place else 0
        return max(ended_ns, self.began_ns, self.memory[-1][0] if self.memory else 0, placed_ns)


# By the letters of the system.
_STATES = {"R": "running", "S": "blocked", "D": "blocked", "X": CRASHED}


class StepLogWriter:
    """Writes a log into its memory."""

    def __init__(self, memory: memoryview, most_bytes: int = 0) -> None:
        """Begin an empty log.

        Args:
            memory: The memory of the log, `SIZE_BYTES` long.
            most_bytes: The resident memory from which the program may be killed; 0 if unknown.
        """
        self._memory = memory
        _UNDER_WAY.pack_into(memory, _CURRENT, -1, 0, 0, 0)
        _NUMBER.pack_into(memory, _MOST_BYTES, most_bytes)
        _TWO_NUMBERS.pack_into(memory, _SEEN_FROM, *_namespace_and_boot(os.getpid()))

    def follow(self, count: StepCount) -> None:
        """Let a count of steps write which one is under way, and those that have ended."""
        count.write_to(self._memory, _CURRENT, _LOGGED, _HEADER.size, _STEPS)

    def stop(self, *, stopped: bool = True, leaves_ring: bool = False) -> None:
        """Say that the program has ended well, and whether it leaves a ring that is worth keeping; or that it goes on after all."""
        _NUMBER.pack_into(self._memory, _STOPPED, 2 if leaves_ring else int(stopped))

    def note_thread(self, thread: int) -> None:
        """Say which thread marks the steps, by the system's id."""
        _NUMBER.pack_into(self._memory, _THREAD, thread)

    def note_end(self, facts: Mapping[str, Any]) -> None:
        """Say what the incident was that has no whole copy of the ring; empty once there is one. This needs no room on the disk."""
        self._write(_END, _END_BYTES, facts)

    def note_judgement(self, facts: Mapping[str, Any], judged_ns: int) -> None:
        """Say what the process does while its step is overdue, and when that was judged, by the monotonic clock."""
        self._write(_JUDGEMENT, _JUDGEMENT_BYTES, facts)
        _NUMBER.pack_into(self._memory, _JUDGED, judged_ns)

    def note_hang(self, began_ns: int) -> None:
        """Say that the step that began then hangs; the watcher freezes the ring if it is still under way."""
        _NUMBER.pack_into(self._memory, _HUNG, began_ns)

    @property
    def hang(self) -> tuple[int, int]:
        """When the step that hangs began, and when the one under way was noticed to be overdue; each 0 if it does or is not."""
        hung_ns, noticed_ns = _TWO_NUMBERS.unpack_from(self._memory, _HUNG)
        return hung_ns, noticed_ns

    def _write(self, at: int, most_bytes: int, facts: Mapping[str, Any]) -> None:
        for most in _MOST_TEXT:
            short = {
                name: value[:most] if isinstance(value, str) else value
                for name, value in facts.items()
                if not isinstance(value, dict)
            }
            text = json.dumps(short, default=str).encode()
            if len(text) < most_bytes:
                break
        self._memory[at : at + most_bytes] = text[: most_bytes - 1].ljust(most_bytes, b"\0")

    @property
    def memory_is_short(self) -> bool:
        """Whether the watcher has noticed that memory runs short."""
        return bool(_NUMBER.unpack_from(self._memory, _MEMORY_NOTICED)[0])

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.release()


def read_step_log(path: str | os.PathLike[str]) -> StepLog | None:
    """Read a log, which may be written meanwhile.

    Returns:
        What it says; None if the file is no log of this version.

    Raises:
        OSError: It cannot be read.
    """
    data = Path(path).read_bytes()
    if len(data) != SIZE_BYTES:
        return None
    head = _HEADER.unpack_from(data)
    if head[0] != _MAGIC:
        return None
    _, process, stopped, number, began_ns, recorded, hang_ns, most_bytes, _, hung_ns = head[:10]
    # Without the one that was being replaced while the file was read; places that were never written have no time.
    latest_ns = began_ns or math.inf
    rows = map(_as_step, _LOGGED_STEP.iter_unpack(data[_HEADER.size : _FIRST_READING]))
    steps = sorted((step for step in rows if 0 < step.began_ns <= latest_ns), key=itemgetter(1))
    position, place_step = _last_place(data)
    return StepLog(
        process=process,
        stopped=bool(stopped),
        number=number,
        began_ns=began_ns,
        recorded=bool(recorded),
        hang_ns=hang_ns,
        most_bytes=most_bytes,
        is_of_here=all(head[13:15]) and head[13:15] == _namespace_and_boot(os.getpid()),
        hung=hung_ns != 0 and hung_ns == began_ns,
        steps=tuple(steps),
        memory=tuple(sorted(filter(all, _READING.iter_unpack(data[_FIRST_READING:_LAYOUT_AT])))),
        layout=interpreter_layout(data),
        left_ring=stopped == 2,
        end=_read_text(data[_END:_THREAD]),
        signal=head[15],
        thread=_NUMBER.unpack_from(data, _THREAD)[0],
        place=position,
        place_step=place_step,
        judged_ns=_NUMBER.unpack_from(data, _JUDGED)[0],
        judgement=_read_text(data[_JUDGEMENT:_PLACES]),
    )


def _read_text(data: bytes) -> dict[str, Any]:
    """JSON that ends with a 0; empty where there is none."""
    with suppress(ValueError):
        return dict(json.loads(data.partition(b"\0")[0]))
    return {}


def _last_place(data: bytes) -> tuple[ThreadStack | None, int | None]:
    """The newer of the two places of a log, and the step that was under way; one that is being written has no time."""
    time_ns, step, thread, letter, text = max(_PLACE.iter_unpack(data[_PLACES:]))
    rows = [row.rsplit("\t", 2) for row in text.partition(b"\0")[0].decode(errors="replace").split("\n")]
    lines = tuple(StackLine(row[0], int(row[1]), row[2]) for row in reversed(rows) if len(row) == 3)
    if not time_ns or not lines:
        return None, None
    state = _STATES.get(chr(letter & 127), "")
    return ThreadStack("", thread, state, time_ns, lines), step if step >= 0 else None


def interpreter_layout(data: bytes | memoryview) -> dict[str, int]:
    """Where the interpreter keeps its stacks, by a log; empty where it does not say."""
    named = dict(zip(_LAYOUT_NAMES, _LAYOUT.unpack_from(data, _LAYOUT_AT), strict=True))
    return named if named["interpreter"] else {}


@cache
def _namespace_and_boot(process: int) -> tuple[int, int]:
    """The namespace in which this process has its id, and the boot of this machine, as numbers; 0 for what is unknown.

    Args:
        process: The id of this process: a child may be in another namespace.
    """
    numbers = [0, 0]
    with suppress(OSError):
        numbers[0] = Path("/proc/self/ns/pid").stat().st_ino
    with suppress(ValueError):
        numbers[1] = int(text_of(BOOT_ID).replace("-", "")[:15], 16)
    return numbers[0], numbers[1]
