"""A session that a trainer drives: it tells of its steps and hooks, and the traces of its run end up in a folder.

What is wrong is said before the first training begins. From its first step on a failure of ours is one warning, and the
training goes on without us; so do the later ones, such as a test after hours of training, for which the schedule is too long.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kinetoscope._errors import KinetoscopeError, StateError
from kinetoscope.collect.session.activities import record_function
from kinetoscope.collect.session.profile import profile
from kinetoscope.collect.session.schedule import Schedule
from kinetoscope.collect.session.user_warnings import warn_user
from kinetoscope.integrations._asked import RECORDING, Asked
from kinetoscope.integrations._folder import TraceFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetoscope.trace import Trace


class Driven:
    """One trainer's profiling, over all its runs.

    A run is `prepare`, `begin`, then for each step `open_step` and `close_step`, then `end`. Hooks are `open` and `close`
    by name. Calls that come when there is no run do nothing.

    Args:
        asked: The checked wishes of the user.
        trainer: Whose steps these are, with its version, for the metadata.
    """

    def __init__(self, asked: Asked, trainer: str) -> None:
        self.asked = asked
        self.recording = False
        self.trainer = trainer
        # A process that trains, and is then gone, knows by it the traces of those before it.
        self._name = secrets.token_hex(8)
        self._folder: TraceFolder | None = None
        self._stage = ""
        self._session: profile | None = None
        self._last: profile | None = None
        self._step: Any = None
        self._step_is_open = False
        self._steps: list[int] = []
        self._open: dict[str, list[Any]] = {}
        self._users_error: BaseException | None = None

    # ------------------------------------------------------------------------------------------------------- one run

    def prepare(self, stage: str, trainers_folder: str | Path) -> None:
        """Make sure that the traces of the coming run can be written.

        Raises:
            ArgumentError: They cannot.
        """
        self.end()
        self._stage = stage
        if self._folder is None and self.asked.saves:
            self._folder = TraceFolder(
                self.asked.folder, Path(trainers_folder), overwrite=self.asked.overwrite, profiler=self._name
            )

    def begin(self, total_steps: int | None) -> None:
        """Begin the run, in which there will be so many steps; None for unknown.

        After a first run that has begun, what is wrong is a warning, and this one is not profiled.

        Raises:
            ArgumentError: The schedule would record none of them.
            StateError: Another session records in this process.
            RecorderError: The engine that was asked for cannot record here.
        """
        try:
            session = _Session(
                schedule=self.asked.schedule_for(total_steps),
                on_trace_ready=self._trace_is_ready,
                **self.asked.options,
            )
            session.record_steps = False  # its own marks have its own numbers, and ours the trainer's
            session.add_metadata("trainer", self.trainer)
            session.add_metadata("stage", self._stage)
            session.add_metadata("profiler", self._name)
            session.start()
        except KinetoscopeError as failure:
            if self._last is None:
                raise
            warn_user(f"{self._stage} is not profiled: {failure}")
            return
        self._session = self._last = session
        self.recording = session.current_action in RECORDING

    @property
    def is_running(self) -> bool:
        """Whether a run has begun and not ended."""
        return self._session is not None

    @property
    def position(self) -> int:
        """How many steps of this run are over."""
        return 0 if self._session is None else self._session.step_num

    @property
    def step_is_open(self) -> bool:
        """Whether a step has begun and not ended."""
        return self._step_is_open

    def end(self, error: BaseException | None = None) -> None:
        """End the run, if there is one: close what is open, and keep the trace. `error` is what the trainer failed with."""
        session = self._session
        if session is None:
            return
        if error is not None:
            session.add_metadata("ended_by", f"{type(error).__name__}: {error}".removesuffix(": "))
        self._leave_step()
        self._session, self.recording = None, False
        self._open.clear()
        try:
            session.__exit__(None if error is None else type(error), error, None)
        except Exception as failure:
            if failure is self._users_error:
                raise
            _tell(failure)

    # --------------------------------------------------------------------------------------------------------- steps

    def open_step(self, number: int) -> None:
        """Mark the begin of a step, by the trainer's number; while another is open, do nothing."""
        if self._step_is_open or self._session is None:
            return
        self._step_is_open = True
        if self.recording:
            self._steps.append(number)
            self._step = record_function(f"ProfilerStep#{number}")
            self._step.__enter__()

    def close_step(self) -> None:
        """Mark the end of the step that is open, and do what the schedule wants for the next."""
        if self._session is None or not self._step_is_open:
            return
        self._leave_step()
        try:
            self._session.step()
        except Exception as failure:
            if failure is self._users_error:
                raise
            _tell(failure)
            self._give_up(self._session)
        else:
            self.recording = self._session.current_action in RECORDING

    def _give_up(self, session: profile) -> None:
        """Leave a session that failed between two steps; what it recorded before is kept, and nothing more is said."""
        self._session, self.recording = None, False
        self._open.clear()
        session._run = None
        with contextlib.suppress(Exception):
            session._finish(keep=False)

    def _leave_step(self) -> None:
        """End the mark of the step."""
        step, self._step, self._step_is_open = self._step, None, False
        if step is not None:
            step.__exit__(None, None, None)

    # --------------------------------------------------------------------------------------------------------- hooks

    def open(self, name: str) -> None:
        """Begin the span of a hook."""
        self._open.setdefault(name, []).append(_enter(name) if self.recording else None)

    def close(self, name: str) -> None:
        """End the innermost span of a hook of this name."""
        spans = self._open.get(name)
        if spans and (span := spans.pop()) is not None:
            _leave(span)

    # ------------------------------------------------------------------------------------------------------- results

    @property
    def trace(self) -> Trace:
        """The trace of the last finished cycle.

        Raises:
            StateError: Nothing has been recorded yet.
        """
        return self.last_session().trace

    @property
    def saved(self) -> list[Path]:
        """The files that were written, in order."""
        return [] if self._folder is None else list(self._folder.saved)

    def last_session(self) -> profile:
        """The session of the present or the last run."""
        if self._last is None:
            raise StateError("nothing was recorded yet: the trainer has not begun a run.")
        return self._last

    def _trace_is_ready(self, session: profile) -> None:
        """Write a trace and call the user's handler."""
        steps, self._steps = self._steps, []
        if self._folder is not None:
            stem = f"{self._stage}-steps-{steps[0]}-{steps[-1]}" if steps else self._stage
            self._folder.save(session.trace, stem)
        if self.asked.on_trace_ready is not None:
            try:
                self.asked.on_trace_ready(session)
            except BaseException as error:
                self._users_error = error
                raise

    def __getstate__(self) -> dict[str, Any]:
        """What another process may have of it: the wishes, and not what is under way or was recorded here."""
        kept = {name: vars(self)[name] for name in ("_folder", "_stage", "_name")}
        return vars(Driven(self.asked, self.trainer)) | kept


class _Session(profile):
    """A session whose `step()` nobody calls by hand."""

    def _why_nothing(self) -> str:
        """Why the schedule has led to no recording so far, in the trainer's words."""
        needed = self.schedule.steps_before_recording() if isinstance(self.schedule, Schedule) else 0
        if self.step_num < needed:
            return f"{self.schedule} records after {needed} steps, and this run had {self.step_num}."
        return f"the schedule never asked for RECORD in the {self.step_num} steps of this run."


def _tell(failure: Exception) -> None:
    """Make a failure of ours a warning: nothing of ours may end a training."""
    warn_user(f"profiling ended, the training goes on: {type(failure).__name__}: {failure}")


def _quick_marks() -> tuple[Callable[[str], Any], Callable[[Any], None]]:
    """What opens and closes a range: torch's own calls below `record_function`, at a quarter of its cost, where it has them."""
    enter = getattr(torch._C._autograd, "_record_function_with_args_enter", None)
    leave = getattr(torch._C._autograd, "_record_function_with_args_exit", None)
    if enter is not None and leave is not None:
        return enter, leave

    def open_range(name: str) -> Any:
        opened = record_function(name)
        opened.__enter__()
        return opened

    return open_range, lambda opened: opened.__exit__(None, None, None)


_enter, _leave = _quick_marks()


class DrivenFace:
    """What a user sees of a session that a trainer drives, whatever the trainer."""

    _driven: Driven

    @property
    def trace(self) -> Trace:
        """The trace of the stretch that was recorded last.

        Raises:
            StateError: Nothing has been recorded yet.
        """
        return self._driven.trace

    @property
    def saved_traces(self) -> list[Path]:
        """The files that were written, in order."""
        return self._driven.saved
