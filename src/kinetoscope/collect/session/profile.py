"""The public session, `profile`: a schedule of steps, and a handler for finished traces."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import torch

from kinetoscope._errors import ArgumentError, RecorderError, checked_switch, checked_whole
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import (
    ActivityItem,
    ProfilerAction,
    checked_choices,
    collector_takes,
    record_function,
)
from kinetoscope.collect.request.options import (
    OPTION_NAMES,
    Engine,
    EngineName,
    OnError,
    RecordingOptions,
    ReportPath,
    Source,
    TraceObserver,
    UnknownKeywordError,
    checked_callable,
)
from kinetoscope.collect.session.base_session import _KinetoProfile, already_recording, by_owner
from kinetoscope.collect.session.decorated import decorated
from kinetoscope.collect.session.failures import DeferredSignals, Failures, yielding_to_interrupts
from kinetoscope.collect.session.schedule import Schedule, record_always, scheduled_action, transition
from kinetoscope.collect.session.state import Move, SessionState
from kinetoscope.collect.sources.execution_trace import ExecutionTraceObserver
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS
from kinetoscope.collect.sources.rank_clock import RankClocks
from kinetoscope.model import units

_STEP_NAME = "ProfilerStep"
P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(eq=False)
class _Run:
    """A run, from `start` to `stop`. If `_run` of the session is another object, the session was stopped in the meantime."""

    recorded: bool = False  # whether the last cycle was recorded
    ever_recorded: bool = False
    changing: bool = False  # whether a transition is in progress
    # Whether a recording that cannot begin is only a warning: once the run has started.
    forgives: bool = False
    ends_recorded: bool = False  # whether its end stopped a recording, for the handler


class profile(_KinetoProfile):  # noqa: N801  (torch's name)
    """A profiling session: a context manager, or a decorator of the function to be profiled.

    Without a schedule, everything between `start` and `stop` is recorded. With one, call `step()` after each step of
    the training loop; at the end of each cycle `on_trace_ready` is called with this session, and each recorded step
    is a `ProfilerStep#N` range of the trace.

    Args:
        activities: What to record, any iterable of torch's `ProfilerActivity`; default: all that this machine has. An item
            may also be a mapping from an activity to the names of the event kinds to record, as in torch, or to
            a `ProfilerActivityConfig` of torch 2.15; only the Kineto engine can select kinds.
        schedule: A callable from a step number to a `ProfilerAction`, such as `schedule(...)` makes.
        on_trace_ready: Called with this session whenever a trace is ready.
        record_shapes: Record shapes, dtypes and scalars of each operator's inputs.
        profile_memory: Record every allocation and free, with sizes in bytes.
        with_stack: Record the Python stack of each operator.
        with_flops: Count the floating-point operations and bytes moved of each operator, from the shapes of its inputs.
        with_modules: Record the path of the `nn.Module` that each operator ran in.
        experimental_config: torch's `_ExperimentalConfig`. The Kineto engine passes it to torch's collector; the native
            engine warns once of settings that have no effect on it.
        execution_trace_observer: Anything with `start()`, `stop()` and `cleanup()`, such as an
            `ExecutionTraceObserver`; it runs for the same time as each recording, and is cleaned up at the end of the
            `with` block. Default: one is created if `ENABLE_PYTORCH_EXECUTION_TRACE=1` is set, as in torch.
        acc_events: Keep every cycle, not only the last: for `events()`, `key_averages()`, `cycles` and exports.
        custom_trace_id_callback: Called once for each cycle, returns the id of its trace, a string; default: random.
        post_processing_timeout_s: Passed to torch's collector, for its own event objects; our events and traces are always complete.
        use_cuda: Deprecated; adds CUDA to the activities or removes it. Refused if the installed torch is 2.14 or newer,
            which removed it.
        engine: `"native"`, `"kineto"` (torch's own collector), `"auto"`: native where available; or an engine object.
        path: The live recording file; `{rank}` becomes the rank of the process. If it contains no rank and
            there are several ranks, `.rank3` is added before the suffix, and for cycles after the first a number. Default: a
            private temporary file that is removed with its trace.
        summary: Write a summary of each cycle when it ends, for `kinetoscope ranks`: the name of a folder, in which rank 3 writes
            `rank-00003.parquet` (cycles after the first in a folder `cycle-1` and so on), or of a `.parquet` file, which is numbered
            as `path` is. It waits for no other rank. If it cannot be written, that is a warning.
        ring_bytes: Upper limit of the recording in bytes; the oldest records are overwritten. None means no limit.
        python_calls: Record every call of a Python function as a span.
        module_spans: Record every call of an `nn.Module` as a span with its exact start and end.
        garbage_collection: Record collections of Python's garbage as spans.
        tensor_versions: Record the storage and version of each tensor of an operator, and the shapes of inputs, so that `findings` and
            the account find work whose result already existed. The native engine only.
        deep_steps: Record some steps in full, with the shapes of inputs and the versions of tensors: the three after the step in which the
            recording begins, some of the next, then one of 64. From these, `findings` and tables estimate the shapes of the other steps. In a program
            without steps, slices of time are recorded in full instead. The native engine only.
        samples: Read the Python stack of every thread 100 times a second (400 in a ring), from a thread of its own: the table `samples`, and
            the lines of Python that run between operators. Torch's own collector (`engine="kineto"`) cannot.
        oom_report: The file of a text report, with an HTML page next to it, on what held the memory when memory runs out. None: a default name; False: no report.
        sources: Additional recorders whose data is added to each trace: `SystemCounters()`, `DataLoading()`, or any object with
            `open`, `start`, `stop` and `close`. A failure of one is only a warning.
        source: Store the text of hot source lines in saved traces, each with two lines before and after it.
        align_ranks: Synchronize all ranks of the job right before each recording and at its end, so that `kinetoscope.merge`
            can align their clocks; all ranks must record, and equally often. See `align_clocks`.
        on_error: How to handle an exception in `on_trace_ready`, or of the observer at the end of a recording: `"raise"`
            raises it from `step` or `stop` after the session has finished its own work, `"warn"` makes it a warning.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it and the valid ones.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ActivityItem] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: Any | None = None,
        execution_trace_observer: TraceObserver | None = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
        engine: EngineName | Engine = "auto",
        path: str | os.PathLike[str] | None = None,
        summary: str | os.PathLike[str] | None = None,
        ring_bytes: int | None = None,
        python_calls: bool = False,
        module_spans: bool = False,
        garbage_collection: bool = False,
        tensor_versions: bool = False,
        deep_steps: bool = False,
        samples: bool = True,
        oom_report: ReportPath = None,
        sources: Iterable[Source] = (),
        source: bool = True,
        align_ranks: bool = False,
        on_error: OnError = "raise",
    ) -> None:
        options = {name: value for name, value in locals().items() if name in OPTION_NAMES}
        if use_cuda is not None:
            if not collector_takes("use_cuda"):
                raise UnknownKeywordError(
                    f"use_cuda={use_cuda!r}: torch 2.14 removed this keyword, so the installed torch does not have it. "
                    "Add ProfilerActivity.CUDA to `activities`, or leave it out."
                )
            warn_user("`use_cuda` is deprecated, use `activities` argument instead", FutureWarning)
            on = checked_switch("use_cuda", use_cuda)
            options["activities"] = checked_choices(activities, use_cuda=on)
        self._set_up(RecordingOptions(**options), schedule, on_trace_ready)

    @classmethod
    def with_options(
        cls,
        options: RecordingOptions,
        *,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
    ) -> Self:
        """Make a session from a `RecordingOptions` object.

        Args:
            options: What to record.
            schedule: A callable from a step number to a `ProfilerAction`.
            on_trace_ready: Called with the session whenever a trace is ready.

        Returns:
            A session that is not started yet.

        Raises:
            ArgumentError: `schedule` or `on_trace_ready` cannot be called, or the schedule returns no action.
        """
        session = cls.__new__(cls)
        cls._set_up(session, options, schedule, on_trace_ready)
        return session

    def _set_up(
        self,
        options: RecordingOptions,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
    ) -> None:
        if options.execution_trace_observer is None:
            from_env = ExecutionTraceObserver.build_execution_trace_obs_from_env()
            if from_env is not None:
                options = dataclasses.replace(options, execution_trace_observer=from_env)
        super()._set_up(options)
        self.schedule = checked_callable("schedule", schedule) or record_always
        self.on_trace_ready = checked_callable("on_trace_ready", on_trace_ready)
        # As in torch, a session without a schedule marks no steps; but in a ring, marks are the only way to tell which steps it
        # still contains.
        self.record_steps = schedule is not None or options.ring_bytes is not None
        if self.profile_memory and self.record_steps:
            # Now: `step` may be called in a hook of the first recorded optimizer step, too late to hook into that.
            OPTIMIZER_STEPS.listen()
        self.step_num = 0
        self._number_ahead = 0  # the user's number of a step minus `step_num`
        self.current_action = self._action(0)
        torch.autograd.profiler.KinetoStepTracker.init_step_count(_STEP_NAME)
        self._run: _Run | None = None
        self._ever_started = False
        self._not_begun = ""  # why the last cycle could not be recorded, if so
        self.step_range: Any = None
        # Serializes `step`, which several threads of a program may call.
        self._stepping = threading.RLock()

    def _own_sources(self, options: RecordingOptions) -> tuple[Source, ...]:
        sources = super()._own_sources(options)
        return (RankClocks(), *sources) if options.align_ranks else sources

    # ------------------------------------------------------------------------------------------------ life cycle

    @by_owner
    def start(self) -> None:
        """Start the session, with the action that the schedule returns for the current step.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
            RecorderError: The requested engine cannot record here.
        """
        with self._lock:
            if self._run is not None:
                raise already_recording()
            self._run = run = _Run()
            self._move(Move.BEGIN)
            self._not_begun = ""
        try:
            self._sources.open()
            self._transit(run, ProfilerAction.NONE, self.current_action)
            self._ever_started = run.forgives = True
            self._open_step_range(run)
        except BaseException:
            with self._lock:
                if self._run is run:
                    self._run = None
                    self._abandon()
                    self._move(Move.FAIL)
            self._sources.close()
            raise

    def stop(self) -> None:
        """Stop the session: stop the recording and, if there is one, call `on_trace_ready`. A second call does nothing.

        Raises:
            StateError: `start` was never called.
        """
        with yielding_to_interrupts("stop()") as may_raise:
            self._stop(may_raise=may_raise)

    @by_owner
    def step(self, number: int | None = None) -> None:
        """Mark the start of the next step. The first call starts a session that was not started.

        Recorded steps are marked if there is a schedule, and in a ring (`ring_bytes`) from the first call on.
        A cycle that cannot be recorded, because the disk is full for example, is a warning here, and the next one is tried
        again.

        Args:
            number: The number of the step that begins, such as the job's step number in a resumed job; later steps count on from it. The
                schedule still counts calls. None: one more than the previous step.

        Raises:
            ArgumentError: The schedule did not return a ProfilerAction; the session then stays in its current step. Or `number` is not
                a whole number of at least 0.
        """
        with self._stepping:
            self._step(None if number is None else checked_whole("number", number, 0, ", or nothing"))

    def _step(self, number: int | None) -> None:
        """Begin the next step; the caller holds `_stepping`."""
        if self._run is None and not self._ever_started:
            self.start()
        self.close_mark()
        action = self._action(self.step_num + 1)
        with self._lock:
            before, run = self.current_action, self._run
            self.step_num += 1
            if number is not None:
                self._number_ahead = number - self.step_num
            self.current_action = action
        if run is None:
            return
        try:
            self._transit(run, before, action)
            if self._deep_steps is not None:
                self._deep_steps.begin_step()
        finally:
            if os.environ.get("KINETO_USE_DAEMON"):
                # Lets the Kineto daemon count the program's steps, for its requests of a number of steps.
                torch.autograd.profiler.KinetoStepTracker.increment_step(_STEP_NAME)
            self._open_step_range(run)

    def __enter__(self) -> Self:
        _ENTERED.add(self)
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        # An exception of the profiled program must not be replaced by one of ours.
        self.leave(may_raise=exc_val is None)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Profile every call of a function, also of a generator or a coroutine.

        Args:
            function: The function to profile.

        Returns:
            The function with this session around each of its calls.
        """
        if not callable(function):
            raise ArgumentError(f"a session can only decorate functions, and {function!r} is not one.")
        profiled: Callable[P, R] = decorated(self, function)
        return profiled

    # ------------------------------------------------------------------------------------------------ transitions

    def _action(self, step: int) -> ProfilerAction:
        return scheduled_action(self.schedule, step)

    @by_owner
    def leave(self, *, may_raise: bool, explain: bool = True) -> None:
        """Leave the `with` block: end the run, then clean up the observer."""
        _ENTERED.discard(self)
        if sys.is_finalizing():
            # `_leave_at_exit` has already left the block, which is in a generator that did not end.
            return
        try:
            self._stop(may_raise=may_raise, explain=explain)
        finally:
            torch.autograd.profiler.KinetoStepTracker.erase_step_count(_STEP_NAME)
            self._clean_up(may_raise=may_raise)

    def leave_at_exit(self) -> None:
        """Leave the `with` block as Python exits, in the process that the session belongs to; a failure is a warning."""
        if self._process == os.getpid():
            try:
                self.leave(may_raise=False)
            except Exception as error:  # noqa: BLE001  (the program ends as it would without us)
                warn_user(f"a session could not be stopped at exit: {type(error).__name__}: {error}")

    @by_owner
    def _stop(self, *, may_raise: bool, explain: bool = True) -> None:
        failures = Failures(self._options.on_error, self.step_num)
        try:
            run = self._end(failures)
        except Exception:
            raise
        except BaseException:
            # An interrupt that was not deferred: before signals were, or the second one. The recording must end nevertheless.
            self._end(failures)
            raise
        if run is not None and run.ends_recorded:
            self._call_handler(failures)
        if run is not None:
            self._report_out_of_memory(run.recorded)
        failures.raise_first(may_raise=may_raise)
        if run is not None and not run.ever_recorded and explain:
            warn_user(f"nothing was recorded: {self._not_begun or self._why_nothing()}")

    def _end(self, failures: Failures) -> _Run | None:
        """End the run, or a recording without one, with signals deferred; return the run, whose handler is still to be called."""
        run = None
        with DeferredSignals() as deferred:
            with self._lock:
                run, self._run = self._run, None
            if run is None:
                self._end_without_run()
            else:
                self._end_run(run, failures)
        failures.note(Failures.HANDLER, deferred.error)
        return run

    def _end_without_run(self) -> None:
        if not self._ever_started or self.state.has_engine:
            super().stop()
        elif (failure := self._observer.close()) is not None:
            raise failure
        ACTIVE_SESSIONS.release(self)

    def _end_run(self, run: _Run, failures: Failures) -> None:
        """End the current cycle as its state requires (an interrupt may have kept the action from following it), and close the sources."""
        try:
            self.close_mark()
            if run.changing:
                # A transition is in progress, in a caller or another thread, which notices that the run has ended.
                self._finish(failures, keep=False)
            elif self.state is SessionState.RECORDING:
                run.recorded = run.ends_recorded = self._finish(failures, keep=True)
                run.ever_recorded |= run.recorded
            elif self.current_action is ProfilerAction.WARMUP and self._begun(run, self.start_trace):
                self._finish(failures, keep=False)
            elif self.state is SessionState.PREPARED:
                # An exception was raised between preparing and recording.
                self._finish(failures, keep=False)
            # After an interrupt the observer may still be running although the recording is closed.
            failures.note(Failures.OBSERVER, self._observer.close())
        except BaseException:
            with self._lock:
                if self.state.has_engine and self._run is None:
                    # The engine is still recording: the run continues, and stop() can be called again.
                    self._run = run
            raise
        finally:
            if self._run is None:
                self._sources.close()
        with self._lock:
            if self._run is None:
                self._move(Move.END)

    def _transit(self, run: _Run, before: ProfilerAction, after: ProfilerAction) -> None:
        """Make all transitions that a change of action requires, even if the handler fails; then raise its exception."""
        change = transition(before, after)
        failures = Failures(self._options.on_error, self.step_num)
        run.changing = True
        try:
            for do in change.do:
                if self._run is not run:
                    break
                self._do(do, run, before, failures)
        finally:
            run.changing = False
        if self._run is None:
            # stop() was called in the meantime: the engine must not be left recording.
            self._finish(failures, keep=False)
        if change.warning is not None:
            warn_user(change.warning)
        failures.raise_first(may_raise=True)

    def _do(self, do: Move, run: _Run, before: ProfilerAction, failures: Failures) -> None:
        """Make one transition; note a signal handler's exception when it is complete."""
        if do is Move.TRACE_READY:
            if run.recorded:
                self._call_handler(failures)
            return
        if self._engine is None and do in (Move.PREPARE, Move.START):
            # While signals are not deferred yet: it may compile the recorder. A failure is raised again by the move itself.
            with suppress(RecorderError):
                self._choose_engine()
        # Valid in any state, because an interrupt may have skipped a move.
        with DeferredSignals(interrupts=False) as deferred:
            if do is Move.PREPARE:
                if self.state is SessionState.RECORDING:
                    self._finish(failures, keep=True)
                self._begun(run, self.prepare_trace)
            elif do is Move.START:
                if self.state is not SessionState.RECORDING and not self._begun(run, self.start_trace):
                    # Otherwise the handler would be called with the previous cycle.
                    run.recorded = False
            elif self.state.has_engine or self._cycles_begun:
                worth_keeping = before is not ProfilerAction.WARMUP
                if self._finish(failures, keep=worth_keeping) and worth_keeping:
                    run.recorded = run.ever_recorded = True
        failures.note(Failures.HANDLER, deferred.error)

    def _begun(self, run: _Run, begin: Callable[[], None]) -> bool:
        """Prepare or start a recording; False if that failed with only a warning."""
        try:
            begin()
        except (RecorderError, OSError) as error:
            if not run.forgives:
                raise
            warn_user(f"this cycle is not recorded (step {self.step_num}): {error}")
            self._not_begun = f"the cycle of step {self.step_num} could not be recorded: {error}"
            return False
        return True

    def _call_handler(self, failures: Failures) -> None:
        try:
            self._trace_ready()
        except BaseException as error:  # noqa: BLE001  (an interrupt too must find the engine in order)
            failures.note("on_trace_ready", error)

    def _clean_up(self, *, may_raise: bool) -> None:
        try:
            self._observer.cleanup()
        except Exception as error:
            if may_raise:
                raise
            warn_user(f"the execution trace observer's cleanup failed: {type(error).__name__}: {error}")

    def _reset_in_child(self) -> None:
        super()._reset_in_child()
        self._stepping = threading.RLock()

    def _open_step_range(self, run: _Run) -> None:
        if not self.record_steps or (self.schedule is record_always and self.step_num == 0):
            # Without a schedule, step 0 is not marked: `step` may never be called, and the whole recording would be one step.
            return
        with self._lock:
            if self._run is not run or self.state is not SessionState.RECORDING:
                return
            self.step_range = self.open_mark(self.step_num + self._number_ahead)

    def open_mark(self, number: int) -> Any:
        """Open the range of a step, marked as this session's own for the native engine; return it."""
        engine, name = self._engine, f"{_STEP_NAME}#{number}"
        own_steps = getattr(engine, "own_steps", None)
        if own_steps is None:
            return record_function(name).__enter__()
        # Between the two calls no Python function outside this package may be called, because it might be recorded.
        own_steps(True)
        try:
            return record_function(name).__enter__()
        finally:
            own_steps(False)

    @property
    def action_map(self) -> dict[tuple[ProfilerAction, ProfilerAction | None], list[Callable[[], Any]]]:
        """torch's attribute: the calls for each change from one action to another, with None for the end of the session."""
        calls: dict[Move, Callable[[], Any]] = {
            Move.PREPARE: self.prepare_trace,
            Move.START: self.start_trace,
            Move.STOP: self.stop_trace,
            Move.TRACE_READY: self._trace_ready,
        }
        acts: dict[tuple[ProfilerAction, ProfilerAction | None], list[Callable[[], Any]]] = {}
        for before in ProfilerAction:
            for after in (*ProfilerAction, None):
                change = transition(before, after)
                warning = [] if change.warning is None else [functools.partial(warn_user, change.warning)]
                acts[before, after] = [*warning, *(calls[do] for do in change.do)]
        # torch has no entry for the end of a session that was idle.
        del acts[ProfilerAction.NONE, None]
        return acts

    def _trace_ready(self) -> None:
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def close_mark(self) -> None:
        """Close the range of the current step; may be called from any thread."""
        with self._lock:
            step_range, self.step_range = self.step_range, None
        if step_range is not None:
            step_range.__exit__(None, None, None)

    def _why_no_trace(self) -> str:
        if self._run is not None and self.state is not SessionState.RECORDING:
            return f"the session is waiting; {self._not_begun or self._why_nothing()}"
        if self._run is None and self._ever_started:
            return f"nothing was recorded; {self._not_begun or self._why_nothing()}"
        return super()._why_no_trace()

    def _why_nothing(self) -> str:
        called = f"step() was called {self.step_num} time{'' if self.step_num == 1 else 's'}"
        if not isinstance(self.schedule, Schedule):
            return f"the schedule never returned RECORD so far ({called})."
        needed = self.schedule.steps_before_recording()
        if self.step_num >= needed:
            return f"all cycles of {self.schedule} had ended before this run started ({called})."
        return f"the schedule needs {units.count(needed, 'call')} to step() before it records; {called}."


# The sessions whose block has not been left.
_ENTERED: weakref.WeakSet[profile] = weakref.WeakSet()


@atexit.register
def _leave_at_exit() -> None:
    """Leave `with` blocks that did not end, such as those in generators, while Python and torch still work."""
    for session in list(_ENTERED):
        session.leave_at_exit()
