"""The profiler that the trainer integrations share: steps, hooks, and a folder for the traces.

Mistakes are reported before the first training starts. Later failures are one warning, and the training continues unprofiled; so are mistakes in later
runs, such as a schedule that is too long for a test after hours of training.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError, KinetoscopeError, StateError, checked_switch
from kinetoscope.collect import (
    OPTION_NAMES,
    ActivityItem,
    ProfilerAction,
    ProfilerActivity,
    RecordingOptions,
    Schedule,
    begin_range,
    checked_callable,
    checked_choices,
    end_range,
    profile,
    ranked,
    record_always,
    scheduled_action,
    supported_activities,
    warn_user,
)
from kinetoscope.flight.flight import FlightRecorder
from kinetoscope.integrations.left_on import LeftOnTraining, checked_leave_on
from kinetoscope.integrations.trackers import TrainerLog, checked_tracker
from kinetoscope.model import units
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace

SUFFIX = ".ktrace"
OWN_NAME = "kinetoscope"


class TraceFolder:
    """The folder of the traces, checked to be writable; by default, traces of an earlier run are not overwritten.

    Args:
        folder: The user's folder; None for a new one in the trainer's.
        default_folder: The trainer's own folder.
        overwrite: Whether the user's folder may contain traces of an earlier run.
        profiler: `info["profiler"]` in the traces of this profiler, in all of its processes.

    Raises:
        ArgumentError: It is not writable, or it contains traces already.
    """

    def __init__(
        self, folder: Path | None, default_folder: Path, *, overwrite: bool, profiler: str | None = None
    ) -> None:
        # Ranks share the folder, and each checks its own files only, so that all choose the same one.
        self._rank = ranked(Path("x" + SUFFIX)).name[1 : -len(SUFFIX)]
        self.saved: list[Path] = []
        self._overwrite = overwrite
        self.path = folder or self._new_one_in(default_folder)
        if folder is not None and not overwrite and (earlier := self._of_others(folder, profiler)):
            raise ArgumentError(
                f"the folder {str(folder)!r} contains {len(earlier)} trace{'s' if len(earlier) > 1 else ''} of an earlier run "
                f"({earlier[0].name}{', ...' if len(earlier) > 1 else ''}): use another folder, or pass overwrite=True."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                # It is writable.
                return
        except OSError as error:
            raise ArgumentError(
                f"the folder {str(self.path)!r} for the traces is not writable ({error.strerror}): use another one."
            ) from error

    def save(self, trace: Trace, stem: str) -> None:
        """Write a trace; a failure, such as a full disk, is a warning."""
        path = self._name_for(stem)
        try:
            trace.save(path)
        except OSError as error:
            warn_user(f"the trace {str(path)!r} could not be written: {error}. Training continues.")
        else:
            self.saved.append(path)

    def _name_for(self, stem: str) -> Path:
        numbers = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        paths = (self.path / f"{stem}{number}{self._rank}{SUFFIX}" for number in numbers)
        return next(
            path for path in paths if path not in self.saved and (self._overwrite or not path.is_file())
        )

    def _new_one_in(self, default_folder: Path) -> Path:
        """The first of `kinetoscope`, `kinetoscope-2` ... without traces of this rank."""
        names = itertools.chain([OWN_NAME], (f"{OWN_NAME}-{number}" for number in itertools.count(2)))
        return next(default_folder / name for name in names if not self._traces_in(default_folder / name))

    def _traces_in(self, folder: Path) -> list[Path]:
        return sorted(folder.glob(f"*{self._rank}{SUFFIX}"))

    def _of_others(self, folder: Path, profiler: str | None) -> list[Path]:
        return [
            path for path in self._traces_in(folder) if profiler is None or _written_for(path) != profiler
        ]


def _written_for(path: Path) -> str | None:
    try:
        with open_trace(path) as trace:
            return trace.run_info.profiler or None
    except (KinetoscopeError, OSError):
        return None


RECORDING = frozenset({ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE})

# Steps 2, 3 and 4: the first step is slow in every framework, and the second warms up the recorder.
DEFAULT_SCHEDULE = Schedule(wait=1, warmup=1, active=3, repeat=1)

_ARGUMENTS = ("folder", "schedule", "whole_run", "on_trace_ready", "overwrite", "log_to_tracker", "leave_on")


@dataclass(frozen=True)
class TrainerOptions:
    """The checked options of a trainer's profiler.

    Attributes:
        folder: Where the traces go; None for a folder in the trainer's own.
        schedule: When to record; None for `DEFAULT_SCHEDULE`, shortened for shorter runs.
        on_trace_ready: The user's handler, called with the session whenever a trace is ready.
        saves: Whether traces are written.
        overwrite: Whether the folder may hold traces of an earlier run.
        recording: What is recorded.
        log: Logs the traces to experiment trackers; None for no logging.
        leave_on: Arguments of `kinetoscope.leave_on` for each training; None for no flight recorder.
    """

    folder: Path | None
    schedule: Callable[[int], ProfilerAction] | None
    on_trace_ready: Callable[..., Any] | None
    saves: bool
    overwrite: bool
    recording: RecordingOptions
    log: TrainerLog | None = None
    leave_on: dict[str, Any] | None = None

    @property
    def records_steps(self) -> bool:
        """Whether steps are recorded by a schedule; with `leave_on`, only if a schedule, a folder or a handler is passed."""
        chosen = (self.schedule, self.folder, self.on_trace_ready)
        return self.leave_on is None or chosen != (None, None, None)

    def schedule_for(self, total_steps: int | None) -> Callable[[int], ProfilerAction]:
        """The schedule of a run with this number of steps (None if unknown); an error if it would record none of them."""
        if self.schedule is None:
            return _shortened(total_steps)
        if isinstance(self.schedule, Schedule) and total_steps is not None:
            needed = self.schedule.steps_before_recording()
            if needed >= total_steps:
                raise ArgumentError(
                    f"{self.schedule} skips {needed} step{'' if needed == 1 else 's'} before it records, and this "
                    f"run has only {total_steps}: nothing would be recorded. Use a schedule that starts earlier, or "
                    "whole_run=True."
                )
        return self.schedule

    def records_from_the_start(self) -> bool:
        """Whether recording starts before the first step."""
        return self.schedule is not None and scheduled_action(self.schedule, 0) in RECORDING


def checked_options(arguments: Mapping[str, Any], *, folder_argument: str = "folder") -> TrainerOptions:
    """Check the arguments of a trainer's profiler.

    Args:
        arguments: Those in `_ARGUMENTS` by name, such as the caller's `locals()`, and `options`, those of the session. Other names
            are ignored.
        folder_argument: The name of the argument for the folder.

    Raises:
        ArgumentError: An argument is not valid; the message names it, its value and what to do.
    """
    options = arguments["options"]
    check_names(options)
    folder, schedule, on_trace_ready = (
        arguments.get(name) for name in (folder_argument, "schedule", "on_trace_ready")
    )
    if checked_switch("whole_run", arguments.get("whole_run")):
        if schedule is not None:
            raise ArgumentError(
                "whole_run=True records every step, and a schedule chooses some of them: pass one of the two."
            )
        schedule = record_always
    elif checked_callable("schedule", schedule) is not None:
        scheduled_action(schedule, 0)  # type: ignore[arg-type]
    options = {"on_error": "warn", "deep_steps": True, **options}
    if "activities" in options:
        options["activities"] = present_activities(options["activities"])
    left_on = checked_leave_on(arguments.get("leave_on"))
    return TrainerOptions(
        folder=checked_folder(folder_argument, folder),
        schedule=schedule,
        on_trace_ready=checked_callable("on_trace_ready", on_trace_ready),
        saves=folder is not None or (on_trace_ready is None and (left_on is None or schedule is not None)),
        overwrite=checked_switch("overwrite", arguments.get("overwrite")),
        recording=RecordingOptions(**options),
        log=checked_tracker(arguments.get("log_to_tracker")),
        leave_on=left_on,
    )


def check_names(options: Mapping[str, Any]) -> None:
    """Raise ArgumentError for the first unknown option, with the closest valid one."""
    for name in options:
        if name not in OPTION_NAMES:
            near = difflib.get_close_matches(name, [*OPTION_NAMES, *_ARGUMENTS], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArgumentError(
                f"there is no option {name!r} (its value is {options[name]!r}): {hint}"
                f"The options of a session are {', '.join(sorted(OPTION_NAMES))}."
            )


def present_activities(activities: Iterable[ActivityItem | str] | None) -> list[ActivityItem] | None:
    """Convert activities, which may be names such as `"cpu"`; ArgumentError if one is not available."""
    if activities is None:
        return None
    if isinstance(activities, str):
        activities = [activities]
    if isinstance(activities, Iterable):
        activities = [_by_name(item) if isinstance(item, str) else item for item in activities]
    named: Any = activities
    choices = checked_choices(named)
    present = supported_activities()
    missing = sorted(activity.name for activity in choices if activity not in present)
    if missing:
        raise ArgumentError(
            f"activities contains {', '.join(missing)}, which this machine or this build of torch does not support. "
            f"Available: {', '.join(sorted(activity.name for activity in present))}; leave `activities` out to "
            "record all of them."
        )
    return list(named)


def checked_folder(argument: str, folder: object) -> Path | None:
    """Convert the name of a folder; ArgumentError if it is something else."""
    if folder is None:
        return None
    name = os.fspath(folder) if isinstance(folder, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{argument}={folder!r} is not valid: need the name of a folder, or None.")
    path = Path(name)
    if path.exists() and not path.is_dir():
        raise ArgumentError(f"{argument}={name!r} is a file: need the name of a folder.")
    return path


def checked_name(argument: str, name: object) -> str:
    """A text that can be part of a file name."""
    if not isinstance(name, str) or not name or "/" in name:
        raise ArgumentError(f"{argument}={name!r} is not valid: need a name, without a folder.")
    return name


def _by_name(name: str) -> ProfilerActivity:
    members = dict(ProfilerActivity.__members__)
    if name.upper() not in members:
        raise ArgumentError(
            f"activities contains {name!r}, which is not an activity. Valid ones: "
            f"{', '.join(sorted(repr(name.lower()) for name in members))}."
        )
    activity: ProfilerActivity = members[name.upper()]
    return activity


def _shortened(total_steps: int | None) -> Schedule:
    usual = DEFAULT_SCHEDULE.wait + DEFAULT_SCHEDULE.warmup + DEFAULT_SCHEDULE.active
    if total_steps is None or total_steps >= usual:
        return DEFAULT_SCHEDULE
    warmup = 1 if total_steps > 1 else 0
    return Schedule(wait=0, warmup=warmup, active=max(1, total_steps - warmup), repeat=1)


class TrainerProfiler:
    """The profiler of one trainer, over all its runs.

    A run is `prepare`, `begin`, then for each step `open_step` and `close_step`, then `end`. Hooks are `open` and `close`
    by name. Calls outside a run do nothing.

    Args:
        options: The checked options.
        trainer: The trainer and its version, for the metadata.

    Attributes:
        recording: Whether steps are recorded now.
        step_is_open: Whether a step has begun and not ended.
    """

    def __init__(self, options: TrainerOptions, trainer: str) -> None:
        self.options = options
        self.recording = False
        self.trainer = trainer
        # Identifies the traces of earlier processes of the same profiler.
        self._name = secrets.token_hex(8)
        self._folder: TraceFolder | None = None
        self._stage = ""
        self._session: _Session | None = None
        self._last: profile | None = None
        self._step: Any = None
        self.step_is_open = False
        self._steps: list[int] = []
        self._open: dict[str, list[Any]] = {}
        self._users_error: BaseException | None = None
        self.flight = LeftOnTraining(options.leave_on)
        self.loggers: Callable[[], Iterable[Any]] = tuple
        """Returns the loggers of the trainer, which may be experiment trackers."""

    def prepare(self, stage: str, trainers_folder: str | Path, *, trains: bool = True) -> None:
        """Check that the traces of the next run can be written, and turn on the flight recorder if it is enabled and this is a training.

        Raises:
            ArgumentError: They cannot.
        """
        self.end()
        self._stage = stage
        if self._folder is None and self.options.saves:
            self._folder = TraceFolder(
                self.options.folder,
                Path(trainers_folder),
                overwrite=self.options.overwrite,
                profiler=self._name,
            )
        if trains:
            self.flight.begin()
        if self.options.log is not None:
            self.options.log.log_incidents(self.loggers)

    def begin(self, total_steps: int | None) -> None:
        """Start the run with this number of steps; None if unknown. With only the flight recorder, no session is started.

        After a successful first run, a failure is a warning, and this run is not profiled.

        Raises:
            ArgumentError: The schedule would record none of them.
            StateError: Another session is recording in this process.
            RecorderError: The requested engine cannot record here.
        """
        if not self.options.records_steps:
            return
        try:
            session = _Session.with_options(
                self.options.recording,
                schedule=self.options.schedule_for(total_steps),
                on_trace_ready=self._trace_is_ready,
            )
            session.record_steps = False  # our marks have the trainer's numbers
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
        return self._session is not None or self.flight.is_running

    @property
    def position(self) -> int:
        """How many steps of this run are over."""
        return 0 if self._session is None else self._session.step_num

    def end(self, error: BaseException | None = None) -> None:
        """End the run, if there is one: close open spans, and keep the trace. `error` is the trainer's exception."""
        session, self._session, self.recording = self._session, None, False
        self._leave_step()
        self._open.clear()
        try:
            if session is not None and error is not None:
                session.add_metadata("ended_by", f"{type(error).__name__}: {error}".removesuffix(": "))
            if session is not None:
                session.__exit__(None if error is None else type(error), error, None)
        except Exception as failure:
            if failure is self._users_error:
                raise
            _warn_of(failure)
        finally:
            self.flight.end(error)

    def open_step(self, number: int) -> None:
        """Open a step with the trainer's number; does nothing while another is open."""
        if self.step_is_open or not self.is_running:
            return
        self.step_is_open = True
        self.flight.open_step(number)
        if self._session is not None and self.recording:
            self._steps.append(number)
            self._step = self._session.open_mark(number)

    def close_step(self) -> None:
        """Close the open step, and do what the schedule returns for the next."""
        if self._session is None or not self.step_is_open:
            self.step_is_open = False
            return
        self._leave_step()
        try:
            self._session.step()
        except Exception as failure:
            if failure is self._users_error:
                raise
            _warn_of(failure)
            self._session.give_up()
            self._session, self.recording = None, False
            self._open.clear()
        else:
            self.recording = self._session.current_action in RECORDING

    def _leave_step(self) -> None:
        step, self._step, self.step_is_open = self._step, None, False
        if step is not None:
            step.__exit__(None, None, None)

    def open(self, name: str) -> None:
        """Open the span of a hook."""
        self._open.setdefault(name, []).append(begin_range(name) if self.recording else None)

    def close(self, name: str) -> None:
        """Close the innermost span of a hook of this name."""
        spans = self._open.get(name)
        if spans and (span := spans.pop()) is not None:
            end_range(span)

    @property
    def saved(self) -> list[Path]:
        """The files that were written, in order."""
        return [] if self._folder is None else list(self._folder.saved)

    def last_session(self) -> profile:
        """The session of the current or the last run."""
        if self._last is None:
            raise StateError("nothing was recorded yet: the trainer has not started a run.")
        return self._last

    def _trace_is_ready(self, session: profile) -> None:
        steps, self._steps = self._steps, []
        stem = f"{self._stage}-steps-{steps[0]}-{steps[-1]}" if steps else self._stage
        if self._folder is not None:
            self._folder.save(session.trace, stem)
        if self.options.on_trace_ready is not None:
            try:
                self.options.on_trace_ready(session)
            except BaseException as error:
                self._users_error = error
                raise
        if self.options.log is not None:
            self.options.log.log(session.trace, stem, self.loggers)

    def __getstate__(self) -> dict[str, Any]:
        """The state for another process: the options, without active or finished recordings."""
        attributes = {name: vars(self)[name] for name in ("_folder", "_stage", "_name")}
        return vars(TrainerProfiler(self.options, self.trainer)) | attributes


class _Session(profile):
    """A session whose `step()` is called by the trainer."""

    def give_up(self) -> None:
        """End after a failure between two steps; earlier recordings are kept, without further warnings."""
        self._run = None
        with contextlib.suppress(Exception):
            self._finish(keep=False)

    def _why_nothing(self) -> str:
        needed = self.schedule.steps_before_recording() if isinstance(self.schedule, Schedule) else 0
        if self.step_num < needed:
            return f"{self.schedule} records after {units.count(needed, 'step')}, and this run had {self.step_num}."
        return f"the schedule never returned RECORD for the {units.count(self.step_num, 'step')} of this run."


def _warn_of(failure: Exception) -> None:
    warn_user(f"profiling stopped, training continues: {type(failure).__name__}: {failure}")


class TraceAccess:
    """The results of a trainer's profiler, for all trainers."""

    _profiler: TrainerProfiler

    @property
    def trace(self) -> Trace:
        """The trace of the last recorded cycle.

        Raises:
            StateError: Nothing has been recorded yet.
        """
        return self._profiler.last_session().trace

    @property
    def saved_traces(self) -> list[Path]:
        """The files that were written, in order."""
        return self._profiler.saved

    @property
    def recorder(self) -> FlightRecorder | None:
        """The flight recorder of the current or the last training; None before."""
        return self._profiler.flight.recorder
