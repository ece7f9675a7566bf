"""The processes that a recorded program starts: how they find the run, and how their recordings are merged."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kinetoscope._after_import import AfterImport
from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope.launcher import child_hook, notes

if TYPE_CHECKING:
    from pathlib import Path

    from kinetoscope.launcher.options import LaunchOptions
    from kinetoscope.launcher.recording import ProgramRecording
    from kinetoscope.model.losses import Loss
    from kinetoscope.trace import Trace

# Facts in the note of a child, by their key in the metadata of its trace.
_NOTED = ("process_name", "rank", "ended", "processor_s")
# CPU time that a Python with torch takes to end after its recording: 0.4 to 0.9 s.
_TEARDOWN_S = 1.0
# Metadata of one process that would be wrong for a trace without the program's own.
_OF_ONE = ("parent_process", "ancestors", "began", "command", "executable", "recorded_parent", "ended")


class Children:
    """The processes that the program of one run starts."""

    def __init__(self, options: LaunchOptions) -> None:
        """Do nothing before `begin`."""
        self._options = options
        self._folder = options.children_folder
        # Created at the start, or before the first spawned process if only those are recorded.
        self._has_folder = False
        self._problems: Counter[str] = Counter()
        # CPU time of the processes whose recordings were merged.
        self.processor_s = 0.0
        # The notes of those that still run; their recordings stay where they are.
        self._running: list[str] = []

    @property
    def count(self) -> int:
        """How many child recordings there are."""
        try:
            return sum(entry.endswith(".recording") for entry in os.listdir(self._folder))
        except OSError:
            return 0

    def begin(self, before_os_exit: Callable[[int], None]) -> None:
        """Follow the processes that this one starts: all of them, or only those that `multiprocessing` spawns.

        Args:
            before_os_exit: Called with the exit status if the program ends with `os._exit`.

        Raises:
            ArgumentError: The folder for their recordings exists and is not ours.
            OSError: It cannot be created.
        """
        if not self._options.children:
            AfterImport("multiprocessing.spawn", self._follow_spawned).wait()
            return
        if os.pathsep in child_hook.START_UP_FOLDER:
            raise ArgumentError(
                f"Child processes cannot be recorded: Kinetoscope is installed in {child_hook.START_UP_FOLDER!r}, and PYTHONPATH cannot contain a path "
                f"with a {os.pathsep!r} in it: install it elsewhere."
            )
        self._make_folder()
        child_hook.set_variables(str(self._folder))
        child_hook.watch(str(self._folder))
        from kinetoscope.launcher import child

        child.before_os_exit(before_os_exit)

    def follow_forks(self, recording: ProgramRecording) -> None:
        """Record the forks of this process, which has just imported torch."""
        from kinetoscope.launcher.child import FollowedProcess

        FollowedProcess(self._folder, self._options, recording).watch_forks()

    def follow_this_fork(self) -> None:
        """Record this fork, made before the program imported torch, once it imports torch itself."""
        AfterImport("torch", lambda: child_hook.record(str(self._folder), "fork")).wait()

    def _make_folder(self) -> None:
        _make_folder(self._folder, self._options)
        self._has_folder = True

    def _follow_spawned(self) -> None:
        """Record the processes that `multiprocessing` spawns: it starts their Pythons with a command line of one function."""
        spawn = sys.modules["multiprocessing.spawn"]
        own_command_line = spawn.get_command_line
        program = os.getpid()

        @functools.wraps(own_command_line)
        def command_line(**arguments: Any) -> list[str]:
            words: list[str] = own_command_line(**arguments)
            if os.getpid() != program:
                return words
            try:
                if not self._has_folder:
                    self._make_folder()
                return child_hook.spawned_with_hook(words, str(self._folder))
            except (KinetoscopeError, OSError) as error:
                self._problems[str(error)] += 1
            return words

        spawn.get_command_line = command_line  # type: ignore[attr-defined]

    def wait_for_spawned(self) -> None:
        """If spawned processes are recorded, let `multiprocessing` end them now; Python would do so a moment later."""
        if self._options.children or not self._has_folder:
            return
        from multiprocessing import active_children, util

        for process in active_children():
            if process.daemon and process.pid is not None:
                notes.mark_terminated(str(self._folder), process.pid)
        util._exit_function()  # type: ignore[attr-defined]  # noqa: SLF001  (Python's own)

    def stop_following(self) -> None:
        """Stop following new processes."""
        # The program has changed its user (see `join`), or the folder was never made.
        with contextlib.suppress(PermissionError, NotADirectoryError):
            (self._folder / child_hook.OPTIONS_FILE).unlink(missing_ok=True)

    def _is_open(self) -> bool:
        """Whether the folder can still be read, which may fail after `os.setuid`."""
        return os.access(self._folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)

    def join(self, program_trace: Trace | None, program: str) -> tuple[Trace | None, list[str]]:
        """Merge the recordings of the children into the program's trace.

        Args:
            program_trace: The trace of the program itself, if it has one.
            program: The program's name.

        Returns:
            The merged trace without children that ran no operator, or None if no process recorded anything; and messages that are not in its
            `losses`, which count the processes that could not be recorded or followed.
        """
        from kinetoscope.combine.extend import extend
        from kinetoscope.combine.processes import merge_processes
        from kinetoscope.model.losses import Loss

        all_notes = notes.read_all(str(self._folder)) if self._is_open() else {}
        problems = Counter(self._problems)
        if self._folder.is_dir() and not self._is_open():
            problems[
                f"the program changed its user, and may not read {self._options.shown(self._folder)} now: what its children recorded "
                "is there, for the former user"
            ] += 1
        child_traces = []
        for name, note in all_notes.items():
            trace = self._open(name, note, problems)
            if trace is not None:
                child_traces.append(trace)
        child_traces.sort(key=_order)
        self.processor_s = sum(trace.info.pop("processor_s", 0.0) + _TEARDOWN_S for trace in child_traces)
        recorded = {trace.run_info.process for trace in child_traces} | (
            {os.getpid()} if program_trace is not None else set()
        )
        for trace in child_traces:
            descent = trace.run_info.ancestors
            trace.info["recorded_parent"] = next((pid for pid in descent if pid in recorded), None)
        if program_trace is not None and child_traces:
            program_trace.info["process_name"] = program
        every = [*([program_trace] if program_trace is not None else []), *child_traces]
        joined = merge_processes(every) if len(every) > 1 else every[0] if every else None
        if joined is not None and program_trace is None:
            # These are of the first child only; `processes` has those of all.
            for key in _OF_ONE if len(every) > 1 else ():
                joined.info.pop(key, None)
        counts = {"processes_not_recorded": problems, "processes_not_followed": self._not_followed()}
        losses = [
            Loss.of(code, count, why=why)
            for code, reasons in counts.items()
            for why, count in reasons.items()
        ]
        if joined is not None and losses:
            joined = extend(joined, losses=losses)
        folder = self._options.shown(self._folder)
        return joined, _messages(losses if joined is None else [], self._running, folder)

    def clear(self) -> None:
        """Remove the files that are merged into the trace, except those of processes that still run."""
        if not self._is_open():
            return
        for entry in os.listdir(self._folder):
            if not entry.startswith(tuple(f"{name}." for name in self._running)):
                (self._folder / entry).unlink(missing_ok=True)
        if not self._running:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _not_followed(self) -> dict[str, int]:
        try:
            lines = (self._folder / child_hook.UNFOLLOWED_FILE).read_text(encoding="utf-8").split()
        except OSError:
            return {}
        counts = {}
        for reason, count in Counter(lines).items():
            why = f"They were started with {reason}, which makes Python ignore the hook"
            if reason == child_hook.NO_VARIABLES:
                why = f"Their environment lacked {child_hook.VARIABLE} or its entry in PYTHONPATH"
            counts[f"{why}: if they used PyTorch, that is not recorded."] = count
        return counts

    def _open(self, name: str, note: dict[str, Any], problems: Counter[str]) -> Trace | None:
        """The trace of one child; None if there is none, with a reason in `problems` where it is known."""
        from kinetoscope.combine.extend import extend
        from kinetoscope.launcher.own_frames import without_launcher
        from kinetoscope.model.hierarchy import garbage_collections
        from kinetoscope.model.losses import NOT_STOPPED
        from kinetoscope.trace import open as open_any

        if problem := note.get("problem"):
            problems[str(problem)] += 1
        path = self._folder / str(note.get("recording", f"{name}.recording"))
        if not path.is_file():
            if note.get("in_memory"):
                problems[
                    "it was killed, and torch's collector keeps a recording in memory until it ends"
                ] += 1
            return None
        try:
            trace = open_any(path)
        except (KinetoscopeError, OSError) as error:
            problems[str(error)] += 1
            return None
        # A process that only imports torch, such as the fork server, does nothing but collect garbage.
        if garbage_collections(trace).all() and len(trace.columns("allocations")) == 0:
            trace.close()
            return None
        trace.info.update({key: note[key] for key in _NOTED if key in note})
        # The note of a process that has just begun is empty; its recording has the process id, too.
        ticks = notes.start_ticks(trace.run_info.process or 0)
        # A process writes how it ends just before it closes its recording, and may be terminated in between.
        ended = note.get("ended") or (trace.run_info.ended if trace.run_info.complete else "")
        runs = not ended and ticks != 0 and note.get("start_ticks", ticks) == ticks
        if runs:
            self._running.append(name)
        if os.getpid() in (descent := trace.run_info.ancestors):
            trace.info["ancestors"] = list(descent[: descent.index(os.getpid()) + 1])
        process, started = trace.run_info.process or 0, note.get("start_ticks", 0)
        terminated = not ended and not runs and notes.was_terminated(str(self._folder), process, started)
        if not ended:
            otherwise = (
                "terminated by its parent" if terminated else "killed, crashed or became another program"
            )
            trace.info["ended"] = "still running" if runs else otherwise
        if terminated:
            # `multiprocessing` ends its daemons this way, so what they recorded is complete.
            trace = extend(trace, info={"complete": True}, without_losses=(NOT_STOPPED,))
        return without_launcher(trace)


def _make_folder(folder: Path, options: LaunchOptions) -> None:
    """Create the folder of a run, private to its user, replacing that of an earlier run; ArgumentError if something else is there."""
    if os.path.lexists(folder):
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            raise ArgumentError(
                f"Child processes cannot be recorded in {folder}, which is a link, a file or another user's folder: remove it, or "
                "choose another output (-o PREFIX)."
            )
        if any(not _is_ours(entry) for entry in folder.iterdir()):
            raise ArgumentError(
                f"Child processes cannot be recorded in {folder}, which contains other files: move them, or choose another output "
                "(-o PREFIX)."
            )
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Fails if another user has just created it.
    folder.mkdir(mode=0o700)
    status = folder.lstat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
        raise ArgumentError(
            f"Child processes cannot be recorded in {folder}: its file system does not keep other users out of a folder. "
            "Choose another place for the output (-o PREFIX)."
        )
    (folder / child_hook.OPTIONS_FILE).write_text(options.to_json(), encoding="utf-8")


def _is_ours(path: Path) -> bool:
    """Whether an earlier run may have written this: one that was killed, or left children running."""
    written = {".json", ".recording", ".ktrace", ".terminated"}
    return path.name in (child_hook.OPTIONS_FILE, child_hook.UNFOLLOWED_FILE) or not written.isdisjoint(
        path.suffixes
    )


def _order(trace: Trace) -> tuple[int, int]:
    """By rank, a rank's children after it, then by start."""
    run = trace.run_info
    return (-1 if run.rank is None else run.rank, run.start_realtime_ns or 0)


def _messages(losses: list[Loss], running: list[str], folder: str) -> list[str]:
    from kinetoscope.model.losses import counted

    messages = [f"{counted(loss.what, loss.count)}: {loss.why}" for loss in losses]
    if running:
        count = len(running)
        state = "process is still running" if count == 1 else "processes are still running"
        messages.append(f"{count} {state}: the trace ends now, and later records go to a file in {folder}")
    return messages
