"""A process that a recorded program started, while it records itself: by fork, or as a Python of its own.

What is in a fork is told in docs/children.md. Nothing here may harm the job: whatever fails becomes a line in the note that
this process leaves, and the process goes on unrecorded.
"""

from __future__ import annotations

import atexit
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope.launch import child_notes
from kinetoscope.launch.child_places import read_wanted
from kinetoscope.launch.options import Wanted
from kinetoscope.launch.program import Program
from kinetoscope.launch.recording import ProgramRecording

if TYPE_CHECKING:
    from kinetoscope.collect.sources.optimizer_steps import OptimizerSteps

FORK, EXEC = "fork", "exec"
_STEPS = "kinetoscope.collect.sources.optimizer_steps"
# An import in a fork can wait for ever, for a thread that was importing and exists in the parent only.
_NEEDED_IN_FORKS = (
    "kinetoscope.collect.engines.kineto",
    "kinetoscope.collect.session.metadata",
    "kinetoscope.collect.engines.native",
    _STEPS,
    "kinetoscope.collect.session.profile",
    "kinetoscope.collect.sources.storages",
    "multiprocessing.process",
    "multiprocessing.util",
    "torch.distributed",
    "torch.optim.optimizer",
    "torch.utils.data",
    "uuid",
)


def follow(folder: str, began: str = EXEC) -> None:
    """Record this Python, which has just imported torch, and what forks from it."""
    try:
        following = Following(Path(folder), read_wanted(Path(folder)))
    except (OSError, ValueError, TypeError):
        return
    following.record(began)
    following.watch_forks()


def before_leaving(call: Callable[[int], None]) -> None:
    """Have a function called with the exit status before `os._exit` ends this process, or a fork of it."""
    leaves = os._exit

    def _exit(status: int) -> Any:
        # Whatever happens here, the process ends as it wanted to.
        try:
            call(status)
        finally:
            leaves(status)

    _exit.__wrapped__ = leaves  # type: ignore[attr-defined]
    os._exit = _exit


def note_terminations(folder: str) -> None:
    """Have `multiprocessing` note which of its processes it terminates: its daemons when a program ends, such as loader workers."""
    popen: Any = importlib.import_module("multiprocessing.popen_fork").Popen
    terminates = popen.terminate

    def terminate(self: Any) -> None:
        if self.returncode is None:
            child_notes.mark_terminated(folder, self.pid)
        terminates(self)

    popen.terminate = terminate


class ChildRecording(ProgramRecording):
    """The recording of a child, which complains to nobody."""

    problem = ""

    def close(self) -> Path | None:
        """Close the recording; return its file, or None where there is none."""
        self.leave_alone()
        self._stop()
        if self._session is None or self.state != "stopped":
            return None
        if self._wanted.live_path.exists():
            return self._wanted.live_path
        self._session.trace.save(self._wanted.trace_path)
        return self._wanted.trace_path

    def _cannot_start(self, error: Exception) -> None:
        """Go on without a recording."""
        self.problem = str(error)


class Following:
    """What a followed process does for itself and for those that fork from it; a fork takes it along."""

    def __init__(
        self,
        folder: Path,
        wanted: Wanted,
        recording: ProgramRecording | None = None,
    ) -> None:
        """Follow.

        Args:
            folder: The folder of the run.
            wanted: What the user asked for.
            recording: What records this process already: the program that was asked for has one of its own.
        """
        self._folder = folder
        self._wanted = wanted
        self._recording = recording
        self._process = os.getpid()
        self._name: str | None = None
        self._facts: dict[str, Any] = {}
        self._parents_name: Any = None

    def watch_forks(self) -> None:
        """From now on: record forks, and see `os._exit` coming. Once, when torch is there."""
        for name in _NEEDED_IN_FORKS:
            with suppress(ImportError):
                importlib.import_module(name)
        # Found out before there is a fork, in which it could not be.
        importlib.import_module("kinetoscope.collect.engines.native").native_engine_status()
        os.register_at_fork(after_in_child=self._after_fork)
        util = sys.modules["multiprocessing.util"]
        util.register_after_fork(self, Following._tell_name)
        before_leaving(self._left)
        note_terminations(str(self._folder))

    def record(self, began: str, **otherwise: Any) -> None:
        """Record this process, if the run still goes on.

        Args:
            began: `fork` or `exec`.
            **otherwise: What is wanted of it otherwise than of the program.
        """
        self._process = os.getpid()
        try:
            self._claim(began)
            if self._name is None:
                return
            wanted = replace(self._wanted, prefix=self._folder / self._name, **otherwise)
            recording = ChildRecording(
                Program(sys.argv[0] if sys.argv else "python", tuple(sys.argv[1:])), wanted
            )
            self._recording = recording
            recording.begin()
            if recording.problem:
                self._tell(problem=recording.problem)
            elif recording.engine != "native":
                self._tell(in_memory=True)
            if "rank" not in self._facts:
                self._hear_of_steps()
            # Before the exit handlers that are there already, among them those that take torch to pieces.
            atexit.register(self.finish)
        except Exception as error:  # noqa: BLE001  (nothing of ours ends somebody's process)
            self._tell(problem=f"{type(error).__name__}: {error}")

    def finish(self, ended: str = "ended by itself") -> None:
        """Close the recording of this process, and say how it ended; a second call does nothing."""
        recording, self._recording = self._recording, None
        if self._process != os.getpid() or not isinstance(recording, ChildRecording):
            return
        try:
            path = recording.close()
            told: dict[str, Any] = {"recording": path.name} if path is not None else {}
            if "rank" not in self._facts and (rank := _own_rank()) is not None:
                told["rank"] = rank
            self._tell(ended=ended, name=self._own_name(), **told)
        except Exception as error:  # noqa: BLE001
            self._tell(ended=ended, problem=f"{type(error).__name__}: {error}")

    # -------------------------------------------------------------------------------------------------------- forks

    def _after_fork(self) -> None:
        """Leave the parent's recording to the parent, and begin one's own."""
        inherited, self._recording = self._recording, None
        self._name, self._facts = None, {}
        self._parents_name = _current_process()
        if inherited is None:
            return
        # Its session belongs to the parent, and ends there.
        state = inherited.state
        inherited.leave_alone()
        # By our own recorder: torch's collector cannot be started in a fork of a process that it records.
        if state == "recording":
            self.record(FORK, engine="native", steps=None)
        elif state == "waiting for its step":
            self.record(FORK, engine="native")

    def _left(self, status: int) -> None:
        """The process leaves without Python's exit."""
        self.finish(f"exit code {status & 0xFF}")

    # -------------------------------------------------------------------------------------------------------- notes

    def _claim(self, began: str) -> None:
        """Leave a first note, and have a name of one's own."""
        rank, process = _own_rank(), os.getpid()
        self._facts = {
            "process": process,
            "parent_process": os.getppid(),
            "ancestors": child_notes.ancestors(process),
            "began_ticks": child_notes.began(process),
            "began": began,
            "name": self._own_name(),
            "command": sys.orig_argv,
            "executable": sys.executable,
            **({} if rank is None else {"rank": rank}),
        }
        name = f"{process}" if rank is None else f"{process}-rank{rank}"
        self._name = child_notes.claim(str(self._folder), name, self._facts)

    def _tell(self, **facts: Any) -> None:
        """Add to the note."""
        self._facts.update(facts)
        if self._name is not None:
            child_notes.rewrite(str(self._folder), self._name, self._facts)

    def _tell_name(self) -> None:
        """Called by `multiprocessing` when a process of it has its name: it may be killed before it ends."""
        if self._recording is not None and self._name is not None and self._process == os.getpid():
            self._tell(name=self._own_name())

    def _hear_of_steps(self) -> None:
        """Learn the rank at an optimizer's first step, when there is a process group, which may be gone at the end."""
        steps: OptimizerSteps = importlib.import_module(_STEPS).OPTIMIZER_STEPS
        process = os.getpid()

        def learn(*_: Any) -> None:
            steps.forget(learn)
            if os.getpid() == process and (rank := _own_rank()) is not None:
                self._tell(rank=rank)

        steps.after(learn)

    def _own_name(self) -> str:
        """What `multiprocessing` calls this process; nothing where it did not make it."""
        process = _current_process()
        # A fork that `multiprocessing` did not make has its parent's.
        if process is None or process is self._parents_name or process.name == "MainProcess":
            return ""
        worker = _worker_number(process)
        return str(process.name) if worker is None else f"DataLoader worker {worker}"


def _own_rank() -> int | None:
    """The rank of this process, as far as it knows by now."""
    rank: int | None = importlib.import_module("kinetoscope.collect.session.metadata").own_rank()
    return rank


def _current_process() -> Any:
    """What `multiprocessing` has for this process."""
    module: Any = sys.modules.get("multiprocessing.process")
    return None if module is None else module.current_process()


def _worker_number(process: Any) -> int | None:
    """Which worker of a `DataLoader` a process is, by the arguments of its function; None for any other."""
    # A session that wants to know how batches are made stands before torch's function.
    target: Any = inspect.unwrap(getattr(process, "_target", None))  # type: ignore[arg-type]
    if getattr(target, "__module__", None) != "torch.utils.data._utils.worker":
        return None
    try:
        number = inspect.signature(target).bind(*process._args, **process._kwargs).arguments["worker_id"]
    except (TypeError, KeyError):
        return None
    return number if type(number) is int else None
