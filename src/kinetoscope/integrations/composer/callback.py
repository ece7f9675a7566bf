"""Callbacks of a training run: `TorchProfiler`, for Composer or any loop, a trace handler for Composer's profiler, and schedules of batches."""

from __future__ import annotations

import contextlib
import enum
import importlib
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch.distributed

from kinetoscope._errors import ArgumentError, MissingDependencyError, StateError, checked_whole
from kinetoscope._replacements import Replacements
from kinetoscope.collect import (
    OPTION_NAMES,
    ProfilerActivity,
    RecordingOptions,
    begin_range,
    checked_callable,
    end_range,
    profile,
    record_function,
    warn_user,
)
from kinetoscope.collect import ProfilerAction as SessionAction
from kinetoscope.combine.extend import extend
from kinetoscope.combine.sources import with_counters
from kinetoscope.flight.flight import FlightRecorder
from kinetoscope.integrations.composer.files import (
    FILE_ARGUMENTS,
    FILENAME,
    FOLDER,
    REMOTE_FILE_NAME,
    LoopState,
    Ranks,
    TraceFiles,
)
from kinetoscope.integrations.left_on import LeftOnTraining, checked_leave_on
from kinetoscope.integrations.trackers import checked_tracker
from kinetoscope.storage.appended_rows import KeptRows
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace

__all__ = [
    "JSONTraceHandler",
    "ProfilerAction",
    "TorchProfiler",
    "cyclic_schedule",
    "install_composer",
    "uninstall_composer",
]

_log = logging.getLogger("kinetoscope.integrations.composer")


class _Action(enum.Enum):
    """The action of the profiler during a batch."""

    SKIP = "skip"
    WARMUP = "warmup"
    ACTIVE = "active"
    ACTIVE_AND_SAVE = "active_and_save"


IS_THERE = False
if TYPE_CHECKING:
    Callback = object
    TraceHandler = object
    ProfilerAction = _Action
else:
    try:
        from composer.core import Callback
        from composer.profiler import ProfilerAction, TraceHandler

        IS_THERE = True
    except Exception as error:  # noqa: BLE001  (a Composer that does not support the installed torch may raise anything)
        if not (isinstance(error, ImportError) and (error.name or "").startswith("composer")):
            _log.warning("Composer is installed but cannot be imported (%s): working without it.", error)
        Callback = TraceHandler = object
        ProfilerAction = _Action


BatchSchedule = Callable[[Any], ProfilerAction]


def cyclic_schedule(
    skip_first: int = 0, wait: int = 0, warmup: int = 1, active: int = 4, repeat: int = 1
) -> BatchSchedule:
    """Build a schedule of batches in cycles, which restarts in every epoch.

    After `skip_first` batches come cycles of `wait` idle batches, `warmup` batches to prepare the profiler,
    and `active` recorded batches; after the last of these the trace is saved. The last batch of an epoch ends its cycle.
    After a run was resumed in the middle of an epoch, Composer's profiler makes every epoch skip as many batches more.

    Args:
        skip_first: Batches of each epoch before the first cycle, at least 0.
        wait: Idle batches of each cycle, at least 0.
        warmup: Batches of each cycle to prepare the profiler, at least 0.
        active: Recorded batches of each cycle, at least 1.
        repeat: Number of cycles in each epoch; 0 repeats until its end.

    Returns:
        A callable from a training state (its `timestamp` and `dataloader_len` are read) to a `ProfilerAction`, for
        Composer's `Profiler` or for `TorchProfiler`.

    Raises:
        ArgumentError: A number is not whole or is too small; the message names it.
    """
    checked_whole("cyclic_schedule: skip_first", skip_first, 0)
    checked_whole("cyclic_schedule: wait", wait, 0)
    checked_whole("cyclic_schedule: warmup", warmup, 0)
    checked_whole("cyclic_schedule: active", active, 1)
    checked_whole("cyclic_schedule: repeat", repeat, 0)
    length = wait + warmup + active

    def action(state: Any) -> ProfilerAction:
        batch = int(state.timestamp.batch_in_epoch)
        resumed_at = getattr(getattr(state, "profiler", None), "resumption_batch_idx", 0)
        position = batch - skip_first - int(resumed_at)
        if position < 0 or (repeat and position >= length * repeat):
            return ProfilerAction.SKIP
        position %= length
        if position < wait:
            return ProfilerAction.SKIP
        if position < wait + warmup:
            return ProfilerAction.WARMUP
        ends = position == length - 1 or batch + 1 == batches_of_epoch(state)
        return ProfilerAction.ACTIVE_AND_SAVE if ends else ProfilerAction.ACTIVE

    return action


def batches_of_epoch(state: Any) -> int | None:
    """How many batches an epoch has; None if unknown."""
    length = getattr(state, "dataloader_len", None)
    return None if length is None else int(length)


# Composer marks its calls of callbacks. Steps end and begin inside calls of ours, so their marks are left out.
_OURS = "callback/TorchProfiler/"


class JSONTraceHandler(TraceHandler):
    """Writes a trace of each cycle, with operators, marks and counters on one time axis; `kinetoscope.merge` merges those of all ranks.

    Pass it to Composer's `Profiler`, after `install_composer`.

    Args:
        folder: Format of the folder's name: see `TraceFiles`, also for the next two.
        filename: Format of the name of a trace.
        remote_file_name: Format of the name under which it is uploaded; None for no upload.
        merged_trace_filename: An argument of Composer's class; nothing is merged during training, and a name causes a warning.
        merged_trace_remote_file_name: The same.
        overwrite: Whether the folder may contain files, and remote files may be replaced.
        num_traces_to_keep: The number of traces to keep in the folder; -1 for all, 0 for none.

    Attributes:
        saved_traces: A pair for each trace that is kept, the newest last: its timestamp and a list of paths, one for each rank.

    Raises:
        ArgumentError: A name has an unknown variable (it lists the known ones), or an argument cannot be used.
        MissingDependencyError: A URL needs a package that is not installed.
    """

    def __init__(
        self,
        folder: str = "{run_name}/traces",
        filename: str = "ep{epoch}-ba{batch}-rank{rank}.json",
        remote_file_name: str | None = "{run_name}/traces/ep{epoch}-ba{batch}-rank{rank}.json",
        merged_trace_filename: str | None = None,
        merged_trace_remote_file_name: str | None = None,
        *,
        overwrite: bool = False,
        num_traces_to_keep: int = -1,
    ) -> None:
        if merged := merged_trace_filename or merged_trace_remote_file_name:
            warn_user(
                f"JSONTraceHandler writes no merged trace {merged!r}: leave the name out, and merge the traces of all ranks with "
                "kinetoscope.merge, also those of several machines."
            )
        self.files = TraceFiles(
            folder,
            filename,
            remote_file_name,
            overwrite=overwrite,
            num_traces_to_keep=num_traces_to_keep,
        )
        # The open ranges by their names, and the values of counters since the last trace.
        self._ranges: dict[str, Any] = {}
        self._counters = KeptRows()
        self._state: Any = None

    @property
    def saved_traces(self) -> list[tuple[Any, list[Path]]]:
        """The kept traces: timestamp and the path of each rank, the newest last."""
        return self.files.saved_traces

    def init(self, state: Any, logger: Any) -> None:
        """Make the folder ready, before training begins.

        Args:
            state: The state of the training run.
            logger: Where traces are uploaded; None for none.

        Raises:
            StateError: There is no profiler, or it makes no traces.
            FolderNotEmptyError: There are files in the folder and `overwrite` is off. It is a `FileExistsError`.
            ArgumentError: A name contains `{run_name}`, and the run has none.
        """
        if getattr(state, "profiler", None) is None:
            raise StateError(
                "JSONTraceHandler has no profiler to get traces from: pass it as Profiler(trace_handlers=[...]), and that "
                "to Composer's Trainer as profiler."
            )
        callbacks = getattr(state, "callbacks", None)
        kinds = {kind.__name__ for callback in callbacks or () for kind in type(callback).__mro__}
        if callbacks is not None and "TorchProfiler" not in kinds:
            raise StateError(
                "JSONTraceHandler has nothing to write: Composer's Profiler makes no TorchProfiler when torch_prof_record_shapes, "
                "torch_prof_profile_memory, torch_prof_with_stack and torch_prof_with_flops are all off. Turn on at least one."
            )
        self.files.start(state.run_name, logger)
        all_ranks_are_here(state)
        self._state = state

    def fit_end(self, state: Any, logger: Any) -> None:
        """Finish uploads at the end of a fit, after which another may follow, or at the end of training.

        Args:
            state: Not used.
            logger: Not used.
        """
        self.files.close()

    close = fit_end

    def take(self, trace: Trace, timestamp: Any) -> None:
        """Write the trace of a cycle.

        Args:
            trace: The trace.
            timestamp: Where training is.

        Raises:
            StateError: `init` was not called.
            OSError: A file cannot be written.
        """
        values, self._counters = self._counters, KeptRows()
        trace = with_counters(trace, values.rows())
        if trace.run_info.rank is None:
            trace = extend(trace, info={"rank": self.files.ranks.rank})
        self.files.save(trace, timestamp)

    def process_duration_event(
        self, name: str, categories: Any, is_start: bool, timestamp: Any, wall_clock_time_ns: int
    ) -> None:
        """Begin or end a range, which is recorded if a recording is active; an open one of the same name is closed first.

        Args:
            name: What it is called.
            categories: Not used.
            is_start: Whether it begins.
            timestamp: Not used.
            wall_clock_time_ns: Not used: the recorder has a better clock.
        """
        begun = self._ranges.pop(name, None)
        if begun is not None:
            begun.__exit__(None, None, None)
        if is_start and not name.startswith(_OURS):
            self._ranges[name] = record_function(name)
            self._ranges[name].__enter__()

    def process_instant_event(
        self, name: str, categories: Any, timestamp: Any, wall_clock_time_ns: int
    ) -> None:
        """Mark an instant, as an empty range.

        Args:
            name: What it is called.
            categories: Not used.
            timestamp: Not used.
            wall_clock_time_ns: Not used.
        """
        with record_function(name):
            pass

    def process_counter_event(
        self, name: str, categories: Any, wall_clock_time_ns: int, timestamp: Any, values: dict[str, Any]
    ) -> None:
        """Record the values of counters, named `NAME/KEY`. Thread-safe.

        Args:
            name: What they are called together.
            categories: Not used.
            wall_clock_time_ns: Not used.
            timestamp: Not used.
            values: The value of each counter.
        """
        columns: dict[str, list[Any]] = {
            "monotonic_ns": [time.monotonic_ns()] * len(values),
            "name": [f"{name}/{key}" for key in values],
            "value": [float(value) for value in values.values()],
        }
        self._counters("counters", columns)

    def process_chrome_json_trace_file(self, filepath: Any) -> None:
        """Write a trace made by something else, such as Composer's own `TorchProfiler`, like ours.

        Args:
            filepath: Where, in Chrome's format.
        """
        with open_trace(filepath) as trace:
            self.take(trace, self._state.timestamp)


def tell_handlers(profiler: Any, trace: Trace, timestamp: Any, path: Path) -> None:
    """Pass a trace to the handlers of a profiler: ours get the trace, others the file if they can read it."""
    handlers = getattr(profiler, "trace_handlers", ())
    for handler in handlers:
        try:
            if isinstance(handler, JSONTraceHandler):
                handler.take(trace, timestamp)
            elif path.name.lower().endswith((".json", ".json.gz")):
                handler.process_chrome_json_trace_file(path)
        except Exception as error:  # noqa: BLE001  (whatever a handler does, training goes on)
            warn_user(f"{type(handler).__name__} did not write a trace: {type(error).__name__}: {error}")


def all_ranks_are_here(state: Any) -> None:
    """Wait for all ranks of Composer's run: none may write before all have checked that a folder is empty."""
    distributed = torch.distributed
    if (
        IS_THERE
        and not isinstance(state, LoopState)
        and distributed.is_available()
        and distributed.is_initialized()
    ):
        from composer.utils import dist

        dist.barrier()


_NONE, _WARMUP, _RECORD = SessionAction.NONE, SessionAction.WARMUP, SessionAction.RECORD
_IN_SESSION = {
    ProfilerAction.SKIP: _NONE,
    ProfilerAction.WARMUP: _WARMUP,
    ProfilerAction.ACTIVE: _RECORD,
    # A session would save at the next step; `batch_ends` saves at the end of the batch.
    ProfilerAction.ACTIVE_AND_SAVE: _RECORD,
}
# The prefix of the ranges by which torch's own loaders mark their waits, and by which tables find them.
DATA_WAIT = "enumerate(DataLoader)#Composer"


class BatchRecorder:
    """Records batches by a schedule.

    A batch may be announced before it is known whether it comes, because the wait for its data belongs to it. A recording that the schedule
    ends without a save, such as at the end of an epoch, is saved all the same.

    Args:
        schedule: A callable from a training state to a `ProfilerAction`.
        save: Called with the session and a timestamp for each finished recording.
        options: What is recorded.

    Attributes:
        session: The session.
        action: The scheduled action of the current batch.
    """

    def __init__(
        self, schedule: BatchSchedule, save: Callable[[profile, Any], object], options: RecordingOptions
    ) -> None:
        self._schedule = schedule
        self._save = save
        self._wanted = _NONE
        # The end of the recording's last batch; None without a batch, and then it is not saved.
        self._timestamp: Any = None
        self._in_batch = False
        self._announced = False
        self._stepped = False
        self._wait: Any = None
        self.action = ProfilerAction.SKIP
        self.session = profile.with_options(
            options, schedule=lambda _step: self._wanted, on_trace_ready=self._trace_ready
        )

    @property
    def records(self) -> bool:
        """Whether a recording is active."""
        return self.session.current_action is _RECORD

    def batch_may_begin(self, state: Any, *, surely: bool = False) -> None:
        """Announce a batch that the loop is about to fetch. In loops that only report the end of batches, the next one begins here."""
        length = batches_of_epoch(state)
        if length is not None and int(state.timestamp.batch_in_epoch) >= length:
            return
        action = self.action_for(state)
        if length is None and not surely and not (self.records and _IN_SESSION[action] is _RECORD):
            # It may be the end of the epoch, so what would have to be undone waits for the batch.
            return
        self._turn(action, state)

    def wait_begins(self, state: Any) -> None:
        """Announce a batch, and open the range of the wait for it."""
        self.wait_ends()
        self.batch_may_begin(state)
        if self.records:
            self._wait = begin_range(DATA_WAIT)

    def wait_ends(self) -> None:
        """Close the range of a wait, if there is one."""
        wait, self._wait = self._wait, None
        if wait is not None:
            end_range(wait)

    def batch_begins(self, state: Any) -> None:
        """A batch begins."""
        action = self.action_for(state)
        if not self._announced or action is not self.action:
            self._turn(action, state)
        self._in_batch = True

    def batch_ends(self, state: Any) -> None:
        """A batch is over, and the timestamp counts it."""
        self._in_batch = self._announced = False
        if self.records:
            self._timestamp = state.timestamp
            if self.action is ProfilerAction.ACTIVE_AND_SAVE:
                self._finish()

    def close(self, state: Any) -> None:
        """Training is over, or has failed: save what was recorded of it."""
        self.wait_ends()
        if self._in_batch:
            self._timestamp = state.timestamp
        self.stop()

    def stop(self) -> None:
        """End the session, if it was started."""
        if self._stepped:
            self.session.stop()

    def abandon(self) -> None:
        """End the session without a warning: the failure was reported already."""
        self._timestamp = None
        self.wait_ends()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.stop()

    def action_for(self, state: Any) -> ProfilerAction:
        """The scheduled action of the state's batch.

        Raises:
            ArgumentError: The schedule is of another kind, or does not return an action.
        """
        try:
            action = self._schedule(state)
        except (AttributeError, TypeError) as error:
            raise ArgumentError(
                f"the schedule {self._schedule!r} cannot be used: called with the state of the training run, it failed "
                f"({type(error).__name__}: {error}). cyclic_schedule(...) makes one."
            ) from error
        if action not in _IN_SESSION:
            raise ArgumentError(
                f"the schedule returned {action!r} for batch {int(state.timestamp.batch)}: it must return a "
                f"ProfilerAction: {', '.join(action.name for action in _IN_SESSION)}."
            )
        return action

    def _turn(self, action: ProfilerAction, state: Any) -> None:
        self.action, self._announced = action, True
        wanted = _IN_SESSION[action]
        if self.records and wanted is not _RECORD:
            self._finish()
        if self.session.current_action is _WARMUP and wanted is _NONE:
            # The session is prepared, and stays so until the next cycle.
            wanted = _WARMUP
        self._step(wanted, int(state.timestamp.batch))

    def _finish(self) -> None:
        self.session.current_action = SessionAction.RECORD_AND_SAVE
        self._step(_NONE, self.session.step_num + 1)
        self._timestamp = None

    def _step(self, wanted: SessionAction, batch: int) -> None:
        self._wanted, self._stepped = wanted, True
        self.session.step_num = batch - 1
        self.session.step()

    def _trace_ready(self, session: profile) -> None:
        if self._timestamp is not None:
            self._save(session, self._timestamp)


_ROWS = 20


class TorchProfiler(Callback):
    """Profiles the batches that a schedule selects, and saves their traces.

    Under Composer it is a callback; the schedule is that of Composer's `Profiler`, or the one given here:

        Trainer(..., callbacks=[TorchProfiler(schedule=cyclic_schedule(wait=5, active=2))])

    In a loop of your own it is a context manager:

        with TorchProfiler("traces", run_name="mine", schedule=cyclic_schedule(active=2)) as profiler:
            for batch in loader:
                train(batch)
                profiler.step()

    A failure during training is a warning; training is not affected.

    Args:
        folder: Format of the folder's name: see `TraceFiles`, also for the arguments up to `num_traces_to_keep`.
        filename: Format of the name of a trace.
        remote_file_name: Format of the name under which it is uploaded; None for no upload.
        memory_filename: Format of the name of a memory timeline; None for none. Needs `profile_memory`.
        memory_remote_file_name: Format of the name under which that is uploaded; None for no upload.
        overwrite: Whether the folder may contain files, and remote files may be replaced.
        use_gzip: Append `.gz` to `filename` and `remote_file_name` where it is not there yet.
        record_shapes: Record the input shapes of each operator.
        profile_memory: Record every allocation.
        with_stack: Record the Python stack of each operator.
        with_flops: Count operations.
        num_traces_to_keep: The number of traces to keep in the folder; -1 for all, 0 for none.
        schedule: A callable from a training state to a `ProfilerAction`, such as `cyclic_schedule(...)` makes; None: that of
            Composer's `Profiler`.
        run_name: Name of the run; None: that of Composer's run.
        log_to_tracker: Log each trace, and each incident of `leave_on`, to experiment trackers: True for the active runs and those of
            Composer's loggers; or a run, a `SummaryWriter`, or a list of these, as for `kinetoscope.log_to_tracker`.
        leave_on: Turn on the flight recorder, as `kinetoscope.leave_on` does: True, or a dictionary of its arguments. Then no schedule is
            needed, and without one no other trace is made.
        **session: Further arguments of `kinetoscope.profile`, such as `activities`, `engine` and `sources`.

    Attributes:
        saved_traces: A pair for each trace that is kept, the newest last: its timestamp and a list of paths, one for each rank.
        profiler: The session, between the first event of training and `close`; else None.
        state: The state of the training run; None before there is one.
        recorder: The flight recorder of this training, or of the last one; else None.

    Raises:
        ArgumentError: A name has an unknown variable (it lists the known ones), or an argument cannot be used.
        MissingDependencyError: A URL needs a package that is not installed.
    """

    def __init__(
        self,
        folder: str = FOLDER,
        filename: str = FILENAME,
        remote_file_name: str | None = REMOTE_FILE_NAME,
        *,
        memory_filename: str | None = None,
        memory_remote_file_name: str | None = None,
        overwrite: bool = False,
        use_gzip: bool = False,
        record_shapes: bool = False,
        profile_memory: bool = True,
        with_stack: bool = False,
        with_flops: bool = True,
        num_traces_to_keep: int = -1,
        schedule: BatchSchedule | None = None,
        run_name: str | None = None,
        log_to_tracker: object = False,
        leave_on: bool | Mapping[str, Any] = False,
        **session: Any,
    ) -> None:
        if memory_filename is not None and not profile_memory:
            raise ArgumentError(
                f"memory_filename={memory_filename!r} needs profile_memory=True: a memory timeline is made of allocations."
            )
        for taken in {"on_trace_ready", "acc_events", "path"}.intersection(session):
            raise ArgumentError(f"{taken} cannot be set: TorchProfiler handles its traces itself.")
        arguments = locals()
        self.files = TraceFiles(**{name: arguments[name] for name in FILE_ARGUMENTS})
        self._options = RecordingOptions(
            **session, **{name: arguments[name] for name in OPTION_NAMES & {*arguments}}
        )
        self._schedule = checked_callable("schedule", schedule)
        self._run_name = run_name
        self._tracker_log = checked_tracker(log_to_tracker)
        self._destinations: Any = ()
        self.state: Any = None
        self._batches: BatchRecorder | None = None
        self._leave_on = checked_leave_on(leave_on)
        self._flight = LeftOnTraining(self._leave_on)

    @property
    def saved_traces(self) -> list[tuple[Any, list[Path]]]:
        """The kept traces: timestamp and the path of each rank, the newest last."""
        return self.files.saved_traces

    @property
    def recorder(self) -> FlightRecorder | None:
        """The flight recorder of this training, or of the last one; else None."""
        return self._flight.recorder

    @property
    def profiler(self) -> profile | None:
        """The session; None before training and after it."""
        return self._batches.session if self._batches is not None else None

    def init(self, state: Any, logger: Any) -> None:
        """Prepare everything before training starts.

        Args:
            state: The state of the training run.
            logger: Where traces are uploaded; None for none.

        Raises:
            StateError: There is no schedule, or another profiler would write the same files.
            FolderNotEmptyError: There are files in the folder and `overwrite` is off. It is a `FileExistsError`.
            ArgumentError: A name contains `{run_name}`, and the run has none.
        """
        schedule = self._schedule or getattr(getattr(state, "profiler", None), "schedule", None)
        if schedule is None and self._leave_on is not None:
            self._begin_flight(state, logger)
            return
        if schedule is None:
            raise StateError(
                "TorchProfiler has no schedule of batches: pass schedule=cyclic_schedule(...) to it, or "
                "profiler=Profiler(schedule=...) to Composer's Trainer."
            )
        self._look_for_another(state)
        batches = BatchRecorder(schedule, self._save, self._options)
        batches.action_for(state)
        self.files.start(self._run_name or state.run_name, logger)
        all_ranks_are_here(state)
        self._begin_flight(state, logger)
        self._batches = batches

    def _begin_flight(self, state: Any, logger: Any) -> None:
        self.state = state
        self._destinations = getattr(logger, "destinations", ())
        self._flight.end()
        self._flight.begin()
        if self._tracker_log is not None:
            self._tracker_log.log_incidents(self._loggers)

    def _step_may_begin(self, state: Any) -> None:
        """A step begins with the wait for its batch, or with the batch if no wait was reported."""
        length = batches_of_epoch(state)
        if not self._flight.step_is_open and (length is None or int(state.timestamp.batch_in_epoch) < length):
            self._flight.open_step(int(state.timestamp.batch))

    def _step_ends(self, loss: Any = None) -> None:
        """End a step, or a wait that found no batch; an evaluation or a checkpoint may follow."""
        if self._flight.step_is_open:
            for scalar in loss if isinstance(loss, (list, tuple)) else [loss]:
                self._flight.note_loss(scalar)
            self._flight.close_step()

    def before_dataloader(self, state: Any, logger: Any) -> None:
        """The loop begins to wait for the next batch.

        Args:
            state: The state of the training run.
            logger: Not used.
        """
        self._step_may_begin(state)
        self._carefully(lambda batches: batches.wait_begins(state))

    def after_dataloader(self, state: Any, logger: Any) -> None:
        """The batch is there.

        Args:
            state: The state of the training run.
            logger: Not used.
        """
        self._carefully(BatchRecorder.wait_ends)

    def batch_start(self, state: Any, logger: Any) -> None:
        """A batch begins.

        Args:
            state: The state of the training run.
            logger: Logs the profiler's state as `profiler/state`.
        """
        self._step_may_begin(state)
        self._carefully(lambda batches: batches.batch_begins(state))
        if self._batches is not None and hasattr(logger, "log_traces"):
            logger.log_traces({"profiler/state": self._batches.action.name})

    def batch_end(self, state: Any, logger: Any) -> None:
        """A batch has ended; its trace is saved if the schedule says so.

        Args:
            state: The state of the training run, whose timestamp counts the batch already.
            logger: Not used.
        """
        self._step_ends(getattr(state, "loss", None))
        self._carefully(lambda batches: batches.batch_ends(state))

    def epoch_end(self, state: Any, logger: Any) -> None:
        """An epoch is over.

        Args:
            state: The state of the training run.
            logger: Not used.
        """
        self._step_ends()
        self._carefully(BatchRecorder.wait_ends)

    def close(self, state: Any, logger: Any) -> None:
        """Training is over, or has failed: save what is recorded, log the tables of operators, finish uploads.

        Args:
            state: The state of the training run.
            logger: Not used.
        """
        self._carefully(lambda batches: batches.close(state))
        self._carefully(self._log_tables)
        self._batches = None
        self.files.close()
        self._flight.end(sys.exception())

    def start(self, *, dataloader_len: int | None = None) -> Self:
        """Begin to follow a loop of your own.

        Args:
            dataloader_len: Batches in each epoch, for schedules that want to know which one is the last.

        Returns:
            This object.

        Raises:
            StateError: It was started already, or has no schedule.
            FolderNotEmptyError: There are files in the folder and `overwrite` is off. It is a `FileExistsError`.
            ArgumentError: A name has `{run_name}` and there is none.
        """
        if isinstance(self.state, LoopState):
            raise StateError(f"{type(self).__name__} was started already: call stop() first.")
        self.init(LoopState(self._run_name, dataloader_len), None)
        self._next_batch()
        return self

    def step(self, *, samples: int = 0, tokens: int = 0) -> None:
        """Mark the end of a batch and the beginning of the next.

        Args:
            samples: Samples it had, for names with `{sample}`.
            tokens: Tokens it had, for names with `{token}`.

        Raises:
            StateError: `start` was not called.
        """
        loop = self._followed()
        loop.batch_is_over(samples, tokens)
        self.batch_end(loop, None)
        self._next_batch()

    def next_epoch(self) -> None:
        """Mark the end of an epoch; schedules of `cyclic_schedule` restart.

        Raises:
            StateError: `start` was not called.
        """
        loop = self._followed()
        loop.timestamp = loop.timestamp.to_next_epoch()
        self._next_batch()

    def stop(self) -> None:
        """End: save what is recorded, log the tables of operators, finish uploads. A second call does nothing."""
        if isinstance(self.state, LoopState):
            self.close(self.state, None)
            self.state = None

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(self, *_error: object) -> None:
        """Stop."""
        self.stop()

    def _followed(self) -> LoopState:
        if not isinstance(self.state, LoopState):
            raise StateError(
                f"{type(self).__name__} was not started: call start(), or use it in a `with` block."
            )
        return self.state

    def _next_batch(self) -> None:
        self._step_may_begin(self.state)
        self._carefully(lambda batches: batches.batch_may_begin(self.state, surely=True))

    def _carefully(self, do: Callable[[BatchRecorder], object]) -> None:
        """Call a function; if it fails, profiling ends for this run, but training goes on."""
        batches = self._batches
        if batches is None:
            return
        try:
            do(batches)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is not the training's)
            self._batches = None
            warn_user(f"profiling stopped, training continues: {type(error).__name__}: {error}")
            with contextlib.suppress(Exception):
                batches.abandon()

    def _save(self, session: profile, timestamp: Any) -> None:
        session.add_metadata_json("global_rank", json.dumps(Ranks.of_this_process().rank))
        try:
            profiler = getattr(self.state, "profiler", None)
            self.files.save(
                session,
                timestamp,
                written=lambda path: tell_handlers(profiler, session.trace, timestamp, path),
            )
            if self._tracker_log is not None:
                self._tracker_log.log(session.trace, f"batch-{int(timestamp.batch)}", self._loggers)
        except Exception as error:  # noqa: BLE001  (a full disk must not end a training run)
            warn_user(f"a trace was not saved: {type(error).__name__}: {error}")

    def _loggers(self) -> list[Any]:
        return list(self._destinations)

    def _log_tables(self, batches: BatchRecorder) -> None:
        session = batches.session
        if not session.cycles or not _log.isEnabledFor(logging.INFO):
            return
        averages = session.key_averages()
        for device in ("cpu", "device") if self._has_device(session.activities) else ("cpu",):
            _log.info("%s", averages.table(sort_by=f"{device}_time_total", row_limit=_ROWS))
            if session.profile_memory:
                _log.info("%s", averages.table(sort_by=f"self_{device}_memory_usage", row_limit=_ROWS))

    @staticmethod
    def _has_device(activities: Iterable[Any]) -> bool:
        return any(activity != ProfilerActivity.CPU for activity in activities)

    def _look_for_another(self, state: Any) -> None:
        for other in getattr(state, "callbacks", ()):
            if type(other).__name__ != "TorchProfiler" or isinstance(other, TorchProfiler):
                continue
            if getattr(other, "folder", None) == self.files.folder_template.text:
                raise StateError(
                    f"Composer's own TorchProfiler is also on and writes to the same folder, {self.files.folder_template.text}. "
                    "Call kinetoscope.integrations.composer.install_composer() before creating its Profiler, or pass it "
                    "torch_prof_profile_memory=False and torch_prof_with_flops=False."
                )


_PLACES = ("composer.profiler", "composer.profiler.profiler", "composer.profiler.torch_profiler")
_NAME = "TorchProfiler"
_replaced = Replacements()


def install_composer() -> None:
    """Make every new Composer `Profiler` use our `TorchProfiler`. A second call does nothing.

    Raises:
        MissingDependencyError: Composer is not installed, or cannot be imported.
    """
    if not IS_THERE:
        raise MissingDependencyError(
            "install_composer() needs Composer, which is not installed here or cannot be imported: `pip install mosaicml`."
        )
    for module in map(importlib.import_module, _PLACES):
        if getattr(module, _NAME) is not TorchProfiler:
            _replaced.put(module, _NAME, TorchProfiler)


def uninstall_composer() -> None:
    """Undo `install_composer`. Without it, this does nothing."""
    _replaced.restore()
