"""The Kineto engine: torch's own collector.

Recording and stopping have the same overhead as in `torch.profiler`. Then torch writes its recording as JSON, which our reader
turns into columns; see `kinetoscope.collect.engines.kineto_recording`.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import threading
import time
import weakref
from typing import Any

import torch
import torch.profiler
from torch.autograd import profiler as collector
from torch.profiler import ProfilerActivity

from kinetoscope._errors import ArgumentError, KinetoscopeError, StateError
from kinetoscope.collect.engines.cuspy import Cuspy
from kinetoscope.collect.engines.kineto_recording import (
    MONOTONIC_KEY,
    KinetoRecording,
    note_this_thread,
    read_before_the_next,
)
from kinetoscope.collect.process.machine import monotonic_of_realtime_ns
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.recorder.library import Recorder, ready_recorder
from kinetoscope.collect.request.activities import collector_takes, device_among, extensions
from kinetoscope.collect.request.options import EngineKind, RecordingRequest, StillRecordingError
from kinetoscope.collect.request.torch_settings import (
    ALL_THREADS_SETTING,
    GARBAGE_COLLECTION_SETTING,
    changed_settings,
    for_torchs_collector,
    has_setting,
)
from kinetoscope.collect.sources.storages import StorageWatch, living_in_process
from kinetoscope.collect.sources.torch_ranges import TORCH_RANGES
from kinetoscope.model.losses import Loss
from kinetoscope.model.pauses import Pauses


class UnknownKindError(ArgumentError, RuntimeError):
    """An activity has no event kind of that name. Also a RuntimeError, which torch raises."""


class KinetoEngine:
    """Records with the collector that is built into torch."""

    name = "kineto"
    kind: EngineKind = "kineto"

    def __init__(self) -> None:
        """Start unprepared; `torch_profiler` is torch's own session object of the current or last cycle."""
        self.torch_profiler: Any = None
        self._pauses = Pauses()
        # Guards ranges that are open across two recordings; None if it cannot be loaded.
        self._recorder: Recorder | None = None
        self._request: RecordingRequest | None = None
        self._collector: Any = None
        # torch records the operators of the thread that started its collector, and only that thread can pause or stop it.
        self._only_thread: threading.Thread | None = None
        self._operators_paused = False
        self._others: _OtherThreads | None = None
        self._cuspy: Cuspy | None = None
        self._watch: StorageWatch | None = None
        self._storages: list[dict[str, Any]] = []
        self._ended_at_exit: KinetoRecording | None = None
        _ENGINES.add(self)

    def prepare(self, request: RecordingRequest) -> None:
        """Let torch load and warm up its device tracing libraries.

        Raises:
            StateError: torch's collector is already in use, by `torch.profiler` for example.
            ArgumentError: torch's collector cannot record what was requested.
        """
        if changed_settings(request.options.experimental_config).get(ALL_THREADS_SETTING):
            warn_user(
                f"{ALL_THREADS_SETTING}: torch's own collector can crash the program while other threads run operators; the "
                "native engine records all threads safely"
                if _collects_all_threads(request)
                else f"{ALL_THREADS_SETTING}: without effect with profile_memory=True, since torch's own collector reports memory "
                "only to the thread that started it"
            )
        self._refuse_second_user()
        read_before_the_next()
        # Loaded now because ranges use it after the start, when loading would be recorded as Python calls.
        self._recorder = ready_recorder()
        self._request = request
        self._pauses = Pauses()
        try:
            self._collector = self.torch_profiler = self._prepared_collector(request)
        except RuntimeError as error:
            if not request.activity_filters:
                raise
            # Only torch knows the valid names of kinds, and it checks them only here.
            self._collector = None
            raise UnknownKindError(f"activities: {error}") from error

    def start(self) -> None:
        """Start torch's collector.

        Raises:
            StateError: Nothing was prepared, or torch's collector is already in use.
        """
        if self._request is None or self._collector is None:
            raise StateError("the Kineto engine was started without being prepared: call prepare() first.")
        try:
            self._refuse_second_user()
        except StateError:
            # Our stop() must not stop another profiler.
            self._collector = None
            raise
        all_threads = _collects_all_threads(self._request)
        self._only_thread = None if all_threads else threading.current_thread()
        self._operators_paused = False
        # Before the collector starts, as everything here: it may record the Python calls of this thread.
        self._others = None if all_threads else _OtherThreads()
        self._storages = []
        if self._request.options.profile_memory and self._recorder is not None:
            self._watch = StorageWatch(living_in_process(self._recorder), lambda tensors: None)
            self._storages = self._watch.start()
        info = {**self._request.info, MONOTONIC_KEY: json.dumps(monotonic_of_realtime_ns())}
        self._request = dataclasses.replace(self._request, info=info)
        note_this_thread()
        if self._recorder is not None:
            self._recorder.before_collector()
        self._collector._start_trace()  # noqa: SLF001  (torch's own)
        if self._cuspy is not None:
            self._cuspy.start()
        if self._recorder is not None:
            self._recorder.after_collector()

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Pause or resume the collection of activities.

        torch can pause operators only from the thread that records them. If another thread calls this, or if torch records
        all threads, operators are collected on, and those that began during the pause are removed from the trace later.

        Raises:
            StateError: Nothing is being recorded; or another thread than the one that started the collector calls this while
                memory is recorded, or to resume operators that the starting thread paused.
        """
        if self._collector is None or self._request is None:
            raise StateError("the Kineto engine is not recording: there is nothing to switch off or on.")
        here = self._only_thread is threading.current_thread()
        operators = ProfilerActivity.CPU in activities
        if self._only_thread is not None and not here:
            if self._request.options.profile_memory:
                raise StateError(
                    "with profile_memory=True torch's own collector can only be switched by the thread that started it."
                )
            if operators and enable and self._operators_paused:
                raise StateError(
                    "the thread that started torch's own collector switched operators off, and only that thread can switch "
                    "them on again."
                )
        if self._pauses.toggle(enable, (activity.name for activity in activities), time.time_ns()):
            by_torch = activities if here else activities - {ProfilerActivity.CPU}
            if by_torch:
                # torch removes its callbacks, or adds them again.
                if here and self._recorder is not None:
                    self._recorder.before_collector()
                self._collector.toggle_collection_dynamic(enable, by_torch)
                if here and self._recorder is not None:
                    self._recorder.after_collector()
            if operators and here:
                self._operators_paused = not enable

    def stop(self) -> KinetoRecording:
        """Stop torch's collector and store its result.

        Raises:
            StateError: Nothing is being recorded.
            StillRecordingError: Another thread started it, and is still running.
        """
        if self._ended_at_exit is not None:
            recording, self._ended_at_exit = self._ended_at_exit, None
            return recording
        if self._request is None or self._collector is None:
            raise StateError("the Kineto engine was stopped without being started: call start() first.")
        starter = self._only_thread
        elsewhere = starter is not None and starter is not threading.current_thread()
        if elsewhere and starter is not None and starter.is_alive():
            raise StillRecordingError(
                f"torch's own collector can only be stopped by the thread that started it ({starter.name}): call stop() "
                "there. The native engine can be stopped by any thread."
            )
        stopped, watch, self._watch = self._collector, self._watch, None
        try:
            if watch is not None:
                watch.cancel()
            losses = [] if self._cuspy is None else self._cuspy.stop()
            if elsewhere:
                # torch discards what it has collected when the recording thread ends.
                return KinetoRecording(None, self._request, self._pauses, taken_by="recording_thread_ended")
            if not TORCH_RANGES.torch_profiles:
                return KinetoRecording(None, self._request, self._pauses)
            stopped.__exit__(None, None, None)
            if self._recorder is not None:
                self._recorder.collector_stopped()
            losses += [] if self._others is None else self._others.ran()
            if watch is not None:
                self._storages += watch.stop()
            elif self._request.options.profile_memory:
                losses.append(Loss.of("storages_not_read"))
            note_this_thread()
            recording = KinetoRecording(
                stopped.kineto_results,
                self._request,
                self._pauses,
                max(0, int(stopped.profiling_end_time_ns - stopped.profiling_start_time_ns)),
                # Without the setting, older releases of torch always make them.
                has_objects=not (has_setting("trace_only") and stopped.experimental_config.trace_only),
                losses=losses,
                storages=self._storages,
                cuspy=self._cuspy,
            )
            stopped.kineto_results = recording.api()
            return recording
        finally:
            self._collector = None
            # torch does not reset this flag if an interrupt comes during its own stop.
            collector._set_is_profiler_enabled(False)  # noqa: SLF001  (torch's own)

    def stop_at_exit(self) -> None:
        """Stop the collector at the exit of Python; a later `stop` still returns the recording."""
        if self._collector is not None:
            self._ended_at_exit = self.stop()

    def _prepared_collector(self, request: RecordingRequest) -> Any:
        options, filters = request.options, request.activity_filters
        switches: dict[str, bool] = _object_settings(request)
        if options.garbage_collection:
            switches[GARBAGE_COLLECTION_SETTING] = True
        if filters and not collector_takes("activity_filters"):
            raise ArgumentError(
                f"activities: torch {torch.__version__} cannot choose among the kinds of an activity; pass the activities "
                "themselves."
            )
        newer: dict[str, Any] = {
            "custom_trace_id_callback": lambda: request.trace_id,
            "post_processing_timeout_s": options.post_processing_timeout_s,
        }
        settings = {
            "record_shapes": options.needs_shapes,
            "with_flops": options.with_flops,
            "profile_memory": options.profile_memory,
            # torch records Python calls and module calls as spans only together, and only with stacks.
            "with_stack": options.needs_python_stacks,
            "experimental_config": for_torchs_collector(
                options.experimental_config, profile_all_threads=_collects_all_threads(request), **switches
            ),
            **{name: value for name, value in newer.items() if collector_takes(name)},
        }
        self._cuspy = Cuspy.requested(options, request.activities, **settings)
        if self._cuspy is not None:
            return self._cuspy.prepare()
        newer = {
            "activity_filters": {activity: set(kinds) for activity, kinds in filters.items()} or None,
            "_profiler_extensions": extensions(options.extension_configs),
        }
        profiler = collector.profile(
            use_cpu=ProfilerActivity.CPU in request.activities,
            use_device=device_among(request.activities),
            use_kineto=True,
            **settings,
            **{name: value for name, value in newer.items() if collector_takes(name)},
        )
        # Set as an attribute: passing the keyword makes torch 2.14 warn that it has no effect, but here it has one.
        profiler.with_modules = options.with_modules
        profiler._prepare_trace()  # noqa: SLF001  (torch's own)
        return profiler

    def _refuse_second_user(self) -> None:
        """Raise StateError if torch.profiler is recording, which torch would silently stop."""
        if TORCH_RANGES.torch_profiles:
            raise StateError(
                "torch's own collector is already in use, by torch.profiler or torch.autograd.profiler: stop that one "
                "first. (The native engine can record at the same time.)"
            )


_ENGINES: weakref.WeakSet[KinetoEngine] = weakref.WeakSet()


def _collects_all_threads(request: RecordingRequest) -> bool:
    """Whether torch records all threads.

    torch then reads buffers that other threads may still be writing: programs can crash at start and stop, also with
    torch.profiler. So operators are recorded on all threads only if the program's own settings request it, and never with
    memory, which torch reports only to the thread that started the collector. Without operators other threads write nothing,
    and any thread may stop the collector.
    """
    options = request.options
    if options.profile_memory:
        return False
    if ProfilerActivity.CPU not in request.activities:
        return True
    return bool(changed_settings(options.experimental_config).get(ALL_THREADS_SETTING))


# Threads with less processor time, or a smaller share of the recording, are not worth a warning.
_LEAST_RAN_NS, _LEAST_RAN_SHARE = 1_000_000, 0.01
_TASKS = "/proc/self/task"
_OUR_THREADS = "kinetoscope"
_MOST_NAMED = 5


class _OtherThreads:
    """Finds threads that use the processor during a recording but that torch does not record."""

    def __init__(self) -> None:
        """Store the processor time that each thread has used so far."""
        self._before = _thread_times_ns()
        self._process_ns = time.process_time_ns()
        self._start_ns = time.monotonic_ns()

    def ran(self) -> list[Loss]:
        """Return a loss that names the threads that have run since then, without the calling one; none if there are none."""
        # The process's time first, and at the start the threads' times: the time of ended threads is never overestimated.
        ended_ns = time.process_time_ns() - self._process_ns
        now = _thread_times_ns()
        least_ns = max(_LEAST_RAN_NS, _LEAST_RAN_SHARE * (time.monotonic_ns() - self._start_ns))
        used_ns = {tid: ns - self._before.get(tid, 0) for tid, ns in now.items()}
        here = threading.get_native_id()
        names = [
            thread.name
            for thread in threading.enumerate()
            if thread.native_id != here
            and not thread.name.startswith(_OUR_THREADS)
            and used_ns.get(thread.native_id or 0, 0) >= least_ns
        ]
        if now and ended_ns - sum(used_ns.values()) >= least_ns:
            names.append("threads that have ended")
        if not names:
            return []
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        why = (
            f"torch's collector records the thread that started it, and its backward passes. Also ran: {', '.join(names[:_MOST_NAMED])}{more}. "
            "The native engine records all threads."
        )
        return [Loss.of("threads_not_recorded", len(names), why=why)]


def _thread_times_ns() -> dict[int, int]:
    """Processor time of each thread of the process in nanoseconds, by native thread id; empty if /proc is not available."""
    times_ns: dict[int, int] = {}
    try:
        tids = [int(name) for name in os.listdir(_TASKS)]
    except OSError:
        return times_ns
    for tid in tids:
        # The clock id of a thread, as Linux defines it. The thread may have ended meanwhile.
        with contextlib.suppress(OSError):
            times_ns[tid] = time.clock_gettime_ns((~tid << 3) | 6)
    return times_ns


def _object_settings(request: RecordingRequest) -> dict[str, bool]:
    """The collector's setting that turns off its event objects, which take a third of the time of a stop.

    We read torch's JSON and do not need them. They are made for programs that read them from `prof.profiler`: if the program
    passed its own experimental settings, or replaced torch's profiler by `install`; if memory is recorded, because tools
    read it from torch's event tree; and for stacks, which torch records only with them.
    """
    options = request.options
    if options.experimental_config is not None:
        return {}
    return {
        "trace_only": not (options.needs_python_stacks or options.profile_memory or request.torch_objects)
    }


def _stop_at_exit() -> None:
    """Stop collectors at exit: torch's collector crashes if it is still recording when the interpreter ends."""
    for engine in list(_ENGINES):
        with contextlib.suppress(KinetoscopeError):
            engine.stop_at_exit()


def _after_fork() -> None:
    """In a forked child: the collector belongs to the parent. Its threads do not exist here, so it must not be stopped."""
    global _ENGINES
    _ENGINES = weakref.WeakSet()


atexit.register(_stop_at_exit)
os.register_at_fork(after_in_child=_after_fork)
