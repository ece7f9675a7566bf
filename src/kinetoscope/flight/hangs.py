"""Whether a step that is overdue hangs, by what its process does meanwhile, and by what the other ranks say of theirs.

A checkpoint, an evaluation or a compilation also takes long, but something happens: threads or child processes compute or are woken, or the
program goes from line to line. A process that waits for other ranks hangs only if they hang, have ended, or all wait as well.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kinetoscope.flight import live_stacks
from kinetoscope.flight.jobs import ENDED, GONE, HANGS, RankFiles
from kinetoscope.flight.own_threads import own_threads, processor_ns
from kinetoscope.storage.system_files import text_of
from kinetoscope.tables.stacks import is_program_file

WORKS, WAITS = "works", "waits"
"""What a process does whose step is overdue, besides `jobs.HANGS`: something, or nothing but wait for other ranks."""

QUIET_S = 8.0
"""So long nothing happens in a step that hangs."""

# What works for so long hangs all the same, as does a rank that waits for ranks of other machines, which are not seen.
_LONGEST_S, _UNSEEN_S = 600.0, 120.0
# Threads that do less, or are woken less often, only look now and then whether there is something to do.
_IDLE_SHARE, _IDLE_SWITCHES_PER_S = 0.05, 20.0
_DEBUGGERS = ("/pdb.py", "/bdb.py", "/code.py", "pydevd.py", "/pydevd_bundle/", "/debugpy/")
_WAITS_FOR_A_PERSON = ("debugger", "terminal", "file")
# Functions and methods that a loop calls until something outside of it changes.
_ASKS_OR_WAITS = frozenset((
    "acquire", "done", "empty", "exists", "full", "is_alive", "is_completed", "is_file", "is_set", "locked",
    "monotonic", "perf_counter", "poll", "print", "qsize", "query", "ready", "sleep", "test", "time", "wait",
))  # fmt: skip
_OPERATORS, _OF_COLLECTIVES = "torch/_ops.py", "c10d"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Look:
    """What a process did up to a moment.

    Attributes:
        time_ns: The moment, by the monotonic clock.
        state: What the thread that marks the steps does, as in `ThreadStack`.
        lines: The stack of that thread, outermost first.
        ran_ns: Its processor time.
        others_ns: The processor time of the other threads and of child processes, without the recorder's.
        switches: How often child processes and threads that run Python began to run.
        collective: The collective that it is in; empty for none.
    """

    time_ns: int
    state: str
    lines: tuple[live_stacks.StackLine, ...]
    ran_ns: int = 0
    others_ns: int = 0
    switches: int = 0
    collective: str = ""


def judge(looks: Sequence[Look], overdue_ns: int, quiet_ns: int) -> str:
    """What a process does whose step is overdue.

    Args:
        looks: The last ones, the oldest first.
        overdue_ns: For how long it has been overdue.
        quiet_ns: For how long nothing happens in a step that hangs.

    Returns:
        `WORKS`, `WAITS` or `HANGS`.
    """
    last = first = looks[-1]
    in_debugger = any(part in line.file for line in last.lines for part in _DEBUGGERS)
    if in_debugger or any(part in last.state for part in _WAITS_FOR_A_PERSON):
        return WORKS
    for before, after in zip(reversed(looks[:-1]), reversed(looks[1:]), strict=True):
        if not _nothing_happened(before, after):
            break
        first = before
    if last.time_ns - first.time_ns >= quiet_ns:
        return WAITS if last.collective else HANGS
    return HANGS if overdue_ns >= _LONGEST_S * 1e9 else WORKS


def _nothing_happened(before: Look, after: Look) -> bool:
    """Whether a process did nothing between two looks, or went round a loop that only another thread can end."""
    for_ns = max(after.time_ns - before.time_ns, 1)
    if not after.lines or _functions(before.lines) != _functions(after.lines):
        return False
    if after.others_ns - before.others_ns > _IDLE_SHARE * for_ns:
        return False
    if _in_endless_loop(after.lines[-1]):
        return True
    is_idle = after.ran_ns - before.ran_ns <= _IDLE_SHARE * for_ns
    return is_idle and after.switches - before.switches <= _IDLE_SWITCHES_PER_S * for_ns / 1e9


def _functions(lines: tuple[live_stacks.StackLine, ...]) -> tuple[object, ...]:
    """A stack, of whose innermost function the line does not matter."""
    return (*lines[:-1], lines[-1][::2])


def _in_endless_loop(line: live_stacks.StackLine) -> bool:
    """Whether a line of the program goes round in a `while` loop that only asks, waits or counts; a `for` loop ends."""
    if not is_program_file(line.file):
        return False
    loops = [loop for loop in _loops(line.file) if loop[0] <= line.line <= loop[1]]
    return bool(loops) and max(loops)[2]


@cache
def _loops(file: str) -> list[tuple[int, int, bool]]:
    """The first and last line of each loop of a file, and whether it is a `while` loop that computes nothing; empty if the file cannot be read."""
    with suppress(SyntaxError, ValueError):
        tree = ast.parse("".join(linecache.getlines(file)))
        loops = [node for node in ast.walk(tree) if isinstance(node, (ast.While, ast.For, ast.AsyncFor))]
        return [(loop.lineno, loop.end_lineno or 0, _computes_nothing(loop)) for loop in loops]
    return []


def _computes_nothing(loop: ast.AST) -> bool:
    """Whether a loop is a `while` loop that calls nothing but what asks or waits, and multiplies no matrices."""
    calls = (node.func for node in ast.walk(loop) if isinstance(node, ast.Call))
    called = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
    has_product = any(isinstance(node, ast.MatMult) for node in ast.walk(loop))
    return isinstance(loop, ast.While) and called <= _ASKS_OR_WAITS and not has_product


def is_hang(verdict: str, other_verdicts: Collection[str], ranks: int, overdue_ns: int) -> bool:
    """Whether a rank hangs, with the others.

    Args:
        verdict: What it does, as `judge` says.
        other_verdicts: The same of the other ranks that can be seen; `ENDED` and `GONE` for those that have ended.
        ranks: How many ranks the job has.
        overdue_ns: For how long the step of this rank has been overdue.
    """
    if verdict != WAITS:
        return verdict == HANGS
    all_wait = len(other_verdicts) + 1 >= ranks or overdue_ns >= _UNSEEN_S * 1e9
    return not {HANGS, GONE, ENDED}.isdisjoint(other_verdicts) or (all_wait and WORKS not in other_verdicts)


def verdict_of(ring: RankFiles) -> str:
    """What a rank does, by its files: as its process has judged itself, or `WORKS`."""
    log = ring.log
    if ring.state in (HANGS, GONE, ENDED) or log is None:
        return ring.state
    return str(log.judgement.get("verdict", WORKS)) if log.judged_ns > log.began_ns > 0 else WORKS


class HangWatch:
    """Looks at this process while a step is overdue."""

    def __init__(
        self, began_ns: int, thread: int, layout: live_stacks.Layout, quiet_s: float = QUIET_S
    ) -> None:
        """Begin to look.

        Args:
            began_ns: When the step began, by the monotonic clock.
            thread: The thread that marks the steps, by the system's id; 0 for the main one.
            layout: Where the interpreter keeps its stacks.
            quiet_s: For how long nothing happens in a step that hangs.
        """
        self.began_ns = began_ns
        self._process = os.getpid()
        self._thread, self._layout = thread or self._process, layout
        self._quiet_ns = int(quiet_s * 1e9)
        self._looks: deque[Look] = deque(maxlen=64)
        self._ours = {*own_threads(), threading.get_native_id()}
        self.overdue_ns = 0

    def judge(self, noticed_ns: int) -> dict[str, Any]:
        """Look at the stacks again; return what the process does and the facts of the collective it is in. `noticed_ns`: when the step was first overdue."""
        call = collective_call(self._thread)
        now_ns = time.monotonic_ns()
        stacks = live_stacks.live_stacks(self._process, self._layout)
        main = live_stacks.stack_of(stacks, self._thread)
        # Those of torch's libraries look for work a hundred times a second, as some of the program's.
        woken = {stack.thread for stack in stacks if stack.lines and not _in_endless_loop(stack.lines[-1])}
        others_ns, switches = self._work(woken)
        name = str(call.get("collective") or (main.collective if main else "") or "")
        state, lines = (main.state, main.lines) if main else ("", ())
        self._looks.append(Look(now_ns, state, lines, processor_ns(self._thread), others_ns, switches, name))
        self.overdue_ns = now_ns - noticed_ns
        return {"verdict": judge(list(self._looks), self.overdue_ns, self._quiet_ns), **call}

    def _work(self, woken: set[int]) -> tuple[int, int]:
        """The processor time of the other threads and of child processes, and how often these and some threads began to run."""
        others_ns = time.process_time_ns() - sum(map(processor_ns, {*self._ours, self._thread}))
        switches = sum(_switches(Path(f"/proc/self/task/{task}")) for task in woken - self._ours)
        children = live_stacks.children_of(self._process)
        for child in children:
            children += live_stacks.children_of(child)
            switches += _switches(Path(f"/proc/{child}"))
            with suppress(ValueError, IndexError):
                ticks = text_of(Path(f"/proc/{child}/stat")).rpartition(")")[2].split()[11:13]
                others_ns += sum(map(int, ticks)) * 1_000_000_000 // _TICKS
        return others_ns, switches


def _switches(folder: Path) -> int:
    return int("".join(text_of(folder / "schedstat").split()[2:]) or 0)


def collective_call(thread: int) -> dict[str, Any]:
    """What this process knows of the collective that a thread is in: its name, the sequence number and the shape; empty for none."""
    # In a forked process, the main thread may still have its parent's native id.
    main = threading.main_thread()
    ids = {other.native_id: other.ident for other in threading.enumerate()} | {os.getpid(): main.ident}
    frame = sys._current_frames().get(ids.get(thread) or 0)
    call: dict[str, Any] = {}
    while frame is not None:
        file, name, values = frame.f_code.co_filename, frame.f_code.co_name, frame.f_locals
        if file.endswith(_OPERATORS):
            name = str(values.get("self"))
        # The outermost one, which the program calls.
        if live_stacks.is_collective(file, name) or (file.endswith(_OPERATORS) and _OF_COLLECTIVES in name):
            call = {"collective": name}
            with suppress(Exception):
                group = values.get("group") or sys.modules["torch.distributed"].group.WORLD
                call["sequence"] = int(group._get_sequence_number_for_group())  # noqa: SLF001  (torch's own)
            with suppress(Exception):
                tensors = (value for value in values.values() if hasattr(value, "untyped_storage"))
                call["shape"] = list(next(tensors).shape)
        frame = frame.f_back
    return call
