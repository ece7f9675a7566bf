"""The base session: prepare, start and stop one recording after another, and read them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import torch
import torch.profiler

from kinetoscope._errors import (
    ArgumentError,
    ArgumentTypeError,
    KinetoscopeError,
    NotRecordedError,
    StateError,
    checked_switch,
)
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.engines.choose import (
    choose_engine,
    records_garbage_collection,
    warn_of_ignored_settings,
)
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from kinetoscope.collect.process.dynamo import keep_out
from kinetoscope.collect.process.machine import calibration, described_devices
from kinetoscope.collect.process.rank import numbered, rank_filled_in, rank_info, ranked
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import (
    ProfilerActivity,
    check_that_something_is_recorded,
    checked_activities,
    device_among,
    recordable,
    torchs_configs,
)
from kinetoscope.collect.request.options import (
    Engine,
    EngineName,
    RecordingOptions,
    RecordingRequest,
    Source,
    StillRecordingError,
    TraceObserver,
)
from kinetoscope.collect.request.torch_settings import (
    GARBAGE_COLLECTION_SETTING,
    TORCHS_SESSION,
    noted_settings,
)
from kinetoscope.collect.session import metadata
from kinetoscope.collect.session.cycle import (
    Cycle,
    CycleChoice,
    Cycles,
    FinishedCycles,
    SessionStats,
    Stopwatch,
    us_since,
)
from kinetoscope.collect.session.failures import DeferredSignals, Failures, yielding_to_interrupts
from kinetoscope.collect.session.out_of_memory import report_out_of_memory
from kinetoscope.collect.session.source_window import ObserverWindow, SourceWindow
from kinetoscope.collect.session.state import Move, SessionState
from kinetoscope.collect.sources.compiled_modules import COMPILED_MODULES, CompiledKernels
from kinetoscope.collect.sources.compiling import Compiling
from kinetoscope.collect.sources.deep_steps import DeepSteps
from kinetoscope.collect.sources.ranges import ROUTES
from kinetoscope.collect.sources.torch_ranges import TORCH_RANGES
from kinetoscope.storage.atomic_write import file_path
from kinetoscope.summaries import SUFFIX
from kinetoscope.tables.host.source_lines import SOURCE_LINES
from kinetoscope.torch_events.event_numbers import FLOPS_OF_EVENTS

if TYPE_CHECKING:
    from kinetoscope.collect.engines.kineto_recording import ResultsApi
    from kinetoscope.trace import Trace


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


P = ParamSpec("P")


S = TypeVar("S", bound="_KinetoProfile")


def by_owner(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Make a method do nothing, with a warning, in a forked child of the process that owns the active session."""
    call = method.__name__.strip("_")

    @functools.wraps(method)
    def checked(self: S, *args: P.args, **keywords: P.kwargs) -> None:
        if not self._refuses(call):
            method(self, *args, **keywords)

    return cast("Callable[Concatenate[S, P], None]", checked)


def _option(name: str) -> Any:
    """A session option as an attribute; setting it checks the value, which applies from the next cycle on."""

    def value(self: _KinetoProfile) -> Any:
        return getattr(self._options, name)

    def change(self: _KinetoProfile, value: Any) -> None:
        self._options = dataclasses.replace(self._options, **{name: value})

    return property(value, change)


class _KinetoProfile:
    """A session without a schedule: `prepare_trace`, `start_trace` and `stop_trace` are called by hand.

    Args:
        **options: The arguments of `profile` but `schedule`, `on_trace_ready` and `use_cuda`.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it and the valid ones.
    """

    # The engine for engine="auto"; the classes that `install` puts in place of torch's override it.
    _default_engine: EngineName = "auto"
    # Whether the session replaces torch.profiler in an unmodified program; then event lists are counted as torch counts them.
    _in_place_of_torch = False
    # The run of a session with a schedule, in which another cycle may follow.
    _run: Any = None

    # In torch these are plain attributes, which programs read and set between cycles. By tools/generate_docs.py.
    record_shapes: bool = _option("record_shapes")
    profile_memory: bool = _option("profile_memory")
    with_stack: bool = _option("with_stack")
    with_flops: bool = _option("with_flops")
    with_modules: bool = _option("with_modules")
    python_calls: bool = _option("python_calls")
    module_spans: bool = _option("module_spans")
    garbage_collection: bool = _option("garbage_collection")
    tensor_versions: bool = _option("tensor_versions")
    deep_steps: bool = _option("deep_steps")
    samples: bool = _option("samples")
    experimental_config: Any = _option("experimental_config")
    acc_events: bool = _option("acc_events")
    custom_trace_id_callback: Callable[[], str] | None = _option("custom_trace_id_callback")
    post_processing_timeout_s: float | None = _option("post_processing_timeout_s")
    source: bool = _option("source")

    def __init__(self, **options: Any) -> None:
        self._set_up(RecordingOptions(**options))

    def _set_up(self, options: RecordingOptions) -> None:
        if options.engine == "auto" != self._default_engine:
            options = dataclasses.replace(options, engine=self._default_engine)
        self._options = options
        self.activities = set(options.activity_choices)
        self.activity_filters = {name: set(kinds) for name, kinds in options.activity_filters.items()}
        self._recordable = recordable(self.activities)
        # The user's JSON texts: of every cycle, and of this cycle or, between cycles, the next one.
        self._preset_metadata: dict[str, str] = {}
        self._cycle_metadata: dict[str, str] = {}
        self._observer = ObserverWindow(options.execution_trace_observer)
        self._sources = SourceWindow(self._own_sources(options))
        # The recording also contains the modules that were compiled before it began.
        COMPILED_MODULES.watch()
        # Guards the fields below. Never held while a user's code runs.
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._engine_is_for_one_cycle = False
        self.state = SessionState.IDLE
        self._cycles_begun = 0
        self.finished_cycles = FinishedCycles(keep_all=options.acc_events)
        self._trace_id: str | None = None
        self._stopwatch = Stopwatch()
        # The process that the session belongs to.
        self._process = os.getpid()
        self._warned_of: set[str] = set()

    def _own_sources(self, options: RecordingOptions) -> tuple[Source, ...]:
        self._deep_steps = DeepSteps(self._record_deep) if options.deep_steps else None
        deep = () if self._deep_steps is None else (self._deep_steps,)
        return Compiling(), CompiledKernels(), *deep, *options.sources

    def _record_deep(self, deep: bool) -> int:
        """Begin or end a deep step, if the engine supports it; return how many operators it has recorded in such steps."""
        record_deep = getattr(self._engine, "record_deep", None)
        return 0 if record_deep is None else record_deep(deep)

    def _refuses(self, call: str) -> bool:
        """Whether to ignore a call: a forked child made it on its parent's active session. A child owns a session that is not active."""
        if self._process == os.getpid():
            return False
        if not self._is_under_way():
            # The parent had no active recording at the fork: the child may use its copy of the session.
            self._process = os.getpid()
            self._reset_in_child()
            return False
        self._warn_once(
            "fork",
            f"{call}() was called in process {os.getpid()}, a fork of process {self._process}, which owns "
            "this session: the call has no effect. Create a session in the child to record it.",
        )
        return True

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned_of:
            self._warned_of.add(kind)
            warn_user(message)

    # ------------------------------------------------------------------------------------------------- metadata

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text to the trace: the one that records now or next or, after stop, the finished one.

        Args:
            key: Top-level key of the exported trace.
            value: Any string.

        Raises:
            ArgumentError: The key belongs to the trace format, or the value is not a string.
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
        entry = self._metadata_entry(key, value)
        with self._lock:
            if not self.state.has_engine and self.finished_cycles.last is not None:
                self.finished_cycles.add_info(entry)
            else:
                self._cycle_metadata |= entry
                if (add_info := getattr(self._engine, "add_info", None)) is not None:
                    # Written to the recording at once, in case the process is killed.
                    add_info(entry)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace of every cycle that begins from now on.

        Args:
            key: Top-level key of the exported trace.
            value: Strict JSON.

        Raises:
            ArgumentError: The value is not valid JSON, or the key belongs to the trace format; nothing is changed.
        """
        self._preset_metadata |= self._metadata_entry(key, value)

    def _metadata_entry(self, key: str, value: str) -> dict[str, str]:
        return metadata.entry(key, value)

    @property
    def preset_metadata(self) -> dict[str, str]:
        """The metadata of `preset_metadata_json`: JSON texts by key."""
        return dict(self._preset_metadata)

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
            ArgumentError: `custom_trace_id_callback` did not return a string, or none of the activities can be recorded here.
        """
        import_aside()
        check_that_something_is_recorded(self.activities, self._recordable)
        trace_id = new_trace_id(self.custom_trace_id_callback)
        # First, while signals are not deferred yet: it may compile the recorder, which takes long.
        self._choose_engine()
        with DeferredSignals(interrupts=False) as deferred, self._lock:
            if self.state is SessionState.RECORDING:
                raise already_recording()
            try:
                engine = self._require_engine()
                if self.state is not SessionState.PREPARED:
                    ACTIVE_SESSIONS.acquire(self, engine)
                with self._stopwatch.measuring("prepare"):
                    engine.prepare(self._request(trace_id))
                self._trace_id = trace_id
                self._move(Move.PREPARE)
            except BaseException:
                self._abandon()
                raise
        deferred.raise_error()

    @property
    def recording_engine(self) -> Engine | None:
        """The engine of this session while it records, else None."""
        return self._engine if self.state is SessionState.RECORDING else None

    def _choose_engine(self) -> None:
        with self._lock:
            if self._engine is None or (self._engine_is_for_one_cycle and not self.state.has_engine):
                # For one cycle only if the program itself is using torch's collector.
                devices = self._options.engine == "auto" and len(self._recordable) > 1
                self._engine_is_for_one_cycle = devices and TORCH_RANGES.torch_profiles
                engine = choose_engine(self._options, self._recordable)
                warn_of_ignored_settings(engine, self._options, in_place_of_torch=self._in_place_of_torch)
                self._engine = engine

    @by_owner
    def start_trace(self) -> None:
        """Start to record; calls `prepare_trace` first if that was not done.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
        """
        if self.state is not SessionState.PREPARED:
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
                if self.state is SessionState.PREPARED:
                    self._abandon()
            if not self.state.has_engine:
                # A second failure is ignored: it would hide the first, which is being raised.
                self._observer.close()
            raise
        deferred.raise_error()

    def _begin_recording(self) -> None:
        if self.state is SessionState.RECORDING:
            raise already_recording()
        if self.state is not SessionState.PREPARED:
            raise StateError("this session was stopped by another thread while it was being started.")
        keep_out()
        try:
            # Set before the engine starts: after an interrupt in the middle of that, the engine must be stopped.
            self._move(Move.START)
            with self._stopwatch.measuring("enable"):
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
        failures = Failures("raise", 0)
        self._finish(failures, keep=True)
        failures.raise_first(may_raise=True)

    def _finish(self, failures: Failures | None = None, *, keep: bool) -> bool:
        """Close the recording, even if the observer fails; return whether one was active. `keep=False` discards a warm-up without an active step."""
        if self._refuses("stop"):
            return False
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
        failures = failures or Failures("raise", 0)
        if deferred.error is not None and (failure is None or not isinstance(deferred.error, Exception)):
            failures.note(Failures.HANDLER, deferred.error)
        else:
            failures.note(Failures.OBSERVER, failure)
        return recorded

    def _stop_engine(self, keep: bool) -> bool:
        """Stop the engine and store its recording; return whether something was recorded."""
        if not self.state.has_engine:
            # An interrupt may have come after ACTIVE_SESSIONS.acquire() and before the change of state.
            self._release()
            if self._cycles_begun == 0 and keep:
                raise NotRecordedError(
                    "there is nothing to stop: call start() first, or use the session in a `with` block."
                )
            return False
        if self.state is SessionState.PREPARED:
            self._abandon()
            return False
        try:
            with self._stopwatch.measuring("disable"):
                stopped = self._require_engine().stop()
                recording = self._sources.with_gathered(stopped)
            self._release()
        except StillRecordingError:
            raise
        except BaseException:
            self._abandon()
            raise
        if not keep and self.finished_cycles.last is not None:
            recording.discard()
            return True
        # Read now, not at the start: process groups may have been created, and numbers of threads and precisions set, meanwhile.
        info = (
            described_devices() | calibration() | rank_info() | self._preset_metadata | self._cycle_metadata
        )
        self._cycle_metadata = {}
        cycle = Cycle(recording, info, keep, self.finished_cycles.finished, self._stopwatch.stats)
        for earlier in self.finished_cycles.add(cycle):
            self._drop(earlier)
        if keep:
            self._cycle_ended(cycle)
        return True

    def _write_summary(self) -> None:
        import_aside()
        target, cycle = self._options.summary, self.finished_cycles.last
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
        # One assignment for both moves, so that no interrupt comes between them.
        self._move(*((Move.STOP,) if self._run is not None else (Move.STOP, Move.END)))
        ROUTES.close(self)
        TORCH_RANGES.close(self)
        ACTIVE_SESSIONS.release(self)

    def _request(self, trace_id: str) -> RecordingRequest:
        options, path = self._options, self._options.path
        if path is not None:
            path = numbered(ranked(path), self._cycles_begun)
        info = options.recorded | rank_info() | described_devices() | calibration()
        info |= metadata.execution_trace(self._observer.observer)
        info |= noted_settings(options.experimental_config)
        if options.garbage_collection and self._engine and records_garbage_collection(self._engine):
            info |= {GARBAGE_COLLECTION_SETTING: "1"}
        if not options.source:
            info |= {SOURCE_LINES: "{}"}
        if self._in_place_of_torch and options.with_flops:
            info |= {FLOPS_OF_EVENTS: '"torch"'}
        info |= {
            "trace_id": json.dumps(trace_id),
            "cycle": json.dumps({"number": self.finished_cycles.finished}),
        }
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
            info=info | self._preset_metadata | self._cycle_metadata,
        )

    def _report_out_of_memory(self, recorded: bool) -> None:
        if recorded and self.profile_memory:
            path = self._options.path
            recording = None if path is None else ranked(path)
            report_out_of_memory(lambda: self.trace, self._options.oom_report, recording)

    def _require_engine(self) -> Engine:
        if self._engine is None:
            raise StateError("no engine is chosen yet: call start() first.")
        return self._engine

    def _abandon(self) -> None:
        """Release an engine that is prepared or has failed, and discard what it was recording."""
        was_recording = self.state is SessionState.RECORDING
        self._release()
        if was_recording:
            # A second failure is ignored: it would hide the first, which is being raised.
            with contextlib.suppress(KinetoscopeError):
                self._require_engine().stop().discard()

    def _drop(self, earlier: Cycle) -> None:
        if not earlier.worth_reading:
            return
        earlier.discard()
        self._warn_once(
            "dropped",
            "a finished recording was dropped because the next one ended before it was read: export it or "
            "read `prof.trace` in on_trace_ready, or pass acc_events=True to keep all of them.",
        )

    def _is_under_way(self) -> bool:
        """Whether a recording is prepared or active, or may follow in the current run."""
        return self._run is not None or self.state.has_engine

    def _move(self, *moves: Move) -> None:
        self.state = self.state.after(*moves)

    def _reset_in_child(self) -> None:
        """In a forked child: replace the locks that a thread of the parent may hold, and the parent's engine and sources."""
        self._engine, self._lock = None, threading.RLock()
        self._observer = ObserverWindow(self._observer.observer)
        self._sources = self._sources.fresh()

    def _why_no_trace(self) -> str:
        if self._is_under_way() and self._process != os.getpid():
            return f"this process is a fork of process {self._process}, which records; create a session here to record this one."
        if self.state is SessionState.RECORDING:
            return "the recording is still running; call stop() first."
        if self.state is SessionState.PREPARED:
            return "the session is prepared but records nothing; call start_trace(), then stop_trace()."
        return "call start() and stop() first, or leave the `with` block."

    # -------------------------------------------------------------------------------------------------- reading

    @property
    def trace(self) -> Trace:
        """The trace of the last finished cycle; built on first use, then the same object until a new cycle ends.

        Raises:
            StateError: Nothing was recorded yet; the message says which call is missing.
        """
        return self._trace_of(None)

    @property
    def cycles(self) -> Cycles:
        """The traces of the finished cycles, a sequence: all with `acc_events=True`, else the last one.

        `prof.cycles.numbers` are their numbers, counted from 0 over all cycles of the session. `prof.cycles.together()` is
        one trace of all of them, which `save(path, cycle="all")` and `export_chrome_trace(path, cycle="all")` write.
        """
        return self.finished_cycles.shown

    def export_chrome_trace(
        self,
        path: str | os.PathLike[str],
        use_python_export: bool = False,
        cuda_graph_annotations: Mapping[int, Any] | None = None,
        graph_lanes: str = "none",
        default_stream: int = 7,
        *,
        cycle: CycleChoice = None,
        identity: bool = False,
    ) -> None:
        """Write a trace in Chrome's JSON format, as Perfetto and chrome://tracing read it.

        Args:
            path: The file; a name ending in `.gz` is compressed. It appears under its name only when it is whole.
            use_python_export: Has no effect; torch chooses one of its two writers by it, and there is one here.
            cuda_graph_annotations: Annotations of CUDA graph nodes by node number, such as
                `torch.cuda.graph_annotations.get_kernel_annotations()`; they are written into the `args` of the nodes' work.
            graph_lanes: "all": show work of graphs on the stream that its annotation names, and all other work on
                `default_stream`; "none": on the stream where it ran.
            default_stream: The number of that stream.
            cycle: None for the last finished cycle, the number of a stored one, or `"all"` for all stored ones
                (`acc_events=True`), on one time axis.
            identity: Also write the command line, the folders of the program, and the name and boot id of the machine, as
                `save` does.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: There is no such cycle, the path is not valid, `graph_lanes` is neither "none" nor "all", or it is
                "all" without annotations.
            ValueError: The stream of an annotation is not a number, as in torch.
            OSError: The file cannot be written.
        """
        import_aside()
        checked = file_path(path)
        if graph_lanes not in ("none", "all") or (graph_lanes == "all" and not cuda_graph_annotations):
            raise ArgumentError(
                f"graph_lanes={graph_lanes!r} is not valid: choose 'none', or 'all' together with cuda_graph_annotations."
            )
        trace = self._trace_of(cycle)
        from kinetoscope.formats.chrome.graph_annotations import GraphAnnotations
        from kinetoscope.formats.chrome.write import write_chrome_trace

        annotations = None
        if cuda_graph_annotations:
            annotations = GraphAnnotations(cuda_graph_annotations, graph_lanes == "all", default_stream)
        write_chrome_trace(trace, checked, identity=identity, annotations=annotations)

    def export_memory_timeline(self, path: str | os.PathLike[str], device: str | None = None) -> None:
        """Write how much memory each category held over the last finished trace.

        Args:
            path: The file. `.html`: the memory page of the viewer. `.json`, `.json.gz`: times in microseconds and the bytes of
                each category at each of them. `raw.json.gz`: every event as (time in ns, action, bytes, category). The
                JSON forms come from torch's own objects where its collector recorded memory, shapes and stacks.
            device: The device, such as `cpu` or `cuda:0`; None: the one that held the most bytes at its peak.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: The session was made without `profile_memory=True`, the suffix is unknown, or no memory of the
                device was recorded.
        """
        import_aside("kinetoscope.viewer.server.report")
        checked = file_path(path)
        self._need_memory("export_memory_timeline()")
        trace = self.trace
        if checked.name.lower().endswith(".html"):
            from kinetoscope.viewer.server.report import write_memory_page

            write_memory_page(trace, checked, device)
            return
        from kinetoscope.formats.memory_timeline import write_memory_timeline

        write_memory_timeline(trace, checked, device, torchs=self._torch_timeline())

    def _memory_profile(self) -> Any:
        """The memory of the last finished trace as objects, as in `torch.profiler`: torch's own if its collector recorded memory, shapes and stacks.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: The session was made without `profile_memory=True`.
        """
        self._need_memory("_memory_profile()")
        theirs = self._torch_memory_profile()
        from kinetoscope.collect.session.memory_profile import MemoryProfile

        return MemoryProfile(self.trace) if theirs is None else theirs

    def _torch_memory_profile(self) -> Any | None:
        """torch's own `MemoryProfile`; None unless its collector recorded memory, shapes and stacks."""
        import_aside()
        theirs = getattr(self._engine, "torch_profiler", None)
        results = None if theirs is None else theirs.kineto_results
        options = self._options
        if results is None or not (options.profile_memory and options.record_shapes and options.with_stack):
            return None
        from torch.profiler._memory_profiler import MemoryProfile as TorchsMemoryProfile

        return TorchsMemoryProfile(results)

    def _torch_timeline(self) -> Any | None:
        """torch's `MemoryProfileTimeline`, which has tensor versions; None if torch's collector did not record this cycle."""
        import_aside()
        try:
            profile = self._torch_memory_profile()
            if profile is None:
                return None
            from torch.profiler._memory_profiler import MemoryProfileTimeline

            return MemoryProfileTimeline(profile)
        # torch's analysis has assertions that do not hold for every program; our own timeline has most of its results.
        except Exception as error:  # noqa: BLE001  (whatever fails in there, the rest is still to be written)
            warn_user(
                f"the memory timeline has no tensor versions: torch's memory analysis failed with "
                f"{type(error).__name__}: {error}. The native engine records them itself."
            )
            return None

    def save(self, path: str | os.PathLike[str], *, cycle: CycleChoice = None) -> None:
        """Save a trace in the format that the suffix names.

        Args:
            path: The file, such as `run.ktrace`, `run.parquet` or `run.json.gz`.
            cycle: As for `export_chrome_trace`.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: The suffix is unknown, or there is no such cycle.
            OSError: The file cannot be written.
        """
        checked = file_path(path)
        self._trace_of(cycle).save(checked)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write the operators' Python stacks with a metric, in the collapsed form that flame graph tools read.

        Each line is a stack, root first, its frames joined by `;`, then a space and the metric in whole microseconds.

        Args:
            path: The file.
            metric: `self_cpu_time_total` or `self_cuda_time_total`, for example.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: There is no such metric; the message lists the available ones.
            OSError: The file cannot be written.
        """
        self.events().export_stacks(path, metric)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        include_python_functions: bool | None = None,
    ) -> Any:
        """Aggregate the last finished cycle by operator; with `acc_events=True`, all cycles.

        Args:
            group_by_input_shape: Group by input shapes.
            group_by_stack_n: Group by this many innermost stack frames.
            group_by_overload_name: Group by overload name.
            include_python_functions: Include calls of Python functions and modules, which are events with
                `with_stack=True`. None does as the installed torch: up to 2.13 they are included, from 2.14 on they are not.

        Returns:
            An `EventList` with one row for each group.

        Raises:
            StateError: Nothing was recorded yet.
        """
        return self._events_trace().key_averages(
            group_by_input_shape, group_by_stack_n, group_by_overload_name, include_python_functions
        )

    def events(self) -> Any:
        """List the operators and ranges of the last finished cycle as events; with `acc_events=True`, of all cycles.

        Returns:
            An `EventList`: a lazy view over the trace's columns.

        Raises:
            StateError: Nothing was recorded yet.
        """
        trace = self._events_trace()
        begin_ns = time.perf_counter_ns()
        events = trace.events()
        if (stats := self._stopwatch.stats) is not None:
            stats.function_events_build_tree_call_duration_us = max(1, us_since(begin_ns))
        return events

    def _events_trace(self) -> Trace:
        return self._trace_of("all" if self._options.acc_events else None)

    def _need_memory(self, call: str) -> None:
        if not self._options.profile_memory:
            raise ArgumentError(
                f"{call} needs a session with profile_memory=True, and this one has profile_memory=False."
            )

    def _trace_of(self, choice: CycleChoice) -> Trace:
        trace = self.finished_cycles.trace(choice)
        if trace is None:
            raise NotRecordedError(f"there is no trace yet: {self._why_no_trace()}")
        return trace

    # ------------------------------------------------------------------ the rest of the API of torch's sessions

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[ProfilerActivity]) -> None:
        """Pause or resume the collection of some activities while recording.

        Events that begin during a pause are not recorded; the trace's `losses` and the metadata `pauses` contain its times.
        Every recording starts with all activities on. Without an active recording, this only warns.

        Args:
            enable: True resumes, False pauses.
            activities: torch's `ProfilerActivity` values; those that are not recorded are ignored.

        Raises:
            ArgumentError: `enable` is neither True nor False, or `activities` contains something else.
            StateError: The engine cannot switch collection off.
        """
        on = checked_switch("enable", enable)
        requested = frozenset(checked_activities(activities)) & self._recordable
        with self._lock:
            engine = self.recording_engine
            if engine is None:
                warn_user("toggle_collection_dynamic() has no effect: this session is not recording now.")
                return
            toggle = getattr(engine, "toggle", None)
            if toggle is None:
                raise StateError(
                    f"the engine {engine.name!r} cannot switch collection off and on while it records."
                )
            if requested:
                toggle(on, requested)

    def get_trace_id(self) -> str | None:
        """The id of the cycle that is prepared, is recording, or ended last.

        Returns:
            The id, also `trace_id` in the trace's metadata; None before the first cycle.
        """
        return self._trace_id

    def set_custom_trace_id_callback(self, callback: Callable[[], str] | None) -> None:
        """Set the callback that returns the ids of later cycles.

        Args:
            callback: Called without arguments, returns a string; None for random ids.

        Raises:
            ArgumentError: It cannot be called.
        """
        self.custom_trace_id_callback = callback

    if hasattr(torch.profiler, "ProfilerActivityConfig"):

        @property
        def activity_configs(self) -> dict[ProfilerActivity, Any]:
            """torch's `ProfilerActivityConfig` of each activity that does not record its default kinds."""
            return torchs_configs(self._options.activity_choices)

    # Methods of newer releases exist here only if the installed torch has them, too.
    if hasattr(TORCHS_SESSION, "wait_for_exports"):

        def wait_for_exports(self) -> None:
            """Do nothing: every export is written when the call that asks for it returns."""

    if hasattr(TORCHS_SESSION, "take_pending_cupti_export"):

        def take_pending_cupti_export(self) -> None:
            """Return None, as torch does for all but a backend of its own that writes later."""

    if hasattr(TORCHS_SESSION, "take_pending_cuspy_export"):

        def take_pending_cuspy_export(self) -> None:
            """Return None, as torch does for all but a backend of its own that writes later."""

    @property
    def execution_trace_observer(self) -> TraceObserver | None:
        """The observer that runs with each recording, if any."""
        return self._observer.observer

    @property
    def use_device(self) -> str | None:
        """torch's name of the device among the activities, None for the CPU only."""
        return device_among(self.activities)

    @property
    def has_cudagraphs(self) -> bool:
        """Whether torch.compile captures its kernels in CUDA graphs."""
        config = sys.modules.get("torch._inductor.config")
        return config is not None and bool(config.triton.cudagraphs)

    @property
    def profiler(self) -> Any:
        """torch's attribute of this name: None before the first cycle, then an object with the last cycle's results.

        With `engine="kineto"` it is torch's own `torch.autograd.profiler.profile`. With the native engine it is an object
        with the same methods, computed from our trace, `kineto_results.experimental_event_tree()` among them.
        """
        if self._stopwatch.stats is None:
            return None
        theirs = getattr(self._engine, "torch_profiler", None)
        return ProfilerApi(self) if theirs is None else theirs

    def _stats(self) -> SessionStats | None:
        """The profiler overhead of the current or last cycle, with torch's attribute names; None before the first."""
        return self._stopwatch.stats


def already_recording() -> StateError:
    """Build the error for starting a session that is already recording."""
    return StateError("this session is already recording: call stop() before starting it again.")


# `prof.profiler` with the native engine: what tools read of torch's object, from our trace.


class ProfilerApi:
    """API-compatible with torch's `torch.autograd.profiler.profile`, for the data of the session."""

    enabled = True

    def __init__(self, session: _KinetoProfile) -> None:
        self._session = session

    @property
    def kineto_results(self) -> ResultsApi | None:
        """The last cycle; None before one has finished."""
        if self._session.finished_cycles.last is None:
            return None
        from kinetoscope.collect.engines.kineto_recording import ResultsApi

        return ResultsApi(lambda: self._session.trace)

    def __getattr__(self, name: str) -> Any:
        """Look up other attributes of torch's object: first in `_COMPUTED`, then in the session, then in its list of events."""
        if name in _COMPUTED:
            return _COMPUTED[name](self._session)
        if name in _OF_SESSION:
            return getattr(self._session, name)
        if name in ("self_cpu_time_total", "table", "total_average"):
            return getattr(self._session.events(), name)
        raise AttributeError(
            f"prof.profiler has no attribute {name!r} with the native engine; engine='kineto' gives torch's own object."
        )


def _start_ns(session: _KinetoProfile) -> int:
    return int(session.trace.run_info.start_realtime_ns or 0)


# Other attributes of torch's object, computed from a session.
_COMPUTED: dict[str, Callable[[_KinetoProfile], Any]] = {
    "entered": lambda session: session.state is SessionState.RECORDING,
    "function_events": lambda session: session.events(),
    "kineto_activities": lambda session: set(session.activities),
    "profiling_end_time_ns": lambda session: _start_ns(session) + int(session.trace.run_info.stop_ns or 0),
    "profiling_start_time_ns": _start_ns,
    "trace_id": lambda session: session.get_trace_id() or "",
    "use_cpu": lambda session: ProfilerActivity.CPU in session.activities,
    "use_cuda": lambda session: session.use_device == "cuda",
}
_OF_SESSION = frozenset(
    {
        "_stats", "acc_events", "custom_trace_id_callback", "experimental_config", "export_chrome_trace", "export_stacks",
        "key_averages", "post_processing_timeout_s", "profile_memory", "record_shapes", "toggle_collection_dynamic",
        "use_device", "with_flops", "with_modules", "with_stack",
    }
)  # fmt: skip
