"""The processes that a recorded program starts: how they are found, and how their recordings join the program's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import KinetoscopeError
from kinetoscope.launch import child_notes, child_places
from kinetoscope.launch.child_environment import ChildEnvironment
from kinetoscope.launch.torch_import import TorchImport

if TYPE_CHECKING:
    from kinetoscope.launch.options import Wanted
    from kinetoscope.launch.recording import ProgramRecording
    from kinetoscope.trace import Trace

# From the note of a child into the metadata of its trace.
_TOLD = ("parent_process", "ancestors", "began", "command", "executable")


@dataclass(frozen=True)
class Joined:
    """A trace of the program and its children.

    Attributes:
        trace: The trace; None where no process recorded anything.
        children: How many children are in it.
        notes: What else there is to say of them, in words.
    """

    trace: Trace | None
    children: int
    notes: tuple[str, ...]


class Children:
    """The processes that the program of one run starts."""

    def __init__(self, wanted: Wanted) -> None:
        """Nothing is done before `begin`."""
        self._wanted = wanted
        self._folder = wanted.children_folder
        # Those that are not over yet; their recordings stay where they are.
        self._running: list[str] = []

    @property
    def count(self) -> int:
        """How many have begun to record."""
        try:
            return sum(entry.endswith(".recording") for entry in os.listdir(self._folder))
        except OSError:
            return 0

    def begin(self, leave: Callable[[int], None]) -> None:
        """See to it that they find us, and call `leave` with the exit status when the program ends by `os._exit`.

        Raises:
            ArgumentError: They could not, with this name of the files.
            OSError: Their folder cannot be made.
        """
        child_places.prepare(self._folder, self._wanted)
        ChildEnvironment(child_places.site_folder(self._folder)).carry()
        from kinetoscope.launch.child import before_leaving

        before_leaving(leave)

    def follow_forks(self, recording: ProgramRecording) -> None:
        """Torch is there: record what forks from this process."""
        from kinetoscope.launch.child import Following

        Following(self._folder, self._wanted, recording).watch_forks()

    def follow_this_fork(self) -> None:
        """Record this process, a fork of the program's from before it had torch, once it imports torch itself."""

        def follow() -> None:
            from kinetoscope.launch.child import FORK, follow

            follow(str(self._folder), FORK)

        TorchImport(follow).wait()

    def stop_following(self) -> None:
        """Follow nothing that starts from now on."""
        child_places.stop_following(self._folder)

    def join(self, own: Trace | None, program: str) -> Joined:
        """Put what the children recorded beside what the program did.

        Args:
            own: The trace of the program itself, if it has one.
            program: What the program is called.

        Returns:
            The trace of all, on one clock; children that ran no operator are not in it.
        """
        from kinetoscope.combine.processes import beside

        notes = child_notes.read_all(str(self._folder)) if self._folder.is_dir() else {}
        problems: list[str] = []
        found = []
        for name, note in notes.items():
            trace = self._open(name, note, problems)
            if trace is not None:
                found.append(trace)
        found.sort(key=_order)
        recorded = {trace.info.get("process") for trace in found} | (
            {os.getpid()} if own is not None else set()
        )
        for trace in found:
            descent = trace.info.get("ancestors", [])
            trace.info["recorded_parent"] = next((one for one in descent if one in recorded), None)
        if own is not None and found:
            own.info["process_name"] = program
        every = [*([own] if own is not None else []), *found]
        joined = beside(every) if len(every) > 1 else every[0] if every else None
        if joined is not None and own is None:
            # Of the first child, and not of all; `processes` has it.
            for key in (*_TOLD, "recorded_parent", "ended") if len(every) > 1 else ():
                joined.info.pop(key, None)
        folder = self._wanted.shown(self._folder)
        return Joined(joined, len(found), tuple(_in_words(problems, len(self._running), folder)))

    def clear(self) -> None:
        """Remove what is in the trace now, but nothing of processes that still run."""
        for entry in os.listdir(self._folder) if self._folder.is_dir() else ():
            if not entry.startswith(tuple(f"{name}." for name in self._running)):
                (self._folder / entry).unlink(missing_ok=True)
        if not self._running:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _open(self, name: str, note: dict[str, Any], problems: list[str]) -> Trace | None:
        """The trace of one child; None where it has recorded nothing, and then `problems` may say why."""
        from kinetoscope.combine.extend import with_more
        from kinetoscope.launch.launch import without_launcher
        from kinetoscope.model.losses import NOT_STOPPED
        from kinetoscope.trace import open as open_any

        if problem := note.get("problem"):
            problems.append(str(problem))
        path = self._folder / str(note.get("recording", f"{name}.recording"))
        if not path.is_file():
            if note.get("in_memory") and "ended" not in note:
                problems.append(
                    "it was killed, and torch's collector keeps its recording in memory until the end"
                )
            return None
        try:
            trace = open_any(path)
        except (KinetoscopeError, OSError) as error:
            problems.append(str(error))
            return None
        if len(trace.columns("spans")) == 0 and len(trace.columns("allocations")) == 0:
            trace.close()
            return None
        # One that has only just begun has a note that says nothing yet; the recording knows the process, too.
        ticks = child_notes.began(int(trace.info.get("process", 0)))
        runs = "ended" not in note and ticks != 0 and note.get("began_ticks", ticks) == ticks
        if runs:
            self._running.append(name)
        trace.info.update({key: note[key] for key in _TOLD if key in note})
        if os.getpid() in (descent := trace.info.get("ancestors", [])):
            trace.info["ancestors"] = descent[: descent.index(os.getpid()) + 1]
        if isinstance(rank := note.get("rank"), int):
            trace.info.setdefault("rank", rank)
        if note.get("name"):
            trace.info["process_name"] = note["name"]
        terminated = "ended" not in note and not runs and self._was_terminated(trace, note)
        ended = "killed, crashed or became another program"
        ended = "still ran" if runs else "terminated by its parent" if terminated else ended
        trace.info["ended"] = note.get("ended", ended)
        if terminated:
            # That is how `multiprocessing` ends its daemons: whatever they had recorded by then is all there is.
            trace = with_more(trace, info={"complete": True}, without_losses=(NOT_STOPPED,))
        return without_launcher(trace)

    def _was_terminated(self, trace: Trace, note: dict[str, Any]) -> bool:
        """Whether a child was ended by the process that started it, as opposed to by anybody else."""
        process, ticks = trace.info.get("process"), note.get("began_ticks")
        if type(process) is not int or type(ticks) is not int:
            return False
        return child_notes.was_terminated(str(self._folder), process, ticks)


def let_go_of_outer_run() -> None:
    """Where this process is itself a child that somebody follows: record it here, and not there."""
    outer = sys.modules.get("kinetoscope_child_start")
    if outer is not None:
        outer.give_up()


def _order(trace: Trace) -> tuple[int, int]:
    """The ranks in their order, each with its own children, and else who began first."""
    rank, began = trace.info.get("rank"), trace.info.get("start_realtime_ns")
    return (rank if isinstance(rank, int) else -1, began if isinstance(began, int) else 0)


def _in_words(problems: list[str], running: int, folder: str) -> list[str]:
    """What the user has to know of children that are not, or not wholly, in the trace."""
    told = []
    for problem in dict.fromkeys(problems):
        count = problems.count(problem)
        told.append(f"{count} {'process' if count == 1 else 'processes'} could not be recorded: {problem}")
    if running:
        what = "process still runs" if running == 1 else "processes still run"
        told.append(f"{running} {what}: recorded up to now; what comes goes into a file in {folder}")
    return told
