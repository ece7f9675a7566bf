"""The engine of last resort and of every device: torch's own collector.

Collecting and stopping cost what they cost in `torch.profiler`. What comes after is ours: torch writes its recording as
text, and our reader makes columns of it; see `kinetoscope.collect._kineto_recording`.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import inspect
import json
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler as collector
from torch.profiler import ProfilerActivity

from kinetoscope._errors import ArgumentError, KinetoscopeError, StateError
from kinetoscope.collect._activities import extensions, name_of
from kinetoscope.collect._engine import StillRecordingError
from kinetoscope.collect._experimental import for_torchs_collector, has_setting
from kinetoscope.collect._kineto_columns import note_this_thread
from kinetoscope.collect._kineto_recording import MONOTONIC_KEY, KinetoRecording
from kinetoscope.collect._machine import monotonic_of_realtime_ns
from kinetoscope.collect._pauses import Pauses
from kinetoscope.collect._storages import Living, StorageWatch
from kinetoscope.collect._torch_ranges import TORCH_RANGES
from kinetoscope.collect._warn import warn_user

if TYPE_CHECKING:
    from kinetoscope.collect._engine import RecordingRequest

_DEVICE_NAMES = {"CUDA": "cuda", "XPU": "xpu", "MTIA": "mtia", "HPU": "hpu"}


class UnknownKindError(ArgumentError, RuntimeError):
    """An activity has no kind of that name; torch raises a RuntimeError."""


class KinetoEngine:
    """Records with the collector that is built into torch."""

    name = "kineto"

    def __init__(self) -> None:
        """Begin with nothing prepared; `torch_profiler` is torch's own session object of the present or last cycle."""
        self.torch_profiler: Any = None
        self._pauses = Pauses()
        self._request: RecordingRequest | None = None
        self._collector: Any = None
        self._only_thread: int | None = None
        self._watch: StorageWatch | None = None
        self._living = Living()
        self._ended_at_exit: KinetoRecording | None = None
        _ENGINES.add(self)

    def prepare(self, request: RecordingRequest) -> None:
        """Let torch load and warm up what its devices need.

        Raises:
            StateError: torch's collector is already in use, by `torch.profiler` for example.
        """
        ignored = [name for name in ("path", "ring_bytes") if getattr(request, name) is not None]
        if ignored:
            warn_user(
                f"{' and '.join(ignored)}: without effect, since torch's own collector keeps its recording in memory"
            )
        self._refuse_second_user()
        self._request = request
        self._collector = self.torch_profiler = _make_collector(request)
        self._pauses = Pauses()
        try:
            self._collector._prepare_trace()
        except RuntimeError as error:
            if not request.activity_filters:
                raise
            # torch alone knows the names of kinds, and tells the wrong one only here.
            self._collector = None
            raise UnknownKindError(f"activities: {error}") from error

    def start(self) -> None:
        """Let torch collect.

        Raises:
            StateError: Nothing was prepared, or torch's collector is already in use.
        """
        if self._request is None or self._collector is None:
            raise StateError("the Kineto engine was started without being prepared: call prepare() first.")
        try:
            self._refuse_second_user()
        except StateError:
            # Nobody shall stop through us what is another's.
            self._collector = None
            raise
        # torch reports memory to the thread that started only, and that collection can only be stopped by it.
        self._only_thread = threading.get_ident() if self._request.profile_memory else None
        if self._request.profile_memory:
            self._watch = StorageWatch(self._living, lambda tensors: None)
            self._request = _with_info(self._request, self._watch.start())
        self._request = _with_info(self._request, {MONOTONIC_KEY: json.dumps(monotonic_of_realtime_ns())})
        note_this_thread()
        self._collector._start_trace()

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Switch the collection of activities off or on.

        torch can do this for operators only while it watches one thread. Where it watches all, they are collected as
        before, and those that began in the meantime are left out of the trace.

        Raises:
            StateError: Nothing is being recorded, or it is recorded for one thread and this is another.
        """
        if self._collector is None:
            raise StateError("the Kineto engine is not recording: there is nothing to switch off or on.")
        if self._only_thread not in (None, threading.get_ident()):
            raise StateError(
                "with profile_memory=True torch's own collector can only be switched by the thread that started it."
            )
        if self._pauses.toggle(enable, (activity.name for activity in activities)):
            by_torch = activities - ({ProfilerActivity.CPU} if self._only_thread is None else frozenset())
            if by_torch:
                self._collector.toggle_collection_dynamic(enable, by_torch)

    def stop(self) -> KinetoRecording:
        """Stop torch's collector and keep what it returns.

        Raises:
            StateError: Nothing is being recorded.
            StillRecordingError: Memory is recorded, and another thread started it.
        """
        if self._ended_at_exit is not None:
            recording, self._ended_at_exit = self._ended_at_exit, None
            return recording
        if self._request is None or self._collector is None:
            raise StateError("the Kineto engine was stopped without being started: call start() first.")
        if self._only_thread not in (None, threading.get_ident()):
            raise StillRecordingError(
                "with profile_memory=True torch's own collector can only be stopped by the thread that started it: "
                "call stop() there."
            )
        stopped, watch, self._watch = self._collector, self._watch, None
        try:
            if watch is not None:
                watch.cancel()
            if not _in_use():
                return KinetoRecording(None, self._request, self._pauses)
            stopped.__exit__(None, None, None)
            if watch is not None:
                self._request = _with_info(self._request, watch.stop())
            note_this_thread()
            recording = KinetoRecording(
                stopped.kineto_results,
                self._request,
                self._pauses,
                _window_ns(stopped),
                has_objects=_makes_objects(stopped.experimental_config),
            )
            stopped.kineto_results = recording.face()
            return recording
        finally:
            self._collector = None
            # torch forgets this when an interrupt cuts its own stop short.
            collector._set_is_profiler_enabled(False)

    def stop_at_exit(self) -> None:
        """Stop because Python ends; whoever still asks for the recording with `stop` gets it."""
        if self._collector is not None:
            self._ended_at_exit = self.stop()

    def _refuse_second_user(self) -> None:
        """Say so when torch.profiler is running: torch itself would silently end that one."""
        if _in_use():
            raise StateError(
                "torch's own collector is already in use, by torch.profiler or torch.autograd.profiler: stop that one "
                "first. (The native engine can run beside it.)"
            )


_ENGINES: weakref.WeakSet[KinetoEngine] = weakref.WeakSet()


def _objects(request: RecordingRequest) -> dict[str, bool]:
    """Whether torch shall make its event objects as well, which it does in a third of the time that stopping takes.

    We read its text and need none. They are made for those who look for them in `prof.profiler`: where the program chose
    settings of torch's own, which then say it, or asked for torch's collector in the place of torch.profiler; where memory
    is recorded, since tools read it from torch's tree of events; and for stacks, which torch does not have without.
    """
    if request.experimental_config is not None:
        return {}
    stacks = request.with_stack or request.python_calls or request.module_spans
    return {"trace_only": not (stacks or request.profile_memory or request.torch_objects)}


def _makes_objects(config: Any) -> bool:
    """Whether torch makes its event objects with these settings; releases that cannot leave it do."""
    return not (has_setting("trace_only") and config.trace_only)


def _with_info(request: RecordingRequest, info: dict[str, str]) -> RecordingRequest:
    """The request with more metadata."""
    return dataclasses.replace(request, info={**request.info, **info})


def _stop_at_exit() -> None:
    """Stop what nobody stopped: torch's collector crashes when it outlives the interpreter."""
    for engine in list(_ENGINES):
        with contextlib.suppress(KinetoscopeError):
            engine.stop_at_exit()


def _window_ns(stopped: Any) -> int:
    """For how long torch's collector was on, by its own account."""
    return max(0, int(stopped.profiling_end_time_ns - stopped.profiling_start_time_ns))


def _in_use() -> bool:
    """Whether torch's collector is collecting, on any thread."""
    return TORCH_RANGES.torch_profiles


def _make_collector(request: RecordingRequest) -> Any:
    """A collector of torch, set up but doing nothing yet."""
    names = {name_of(activity) for activity in request.activities}
    device = next((_DEVICE_NAMES[name] for name in _DEVICE_NAMES if name in names), None)
    if device is None and "PrivateUse1" in names:
        device = torch._C._get_privateuse1_backend_name()
    newer: dict[str, Any] = {
        "custom_trace_id_callback": lambda: request.trace_id,
        "post_processing_timeout_s": request.post_processing_timeout_s,
        "activity_filters": {activity: set(kinds) for activity, kinds in request.activity_filters.items()}
        or None,
        "_profiler_extensions": extensions(request.extension_configs),
    }
    known = inspect.signature(collector.profile).parameters
    if request.activity_filters and "activity_filters" not in known:
        raise ArgumentError(
            f"activities: torch {torch.__version__} cannot choose among the kinds of an activity; pass the activities "
            "themselves."
        )
    made = collector.profile(
        use_cpu=ProfilerActivity.CPU in request.activities,
        use_device=device,
        record_shapes=request.record_shapes,
        with_flops=request.with_flops,
        profile_memory=request.profile_memory,
        # torch puts Python calls and module calls on the timeline together, and only with stacks.
        with_stack=request.with_stack or request.python_calls or request.module_spans,
        use_kineto=True,
        experimental_config=for_torchs_collector(
            request.experimental_config, profile_all_threads=not request.profile_memory, **_objects(request)
        ),
        **{name: value for name, value in newer.items() if name in known},
    )
    # Not by its keyword, of which torch 2.14 warns as of something that does nothing: for us it does.
    made.with_modules = request.with_modules
    return made


atexit.register(_stop_at_exit)
