"""The Python stacks of a process as they are now, read from its memory: nothing in it has to answer, and nothing in it changes.

The log of steps says where its interpreter keeps threads and frames (`native/recorder/frame_layout.h`). A stack that changes while it is read
fails a check, and is read again. The system lets a user read own processes, except where it only allows children (Yama, some containers).
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kinetoscope.model import units
from kinetoscope.storage.system_files import text_of
from kinetoscope.tables.stacks import is_library_file, is_program_file

Layout = Mapping[str, int]

_ATTEMPTS = 20
_MOST_FRAMES = 2000
_MOST_BYTES = 1 << 22
_FIRST_C_OWNER = 3
CRASHED = "crashed"
"""The state of a thread whose signal ends the process."""

_STOPPED = {"T": "stopped by a signal (SIGSTOP)", "t": "stopped by a debugger", "Z": "ended"}
# What the kernel's function that a thread waits in is called.
_WAITS = {
    "a lock": ("futex",),
    "sleep": ("sleep",),
    "events": ("do_wait_intr", "poll", "select"),
    "a process": ("do_wait",),
    "a pipe": ("pipe", "fifo", "wait_for_partner"),
    "a socket": ("sk_", "skb", "unix", "inet"),
    "the terminal": ("tty",),
    "a file": ("folio", "page", "jbd2", "fsync"),
}
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
_DISTRIBUTED = ("torch/distributed/", "torch/nn/parallel/")
_LOADER = ("torch/utils/data/_utils/worker.py", "_worker_loop")
# What ends by what a child process does.
_AWAITED = ("by a process", "by a pipe", "by events")
_MOST_OTHERS, _MOST_COMMAND = 4, 60
# Functions of Python between the one of torch.distributed that waits and the innermost one.
_NEAR = 3


class StackLine(NamedTuple):
    """A line of a stack: the path of the file, the number of the line, and the function's qualified name."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True)
class ThreadStack:
    """The stack of a thread that runs Python.

    Attributes:
        name: The name of the thread.
        thread: The system's id; of the main thread it is that of the process.
        state: `running`, `blocked by a lock`, `stopped by a signal (SIGSTOP)` and so on.
        time_ns: When it was read or sampled, by the monotonic clock.
        lines: The stack, outermost first.
    """

    name: str
    thread: int
    state: str
    time_ns: int
    lines: tuple[StackLine, ...]

    @property
    def program_line(self) -> str | None:
        """The program's innermost line, not one of a library or of Python; the innermost one where there is none."""
        return program_line(self.lines)

    @property
    def collective(self) -> str | None:
        """What it waits in for other ranks: a function of torch.distributed, or a backward pass, which may wait for DDP's."""
        if not self.state.startswith("blocked") or not self.lines:
            return None
        innermost = self.lines[-1]
        if innermost.file.endswith(_BACKWARD[0]) and innermost.function == _BACKWARD[1]:
            return "backward"
        named = [line.function for line in self.lines if is_collective(line.file, line.function)]
        # The outermost one, which the program calls.
        if named or not any(part in line.file for line in self.lines[-_NEAR:] for part in _DISTRIBUTED):
            return named[0] if named else None
        return innermost.function.rpartition(".")[2]

    def text(self, now_ns: int) -> str:
        """As lines of text; `now_ns` is the monotonic clock."""
        age_ns = max(now_ns - self.time_ns, 0)
        when = f" when it was sampled {units.duration(age_ns)} ago" if age_ns else ""
        head = f"thread {self.name or self.thread} ({self.thread}), {self.state}{when}"
        return "\n".join([head, *(f"  {line}" for line in self.lines)])


@dataclass(frozen=True)
class Sight:
    """Where a process is at a moment.

    Attributes:
        line: The program's innermost line of the thread, `file:line function`.
        thread_state: What the thread does; empty for the caller's own.
        collective: What it waits in for other ranks; None if it does not.
        workers: The data loader's workers that are in the program's code, each in words.
        thread: The system's id of the thread; None for the main one.
        may_wait_for: What else the thread may wait for, each in words: other threads, and child processes.
    """

    line: str | None
    thread_state: str
    collective: str | None = None
    workers: tuple[str, ...] = ()
    thread: int | None = None
    may_wait_for: tuple[str, ...] = ()


def sight(process: int, layout: Layout, thread: int = 0) -> Sight | None:
    """Look where a process is; None if its memory cannot be read, or it has no Python stack.

    Args:
        process: The id of the process.
        layout: Where its interpreter keeps what is read, from its log of steps.
        thread: The one to look at, by the system's id; 0, or one that has ended: the main thread.
    """
    stacks = live_stacks(process, layout)
    main = stack_of(stacks, thread) or stack_of(stacks, process)
    if main is None:
        state = _STOPPED.get(state_letter(process, process))
        return None if state is None else Sight(None, state)
    threads = [stack for stack in stacks if stack is not main and _in_program(stack.lines)]
    if threads and not _in_program(main.lines) and thread in (0, process):
        # At the end of a program, Python waits for its other threads.
        main = threads.pop(0)
    state = "" if main.thread == threading.get_native_id() else main.state
    other_thread = None if main.thread == process else main.thread
    workers, awaited = _child_processes(process, layout)
    if main.state.endswith("by a lock"):
        awaited = [f"thread {stack.thread} {stack.state} at {stack.program_line}" for stack in threads]
    elif not main.state.endswith(_AWAITED):
        awaited = []
    awaited = awaited[:_MOST_OTHERS]
    return Sight(main.program_line, state, main.collective, tuple(workers), other_thread, tuple(awaited))


def is_collective(file: str, function: str) -> bool:
    """Whether a function is one of torch's collectives."""
    return file.endswith(_COLLECTIVES) and function.isidentifier() and function != "wrapper"


def _in_program(lines: tuple[StackLine, ...]) -> bool:
    return any(is_program_file(line.file) for line in lines)


def sight_of_exception(error: BaseException | None) -> Sight:
    """Where an exception was raised: the program's innermost line of its traceback, or without one of the stack of the caller."""
    frames = traceback.extract_stack() if error is None else traceback.extract_tb(error.__traceback__)
    return Sight(
        program_line(tuple(StackLine(frame.filename, frame.lineno or 0, frame.name) for frame in frames)), ""
    )


def thread_stacks() -> dict[str, list[str]]:
    """The lines of each thread's stack, outermost first, by the name and id of the thread; without the calling one.

    The main thread comes first, and those of Kinetoscope last.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()
    # This frame must not hold itself: that would keep alive what its callers refer to.
    del frames[threading.get_ident()]
    first_main = sorted(
        frames, key=lambda thread: (thread != main, names.get(thread, "").startswith("kinetoscope"), thread)
    )
    return {
        f"{names.get(thread, '')} ({thread})": traceback.format_stack(frames[thread]) for thread in first_main
    }


def live_stacks(process: int, layout: Layout) -> list[ThreadStack]:
    """Read the stacks of all Python threads of a process, the main thread first; empty if its memory cannot be read."""
    if not layout:
        return []
    with suppress(OSError), open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        for _ in range(_ATTEMPTS):
            with suppress(OSError, _InconsistentError):
                stacks = _Interpreter(memory.fileno(), layout).stacks(process)
                return sorted(stacks, key=lambda stack: (stack.thread != process, stack.thread))
    return []


def stack_of(stacks: list[ThreadStack], thread: int) -> ThreadStack | None:
    """The stack of a thread by the system's id; None without one."""
    return next((stack for stack in stacks if stack.thread == thread), None)


def program_line(lines: tuple[StackLine, ...]) -> str | None:
    """The program's innermost line of a stack, not one of a library or of Python; the innermost one where there is none."""
    for passes in (is_program_file, lambda file: not is_library_file(file), bool):
        for line in reversed(lines):
            if passes(line.file):
                return str(line)
    return None


def _child_processes(process: int, layout: Layout) -> tuple[list[str], list[str]]:
    """The workers of data loaders, forked by a process, that are in the program's code: others wait for an index, or for room; and its other children."""
    workers, other_children = [], []
    number = 0
    for child in children_of(process):
        stack = stack_of(live_stacks(child, layout), child)
        inside = [(line.file.endswith(_LOADER[0]), line.function) for line in stack.lines] if stack else []
        if stack is None or (True, _LOADER[1]) not in inside:
            command = text_of(Path(f"/proc/{child}/cmdline")).replace("\0", " ").strip()
            where = f" at {stack.program_line}" if stack else ""
            other_children.append(f"process {child} ({command[:_MOST_COMMAND]}){where}")
            continue
        lines = stack.lines[inside.index((True, _LOADER[1])) + 1 :]
        # In the program's code, or wherever it was stopped; else it waits for indices, or for room in the queue.
        if _in_program(lines) or stack.state in _STOPPED.values():
            where = program_line(lines) or program_line(stack.lines) or ""
            workers.append(f"data loader worker {number} (process {child}) {stack.state} at {where}")
        number += 1
    return workers, other_children


def children_of(process: int) -> list[int]:
    """The processes that a process has started."""
    children: list[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, file.read_text().split())
    return sorted(children)


def state_letter(process: int, thread: int) -> str:
    """What a thread does, as the letter that the system has for it; empty if there is none."""
    return _read_task(process, thread, "stat").rpartition(")")[2].strip()[:1]


def _read_task(process: int, thread: int, file: str) -> str:
    """What the system says of a thread; empty where it does not."""
    return text_of(Path(f"/proc/{process}/task/{thread}/{file}"))


class _InconsistentError(Exception):
    """What was read changed meanwhile."""


class _Interpreter:
    """Reads an interpreter's threads and frames through `/proc/PID/mem`; what is not mapped is an OSError."""

    def __init__(self, file: int, layout: Layout) -> None:
        self._file, self._layout = file, layout
        self._codes: dict[int, tuple[str, str, list[tuple[int, int, int | None]], int]] = {}

    def stacks(self, process: int) -> list[ThreadStack]:
        layout, stacks, now_ns = self._layout, [], time.monotonic_ns()
        interpreter = layout["interpreter"]
        state = self._number(interpreter + layout["newest_thread"])
        while state:
            if self._number(state + layout["thread_interpreter"]) != interpreter:
                raise _InconsistentError
            thread = self._number(state + layout["thread_system"])
            lines = self._lines(state)
            if thread and lines:
                name = "main" if thread == process else _read_task(process, thread, "comm").strip()
                does = self._state(process, thread, state)
                stacks.append(ThreadStack(name, thread, does, now_ns, lines))
            state = self._number(state + layout["thread_next"])
        return stacks

    def _read(self, address: int, count: int) -> bytes:
        if not 0 < address < 1 << 63 or not 0 <= count <= _MOST_BYTES:
            raise _InconsistentError
        data = os.pread(self._file, count, address)
        if len(data) != count:
            raise _InconsistentError
        return data

    def _number(self, address: int, count: int = 8) -> int:
        return int.from_bytes(self._read(address, count), "little")

    def _lines(self, state: int) -> tuple[StackLine, ...]:
        layout, lines, owner = self._layout, [], 0
        frame = self._number(state + layout["thread_frame"])
        if layout["with_cframe"] and frame:
            frame = self._number(frame + layout["cframe_current"])
        for _ in range(_MOST_FRAMES):
            if not frame:
                break
            owner = self._number(frame + layout["owner"], 1)
            if owner < _FIRST_C_OWNER:
                code = self._number(frame + layout["code"]) & layout["pointer_mask"]
                lines.append(self._line(code, self._number(frame + layout["instruction"])))
            frame = self._number(frame + layout["previous"])
        if 0 < owner < _FIRST_C_OWNER:
            raise _InconsistentError
        return tuple(reversed(lines))

    def _line(self, code: int, instruction: int) -> StackLine:
        """A frame's line, by its code object and the instruction that it is at."""
        layout = self._layout
        if code not in self._codes:
            if self._number(code + layout["object_type"]) != layout["code_type"]:
                raise _InconsistentError
            table = self._number(code + layout["code_lines"])
            size = self._number(table + layout["object_size"])
            first_line = self._number(code + layout["code_first_line"], 4)
            rows = _line_rows(self._read(table + layout["bytes_data"], size), first_line)
            file, function = (
                self._text(self._number(code + layout[name])) for name in ("code_file", "code_function")
            )
            self._codes[code] = (file, function, rows, first_line)
        file, function, rows, first_line = self._codes[code]
        offset = instruction - code - layout["code_first_instruction"]
        units = self._number(code + layout["object_size"])
        if not -2 <= offset < 2 * units:
            raise _InconsistentError
        line = next((line for begin, end, line in rows if begin <= offset < end), None)
        return StackLine(file, line or first_line, function)

    def _text(self, address: int) -> str:
        layout = self._layout
        if self._number(address + layout["object_type"]) != layout["text_type"]:
            raise _InconsistentError
        flags = self._number(address + layout["text_flags"], 4) >> layout["text_kind_shift"]
        width, is_ascii = flags & 7, flags >> 4 & 1
        if width not in (1, 2, 4):
            raise _InconsistentError
        start = address + layout["text_bytes" if is_ascii else "text_wide_bytes"]
        data = self._read(start, width * self._number(address + layout["object_size"]))
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "replace")

    def _state(self, process: int, thread: int, state: int) -> str:
        """What a thread does, by the system and by who has the GIL."""
        letter = state_letter(process, thread)
        if letter in _STOPPED:
            return _STOPPED[letter]
        layout = self._layout
        gil = layout["gil"]
        has_gil = (
            self._number(gil + layout["gil_locked"], 4) == 1
            and self._number(gil + layout["gil_holder"]) == state
        )
        if letter == "R":
            return "running"
        with suppress(ValueError):
            words = _read_task(process, thread, "syscall").split()
            if len(words) > 1 and 0 <= int(words[1], 16) - gil < layout["gil_bytes"]:
                return "waiting for the GIL"
        where = _read_task(process, thread, "wchan")
        waits = (f" by {name}" for name, parts in _WAITS.items() if any(part in where for part in parts))
        return f"blocked{next(waits, '')}" + (" in C code that holds the GIL" if has_gil else "")


def _line_rows(table: bytes, first_line: int) -> list[tuple[int, int, int | None]]:
    """The rows of a code object's table of lines: from which byte of the code to which, and the line."""
    return list((lambda: None).__code__.replace(co_linetable=table, co_firstlineno=first_line).co_lines())
