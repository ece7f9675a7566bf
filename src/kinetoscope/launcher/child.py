"""A process that a recorded program started and that records itself: a fork, or another Python.

Facts about the process are metadata of its recording, written at its start, so that a kill does not lose them. Its note has the facts that are known only after
the recording, and whether there is a recording.

docs/children.md describes what a fork inherits. Nothing here may harm the job: a failure becomes a line in the note of
this process, and the process continues unrecorded.
"""

from __future__ import annotations

import atexit
import importlib
import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinetoscope import collect
from kinetoscope.launcher import notes
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.program import Program
from kinetoscope.launcher.recording import ProgramRecording

FORK = "fork"
# An import in a fork can wait forever for a thread that was importing and exists only in the parent.
_NEEDED_IN_FORKS = (
    "multiprocessing.process",
    "multiprocessing.util",
    "torch.distributed",
    "torch.optim.optimizer",
    "torch.utils.data",
    "uuid",
)


def follow(folder: str, options: str, began: str) -> None:
    """Record this process, which has just imported torch, and its forks if the run follows every child.

    Args:
        folder: The run's folder.
        options: The options of the run, as `LaunchOptions.to_json` writes them.
        began: `fork` or `exec`.
    """
    launch_options = LaunchOptions.from_json(options)
    followed = FollowedProcess(Path(folder), launch_options)
    followed.record(began)
    if launch_options.children:
        followed.watch_forks()


def before_os_exit(call: Callable[[int], None]) -> None:
    """Call a function with the exit status before `os._exit` ends this process, or a fork of it.

    This is the only function of Python that is replaced. Forks end with it, those of `multiprocessing` among them, as do programs that skip their
    teardown, and Python then runs no exit handlers and raises no audit event.
    """
    leaves = os._exit

    def _exit(status: int) -> Any:
        # Whatever happens in the call, the process ends.
        try:
            call(status)
        finally:
            leaves(status)

    _exit.__wrapped__ = leaves  # type: ignore[attr-defined]
    os._exit = _exit


class ChildRecording(ProgramRecording):
    """The recording of a child process, which prints nothing."""

    problem = ""

    def __init__(self, program: Program, options: LaunchOptions, facts: dict[str, Any]) -> None:
        """Prepare to record a program with these options; `facts` about the process become metadata of the recording, by key."""
        super().__init__(program, options)
        self.facts = facts

    def add_facts(self, facts: dict[str, Any]) -> bool:
        """Add the current facts about the process; False if the recording is over, or failed."""
        if self.state in (collect.SessionState.ENDED, collect.SessionState.FAILED):
            return False
        self.facts.update(facts)
        if self._session is not None:
            for key, value in facts.items():
                self._session.add_metadata_json(key, json.dumps(value))
        return True

    def close(self) -> Path | None:
        """Close the recording; return its file, or None if there is none."""
        self.stop()
        if self._session is None or self.state is not collect.SessionState.ENDED:
            return None
        if self._options.live_path.exists():
            return self._options.live_path
        self._session.trace.save(self._options.trace_path)
        return self._options.trace_path

    def _cannot_start(self, error: Exception) -> None:
        self.problem = str(error)


class FollowedProcess:
    """Records a followed process, and its forks, which inherit this object."""

    def __init__(
        self, folder: Path, options: LaunchOptions, recording: ProgramRecording | None = None
    ) -> None:
        """Follow.

        Args:
            folder: The run's folder.
            options: The options of the run.
            recording: The recording of this process, if it has one already: the program's own.
        """
        self._folder = folder
        self._options = options
        self._recording = recording
        self._process = os.getpid()
        self._note: str | None = None
        self._note_facts: dict[str, Any] = {}
        self._parents_process: Any = None

    def watch_forks(self) -> None:
        """From now on record forks, and finish before `os._exit`. Call this once, when torch is imported."""
        collect.import_for_forks()
        for name in _NEEDED_IN_FORKS:
            with suppress(ImportError):
                importlib.import_module(name)
        # Determined before the first fork, because a fork cannot do it.
        collect.native_engine_status()
        os.register_at_fork(after_in_child=self._after_fork)
        util = sys.modules["multiprocessing.util"]
        util.register_after_fork(self, FollowedProcess._note_name)
        before_os_exit(self._before_os_exit)

    def record(self, began: str, **changes: Any) -> None:
        """Record this process if the run still goes on.

        Args:
            began: `fork` or `exec`.
            **changes: Options that differ from the program's.
        """
        self._process = os.getpid()
        try:
            facts = self._own_facts(began)
            self._claim_note(facts.get("rank"))
            if self._note is None:
                return
            options = replace(self._options, prefix=self._folder / self._note, **changes)
            if began == FORK:
                # Torch's collector cannot be started in a fork of a process that it records.
                options = replace(options, recording=replace(options.recording, engine="native"))
            recording = ChildRecording(
                Program(sys.argv[0] if sys.argv else "python", tuple(sys.argv[1:])), options, facts
            )
            self._recording = recording
            recording.begin()
            if recording.problem:
                self._add_to_note(problem=recording.problem)
            elif recording.engine != "native":
                self._add_to_note(in_memory=True)
            if "rank" not in facts:
                self._note_rank_at_first_step()
            # Runs before the exit handlers that are registered already, such as those that tear torch down.
            atexit.register(self.finish)
        except Exception as error:  # noqa: BLE001  (a failure of the profiler must not end the process)
            self._add_to_note(problem=f"{type(error).__name__}: {error}")

    def finish(self, ended: str = "ended by itself") -> None:
        """Close the recording of this process and note how the process ended; a second call does nothing."""
        recording, self._recording = self._recording, None
        if self._process != os.getpid() or not isinstance(recording, ChildRecording):
            return
        try:
            self._add_facts(recording, ended=ended, processor_s=time.process_time(), **self._name_and_rank())
            path = recording.close()
            if "in_memory" in self._note_facts:
                self._add_to_note(in_memory=False, **({} if path is None else {"recording": path.name}))
        except Exception as error:  # noqa: BLE001
            self._add_to_note(ended=ended, problem=f"{type(error).__name__}: {error}")

    def _after_fork(self) -> None:
        inherited, self._recording = self._recording, None
        self._note, self._note_facts = None, {}
        self._parents_process = _current_process()
        if inherited is None:
            return
        # Its session belongs to the parent and ends there.
        state = inherited.state
        inherited.stop_waiting()
        if state is collect.SessionState.RECORDING:
            self.record(FORK, steps=None)
        elif state is collect.SessionState.WAITING:
            self.record(FORK)

    def _before_os_exit(self, status: int) -> None:
        self.finish(f"exit code {status & 0xFF}")

    def _own_facts(self, began: str) -> dict[str, Any]:
        return {
            "parent_process": os.getppid(),
            "ancestors": notes.ancestors(os.getpid()),
            "began": began,
            "command": sys.orig_argv,
            "executable": sys.executable,
            **self._name_and_rank(),
        }

    def _name_and_rank(self) -> dict[str, Any]:
        name, rank = self._own_name(), collect.own_rank()
        return {**({"process_name": name} if name else {}), **({} if rank is None else {"rank": rank})}

    def _claim_note(self, rank: int | None) -> None:
        """Create the note of this process, whose name is also that of the recording."""
        process = os.getpid()
        self._note_facts = {"process": process, "start_ticks": notes.start_ticks(process)}
        name = f"{process}" if rank is None else f"{process}-rank{rank}"
        self._note = notes.claim(str(self._folder), name, self._note_facts)

    def _add_facts(self, recording: ProgramRecording | None, **facts: Any) -> None:
        if isinstance(recording, ChildRecording) and not recording.add_facts(facts):
            self._add_to_note(**facts)

    def _add_to_note(self, **facts: Any) -> None:
        self._note_facts.update(facts)
        if self._note is not None:
            notes.rewrite(str(self._folder), self._note, self._note_facts)

    def _note_name(self) -> None:
        """Note the name that `multiprocessing` has just given a fork, because it may be killed later."""
        if self._recording is not None and self._note is not None and self._process == os.getpid():
            self._add_facts(self._recording, **self._name_and_rank())

    def _note_rank_at_first_step(self) -> None:
        """Note the rank at the first optimizer step, when the process group exists; it may be gone at the end."""
        process = os.getpid()

        def note_rank(*_: Any) -> None:
            collect.OPTIMIZER_STEPS.forget(note_rank)
            if os.getpid() == process and (rank := collect.own_rank()) is not None:
                self._add_facts(self._recording, rank=rank)

        collect.OPTIMIZER_STEPS.after(note_rank)

    def _own_name(self) -> str:
        process = _current_process()
        # In a fork not made by `multiprocessing`, this is the parent's object.
        if process is None or process is self._parents_process or process.name == "MainProcess":
            return ""
        worker = _worker_number(process)
        return str(process.name) if worker is None else f"DataLoader worker {worker}"


def _current_process() -> Any:
    module: Any = sys.modules.get("multiprocessing.process")
    return None if module is None else module.current_process()


def _worker_number(process: Any) -> int | None:
    """The number of a `DataLoader` worker, read from its function's arguments; None for other processes."""
    # A session that records how batches are made wraps torch's function.
    target: Any = inspect.unwrap(getattr(process, "_target", None))  # type: ignore[arg-type]
    if getattr(target, "__module__", None) != "torch.utils.data._utils.worker":
        return None
    try:
        number = inspect.signature(target).bind(*process._args, **process._kwargs).arguments["worker_id"]  # noqa: SLF001  (Python's own)
    except (TypeError, KeyError):
        return None
    return number if type(number) is int else None
