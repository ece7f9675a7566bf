"""The base session: prepare, start and stop one recording after another, and read them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from kinetoscope._errors import (
    ArgumentTypeError,
    KinetoscopeError,
    NotRecordedError,
    StateError,
)
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.engines.choose import (
    choose_engine,
    records_garbage_collection,
    warn_of_ignored_settings,
)
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from kinetoscope.collect.process.calibration import calibration
from kinetoscope.collect.process.dynamo import keep_out
from kinetoscope.collect.process.machine import described_devices
from kinetoscope.collect.process.rank import numbered, rank_filled_in, rank_info, ranked
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import check_that_something_is_recorded, recordable
from kinetoscope.collect.request.options import (
    Engine,
    EngineName,
    RecordingOptions,
    RecordingRequest,
    Source,
    StillRecordingError,
)
from kinetoscope.collect.request.torch_settings import GARBAGE_COLLECTION_SETTING, noted_settings
from kinetoscope.collect.session import metadata
from kinetoscope.collect.session.cycle import Cycle, FinishedCycles
from kinetoscope.collect.session.deferred_signals import DeferredSignals
from kinetoscope.collect.session.failures import HANDLER, Closed, yielding_to_interrupts
from kinetoscope.collect.session.observer_window import ObserverWindow
from kinetoscope.collect.session.out_of_memory import report_out_of_memory
from kinetoscope.collect.session.ownership import SessionOwner, by_owner
from kinetoscope.collect.session.reading import ReadsCycles
from kinetoscope.collect.session.source_window import SourceWindow
from kinetoscope.collect.session.state import Move, SessionState
from kinetoscope.collect.session.stats import Stopwatch
from kinetoscope.collect.session.torch_api import TorchSessionApi
from kinetoscope.collect.sources.compiled_modules import COMPILED_MODULES, CompiledKernels
from kinetoscope.collect.sources.compiling import Compiling
from kinetoscope.collect.sources.ranges import ROUTES
from kinetoscope.collect.sources.torch_ranges import TORCH_RANGES
from kinetoscope.summaries import SUFFIX
from kinetoscope.tables.host.source_lines import SOURCE_LINES
from kinetoscope.torch_events.event_numbers import FLOPS_OF_EVENTS

if TYPE_CHECKING:
    from typing import Self


def new_trace_id(callback: Callable[[], str] | None) -> str:
    """Return the id from the user's callback; without one a random id, 32 hexadecimal digits, as torch does.

    Raises:
        ArgumentError: The callback did not return a string.
    """
    if callback is None:
        return uuid.uuid4().hex.upper()
    trace_id = callback()
    if not isinstance(trace_id, str):
        raise ArgumentTypeError(
            f"custom_trace_id_callback returned {trace_id!r}: it must return a string, the id of the trace."
        )
    return trace_id


Value = TypeVar("Value")


class _Option(Generic[Value]):
    """An option of a session as an attribute; setting it checks the value, which applies from the next cycle on."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, session: None, owner: type) -> Self: ...
    @overload
    def __get__(self, session: _KinetoProfile, owner: type) -> Value: ...
    def __get__(self, session: _KinetoProfile | None, owner: type) -> Self | Value:
        if session is None:
            return self
        value: Value = getattr(session._options, self._name)
        return value

    def __set__(self, session: _KinetoProfile, value: Value) -> None:
        changed: dict[str, Any] = {self._name: value}
        session._options = dataclasses.replace(session._options, **changed)


class _KinetoProfile(TorchSessionApi, ReadsCycles):
    """A session without a schedule: `prepare_trace`, `start_trace` and `stop_trace` are called by hand.

    Args:
        **options: The arguments of `profile` but `schedule`, `on_trace_ready` and `use_cuda`.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it and the valid ones.
    """

    # The engine for engine="auto"; the classes that `install` puts in place of torch's override it.
    _default_engine: EngineName = "auto"
    # Whether the session replaces torch.profiler in a program that was written for it: event lists then count as torch's do.
    _in_place_of_torch = False

    # In torch these are plain attributes, which programs read and set between cycles.
    record_shapes = _Option[bool]()
    profile_memory = _Option[bool]()
    with_stack = _Option[bool]()
    with_flops = _Option[bool]()
    with_modules = _Option[bool]()
    python_calls = _Option[bool]()
    module_spans = _Option[bool]()
    garbage_collection = _Option[bool]()
    tensor_versions = _Option[bool]()
    source = _Option[bool]()
    samples = _Option[bool]()
    acc_events = _Option[bool]()
    experimental_config = _Option[Any]()
    custom_trace_id_callback = _Option[Callable[[], str] | None]()
    post_processing_timeout_s = _Option[float | None]()

    def __init__(self, **options: Any) -> None:
        self._set_up(RecordingOptions(**options))

    def _set_up(self, options: RecordingOptions) -> None:
        """Initialize the session from options; nothing is recorded yet."""
        if options.engine == "auto" != self._default_engine:
            options = dataclasses.replace(options, engine=self._default_engine)
        self._options = options
        self.activities = set(options.activity_choices)
        self.activity_filters = {
            activity: set(choice.kinds)
            for activity, choice in options.activity_choices.items()
            if choice.kinds is not None
        }
        self._recordable = recordable(self.activities)
        self._metadata = metadata.SessionMetadata()
        self._observer = ObserverWindow(options.execution_trace_observer)
        self._sources = SourceWindow(self._own_sources(options))
        # The recording also contains the modules that were compiled before it began.
        COMPILED_MODULES.watch()
        # Guards the fields below. Never held while a user's code runs.
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._engine_is_for_one_cycle = False
        self._state = SessionState.IDLE
        self._cycles_begun = 0
        self._cycles = FinishedCycles(keep_all=options.acc_events)
        self._trace_id: str | None = None
        self._stopwatch = Stopwatch()
        self._owner = SessionOwner()
        self._warned_of: set[str] = set()

    def _own_sources(self, options: RecordingOptions) -> tuple[Source, ...]:
        return Compiling(), CompiledKernels(), *options.sources

    # ------------------------------------------------------------------------------------------------- metadata

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text to the trace: the one that records now or next or, after stop, the finished one.

        Args:
            key: Top-level key of the exported trace.
            value: Any string.

        Raises:
            ArgumentError: The key belongs to the trace format, or the value is no string.
        """
        self.add_metadata_json(key, metadata.quoted(key, value))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace: the one that records now or next or, after stop, the finished one.

        Args:
            key: Top-level key of the exported trace.
            value: Strict JSON.

        Raises:
            ArgumentError: The value is not valid JSON, or the key belongs to the trace format; nothing is changed.
        """
        with self._lock:
            if not self._state.has_engine and self._cycles.last is not None:
                checked = metadata.SessionMetadata()
                checked.add(key, value)
                self._cycles.add_info(checked.gathered())
            else:
                self._metadata.add(key, value)
                if (add_info := getattr(self._engine, "add_info", None)) is not None:
                    # Written to the recording at once, in case the process is killed.
                    add_info({key: metadata.json_text(key, value)})

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace of every cycle that begins from now on.

        Args:
            key: Top-level key of the exported trace.
            value: Strict JSON.

        Raises:
            ArgumentError: The value is not valid JSON, or the key belongs to the trace format; nothing is changed.
        """
        self._metadata.preset(key, value)

    @property
    def preset_metadata(self) -> dict[str, str]:
        """The metadata of `preset_metadata_json`: JSON texts by key."""
        return self._metadata.preset_ones

    # ------------------------------------------------------------------------------------------------- recording

    @by_owner
    def start(self) -> None:
        """Prepare and start a recording.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
            RecorderError: The requested engine cannot record here.
        """
        self.prepare_trace()
        self.start_trace()

    def stop(self) -> None:
        """Stop the recording; its trace is built on first use. A second call does nothing.

        Raises:
            StateError: `start` was never called.
        """
        with yielding_to_interrupts("stop()"):
            self.stop_trace()

    @by_owner
    def prepare_trace(self) -> None:
        """Prepare the engine, so that `start_trace` is fast, and give the cycle its id.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
            RecorderError: The requested engine cannot record here.
            ArgumentError: `custom_trace_id_callback` returned something that is no string, or none of the activities can
                be recorded here.
        """
        import_aside()
        check_that_something_is_recorded(self.activities, self._recordable)
        trace_id = new_trace_id(self.custom_trace_id_callback)
        # First, while signals are not deferred yet: it may compile the recorder, which takes long.
        self._choose_engine()
        with DeferredSignals(interrupts=False) as deferred, self._lock:
            if self._state is SessionState.RECORDING:
                raise already_recording()
            try:
                engine = self._require_engine()
                if self._state is not SessionState.PREPARED:
                    ACTIVE_SESSIONS.acquire(self, engine)
                with self._stopwatch.preparing():
                    engine.prepare(self._request(trace_id))
                self._trace_id = trace_id
                self._move(Move.PREPARE)
            except BaseException:
                self._abandon()
                raise
        deferred.raise_error()

    def _choose_engine(self) -> None:
        """Choose the engine for the next cycle, unless the last one is kept."""
        with self._lock:
            if self._engine is None or (self._engine_is_for_one_cycle and not self._state.has_engine):
                self._engine = self._find_engine()

    @by_owner
    def start_trace(self) -> None:
        """Start to record; calls `prepare_trace` first if that was not done.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
        """
        if self._state is not SessionState.PREPARED:
            self.prepare_trace()
        try:
            with DeferredSignals(interrupts=False) as deferred:
                # The observer starts before the recording, and stops after it, as in torch.
                self._observer.open()
                self._sources.start()
                with self._lock:
                    self._begin_recording()
        except BaseException:
            self._sources.cancel()
            with self._lock:
                if self._state is SessionState.PREPARED:
                    self._abandon()
            if not self._state.has_engine:
                # A second failure is ignored: it would hide the first, which is being raised.
                self._observer.close()
            raise
        deferred.raise_error()

    def _begin_recording(self) -> None:
        """Start the engine, and let the sources write to its recording."""
        if self._state is SessionState.RECORDING:
            raise already_recording()
        if self._state is not SessionState.PREPARED:
            raise StateError("this session was stopped by another thread while it was being started.")
        keep_out()
        try:
            # Set before the engine starts: after an interrupt in the middle of that, the engine must be stopped.
            self._move(Move.START)
            with self._stopwatch.starting():
                engine = self._require_engine()
                engine.start()
                self._sources.write_to(getattr(engine, "append_rows", None))
            self._cycles_begun += 1
            ROUTES.open(self)
            TORCH_RANGES.open(self)
        except BaseException:
            self._abandon()
            raise

    def stop_trace(self) -> None:
        """Stop the recording. Nothing is computed here: the cost does not depend on the length of the recording.

        Raises:
            StateError: No recording was ever started.
        """
        closed = self._finish(keep=True)
        if closed.failure is not None:
            raise closed.failure

    def _finish(self, *, keep: bool) -> Closed:
        """Close the recording even if the observer fails; `keep=False` discards a warm-up that no active step followed."""
        if self._owner.refuses(self, "stop"):
            return Closed()
        with DeferredSignals() as deferred:
            try:
                failure = self._observer.close()
                self._sources.stop()
            finally:
                # Also after an exception or interrupt: the engine must not be left recording.
                with self._lock:
                    recorded = self._stop_engine(keep)
            if recorded and keep:
                self._write_summary()
        if deferred.error is not None and (failure is None or not isinstance(deferred.error, Exception)):
            return Closed(recorded, deferred.error, HANDLER)
        return Closed(recorded, failure)

    def _stop_engine(self, keep: bool) -> bool:
        """Stop the engine and store its recording; return whether something was recorded."""
        if not self._state.has_engine:
            # An interrupt may have come after ACTIVE_SESSIONS.acquire() and before the change of state.
            self._release()
            if self._cycles_begun == 0 and keep:
                raise NotRecordedError(
                    "there is nothing to stop: call start() first, or use the session in a `with` block."
                )
            return False
        if self._state is SessionState.PREPARED:
            self._abandon()
            return False
        try:
            with self._stopwatch.stopping():
                stopped = self._require_engine().stop()
                recording = self._sources.with_gathered(stopped, keep_parts=self.acc_events)
            self._release()
        except StillRecordingError:
            raise
        except BaseException:
            self._abandon()
            raise
        if not keep and self._cycles.last is not None:
            recording.discard()
            return True
        # Read now, not at the start: process groups may have been created, and numbers of threads and precisions set, meanwhile.
        info = described_devices() | calibration() | rank_info() | self._metadata.gathered()
        self._metadata.end_cycle()
        cycle = Cycle(
            recording,
            info,
            worth_reading=keep,
            number=self._cycles.finished,
            stats=self._stopwatch.stats,
        )
        for earlier in self._cycles.add(cycle):
            self._drop(earlier)
        if keep:
            self._cycle_ended(cycle)
        return True

    def _write_summary(self) -> None:
        """Write the summary of the cycle that ended last, if the options ask for one; a failure is a warning."""
        import_aside()
        target, cycle = self._options.summary, self._cycles.last
        if target is None or cycle is None:
            return
        from kinetoscope.summaries.summary import save_summaries

        try:
            trace = cycle.trace()
            if target.suffix == SUFFIX:
                target = numbered(ranked(target), cycle.number)
            else:
                target = rank_filled_in(target)
                # One folder for each cycle: a reader takes all summaries of a folder for one job.
                target = target / f"cycle-{cycle.number}" if cycle.number else target
            # Without a given path the recording is a temporary file, which the summary must not refer to.
            source = "" if self._options.path is None else os.path.abspath(trace.path or "")
            save_summaries(trace, target, source)
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            warn_user(
                f"the summary of this cycle could not be written to {target}: {type(error).__name__}: {error}. The trace is "
                "not affected: `kinetoscope summarize` makes a summary of a saved one."
            )

    def _cycle_ended(self, cycle: Cycle) -> None:
        """A hook for subclasses, called with every finished cycle."""

    def _release(self) -> None:
        """Release the engine: end this session's turn among the active sessions."""
        # Both moves in one assignment, so that no interrupt comes between them.
        self._move(*((Move.STOP,) if self._is_in_run() else (Move.STOP, Move.END)))
        ROUTES.close(self)
        TORCH_RANGES.close(self)
        ACTIVE_SESSIONS.release(self)

    def _request(self, trace_id: str) -> RecordingRequest:
        """Build the engine's request for this cycle."""
        options, path = self._options, self._options.path
        if path is not None:
            path = numbered(ranked(path), self._cycles_begun)
        info = metadata.flags(options.recorded) | rank_info() | described_devices() | calibration()
        info |= metadata.execution_trace(self._observer.observer)
        info |= noted_settings(options.experimental_config)
        if options.garbage_collection and self._engine and records_garbage_collection(self._engine):
            info |= {GARBAGE_COLLECTION_SETTING: "1"}
        if not options.source:
            info |= {SOURCE_LINES: "{}"}
        if self._in_place_of_torch and options.with_flops:
            info |= {FLOPS_OF_EVENTS: '"torch"'}
        info |= {"trace_id": json.dumps(trace_id), "cycle": json.dumps({"number": self._cycles.finished})}
        if not isinstance(options.engine, str):
            # No reference cycle: an engine may store its request, and the options contain the engine.
            options = dataclasses.replace(options, engine="auto")
        return RecordingRequest(
            activities=self._recordable,
            options=options,
            record_function_ids=self._observer.observer is not None,
            torch_objects=self._default_engine == "kineto",
            trace_id=trace_id,
            path=path,
            info=info | self._metadata.gathered(),
        )

    def _report_out_of_memory(self, recorded: bool) -> None:
        """Write the out-of-memory report if the session records memory and such an error is being handled."""
        if recorded and self.profile_memory:
            path = self._options.path
            recording = None if path is None else ranked(path)
            report_out_of_memory(lambda: self.trace, self._options.oom_report, recording)

    def _find_engine(self) -> Engine:
        """Choose the engine of the options; for one cycle only if the program itself is using torch's collector."""
        devices = self._options.engine == "auto" and len(self._recordable) > 1
        self._engine_is_for_one_cycle = devices and TORCH_RANGES.torch_profiles
        engine = choose_engine(self._options, self._recordable)
        warn_of_ignored_settings(engine, self._options, in_place_of_torch=self._in_place_of_torch)
        return engine

    def _require_engine(self) -> Engine:
        """Return the engine, or raise StateError if none is chosen yet."""
        if self._engine is None:
            raise StateError("no engine is chosen yet: call start() first.")
        return self._engine

    def _abandon(self) -> None:
        """Release an engine that is prepared or has failed, and discard what it was recording."""
        was_recording = self._state is SessionState.RECORDING
        self._release()
        if was_recording:
            # A second failure is ignored: it would hide the first, which is being raised.
            with contextlib.suppress(KinetoscopeError):
                self._require_engine().stop().discard()

    def _drop(self, earlier: Cycle) -> None:
        """Discard an earlier cycle that was never read, with one warning for the session."""
        if not earlier.worth_reading:
            return
        earlier.discard()
        if "dropped" not in self._warned_of:
            self._warned_of.add("dropped")
            warn_user(
                "a finished recording was dropped because the next one ended before it was read: export it or "
                "read `prof.trace` in on_trace_ready, or pass acc_events=True to keep all of them."
            )

    def _is_under_way(self) -> bool:
        """Whether a recording is prepared or active."""
        return self._state.has_engine

    def _is_in_run(self) -> bool:
        """Whether a run is active, in which another cycle may follow; never without a schedule."""
        return False

    def _move(self, *moves: Move) -> None:
        """Change the state according to `state.TRANSITIONS`."""
        self._state = self._state.after(*moves)

    def _reset_in_child(self) -> None:
        """In a forked child: replace the locks that a thread of the parent may hold, and the parent's engine and sources."""
        self._engine, self._lock = None, threading.RLock()
        self._observer = ObserverWindow(self._observer.observer)
        self._sources = self._sources.fresh()

    def _why_no_trace(self) -> str:
        if self._is_under_way() and self._owner.process != os.getpid():
            return f"this process is a fork of process {self._owner.process}, which records; create a session here to record this one."
        if self._state is SessionState.RECORDING:
            return "the recording is still running; call stop() first."
        if self._state is SessionState.PREPARED:
            return "the session is prepared but records nothing; call start_trace(), then stop_trace()."
        return "call start() and stop() first, or leave the `with` block."


def already_recording() -> StateError:
    """Build the error for starting a session that is already recording."""
    return StateError("this session is already recording: call stop() before starting it again.")
