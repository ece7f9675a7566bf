"""The hybrid engine: our recorder records the host, torch's collector the devices; the trace is merged from both.

Stacks, modules and shapes have the low overhead of the native engine, and torch's collector has less to do because it does not
record operators. The two are merged by time: calls of the device runtime are nested in the operators that made them. This is also
how the clocks of the two are checked; see `kinetoscope.combine.device`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kinetoscope._errors import KinetoscopeError, StateError
from kinetoscope.collect.engines.kineto import KinetoEngine
from kinetoscope.collect.engines.native import NativeEngine
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import ProfilerActivity
from kinetoscope.collect.request.options import (
    Engine,
    EngineKind,
    Recording,
    RecordingOptions,
    RecordingRequest,
)
from kinetoscope.collect.request.torch_settings import changed_settings, for_torchs_collector
from kinetoscope.model import units
from kinetoscope.model.losses import Loss, paused_losses
from kinetoscope.model.pauses import Pauses
from kinetoscope.storage.appended_rows import AppendedRows
from kinetoscope.trace import Trace


@dataclass
class Segment:
    """What torch's collector records from a start to the next stop; times are nanoseconds since 1970.

    Attributes:
        engine: The engine that records it.
        request: The engine's request: activities and settings.
        begin_ns: When the engine's start had returned.
        end_ns: When the engine's stop began; None while it is recording.
        recording: The result; None while it is recording, and if stopping failed.
        failure: Why there is no result.
        sessions: Number of sessions that it belongs to.
        is_off: Whether collection is paused now.
    """

    engine: Engine
    request: RecordingRequest
    begin_ns: int
    end_ns: int | None = None
    recording: Recording | None = None
    failure: str = ""
    sessions: int = 0
    is_off: bool = False

    def stop(self) -> None:
        """End the segment: its recording, or its failure, is known from then on."""
        # Read before the stop: work that is launched during it may be missing.
        self.end_ns = time.time_ns()
        try:
            self.recording = self.engine.stop()
        except (KinetoscopeError, RuntimeError) as error:
            self.failure = str(error)


@dataclass(eq=False)
class DevicePart:
    """The part of one session in segments that several may share, a recording once it has ended; times are nanoseconds since 1970.

    Attributes:
        request: The session's own request.
        begin_ns: When it began to record.
        end_ns: When it ended.
        segments: The segments that contain its part, in time order.
        pauses: When the program paused its collection.
    """

    request: RecordingRequest
    begin_ns: int = 0
    end_ns: int = 0
    segments: list[Segment] = field(default_factory=list)
    pauses: Pauses = field(default_factory=Pauses)

    @property
    def is_off(self) -> bool:
        """Whether the session has paused all of its devices."""
        off = {pause["activity"] for pause in self.pauses.as_list() if pause["to_realtime_ns"] is None}
        return off >= {activity.name for activity in self.request.activities}

    def discard(self) -> None:
        """Drop this session's references to its segments; other sessions keep theirs."""
        self.segments.clear()

    def trace(self) -> Trace:
        """Read the segments, and cut out the session's part.

        Raises:
            StateError: It was discarded, or no segment has a result.
        """
        from kinetoscope.combine.concatenate import concatenate
        from kinetoscope.combine.cut import TracePart, cut
        from kinetoscope.combine.extend import extend
        from kinetoscope.tables.intervals import Intervals

        segments = self.segments
        DEVICES.finish(segments)
        traces = [segment.recording.trace() for segment in segments if segment.recording is not None]
        if not traces:
            reasons = [segment.failure for segment in segments if segment.failure]
            raise StateError(
                reasons[0] if reasons else "this recording was discarded: there is no trace of it."
            )
        joined = concatenate(traces)
        zero_ns = joined.run_info.start_realtime_ns or 0
        # When the session was recording and not paused.
        off = self.pauses.windows_ns(next(iter(self.request.activities)).name)
        off_from_ns = np.array([from_ns for from_ns, _ in off], np.int64)
        off_to_ns = np.array([min(to_ns, self.end_ns) for _, to_ns in off], np.int64)
        on = Intervals.between(self.begin_ns, self.end_ns) - Intervals.of(off_from_ns, off_to_ns)
        starts, ends = (on.start_ns - zero_ns, on.end_ns - zero_ns) if len(on) else np.zeros((2, 1), np.int64)
        part = cut(joined, TracePart(0, starts, ends, by_launch=True))
        # The part is one cycle of the session; the cycles of the segments are meaningless.
        spans = {name: part.column("spans", name) for name in part.columns("spans").given if name != "cycle"}
        losses = [*self._interruptions(), *paused_losses(self.pauses.as_list())]
        return extend(
            part,
            losses=losses,
            without_losses=["collection_paused"],
            tables={"spans": spans, "cycles": {}},
            info={"pauses": self.pauses.as_list(), "cycles": None, "selections": None},
        )

    def _interruptions(self) -> list[Loss]:
        """The losses from restarts of the collector, and from segments that failed."""
        losses: list[Loss] = []
        segments = self.segments
        gaps_ns = [
            later.begin_ns - before.end_ns
            for before, later in itertools.pairwise(segments)
            if before.end_ns is not None and not later.failure
        ]
        if gaps_ns:
            why = (
                f"torch's collector was stopped and started again, {units.duration(sum(gaps_ns))} in all: another session's trace "
                "was read, or another session needed more. Read the traces of inner sessions after the outer one has stopped."
            )
            losses.append(Loss.of("devices_interrupted", len(gaps_ns), why=why))
        losses += [
            Loss.of("devices_not_recorded", why=segment.failure) for segment in segments if segment.failure
        ]
        return losses


class DeviceCollection:
    """Runs torch's collector, of which there is one per process, while at least one session needs it.

    The first session starts the collector, and the last one stops it. It returns its results only when it is stopped: if the trace of
    a session is read while others are recording, the collector is restarted. What it collects between a start and a stop is a segment.
    A session's part consists of the runtime calls that began while it recorded, and of the device work that they launched.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._subscribers: list[DevicePart] = []
        self._segment: Segment | None = None

    @property
    def is_running(self) -> bool:
        """Whether the collector is recording."""
        return self._segment is not None

    def start(self, subscriber: DevicePart, prepared: Engine | None) -> None:
        """Start recording for a session; `prepared` is an engine that is ready to start, if there is one.

        Raises:
            StateError: torch's collector is in use by another profiler, or other sessions use it with different settings.
        """
        with self.lock:
            # Before the start: after an interrupt in the middle of it, `stop` must find the subscriber.
            self._subscribers.append(subscriber)
            try:
                if self._segment is None:
                    self._begin_segment(prepared)
                elif _covers(self._segment.request, subscriber.request):
                    self._join(subscriber, self._segment)
                else:
                    self._restart()
                subscriber.begin_ns = time.time_ns()
                self._apply_pauses()
            except BaseException:
                self._subscribers.remove(subscriber)
                if not self._subscribers:
                    self._end_segment()
                raise

    def stop(self, subscriber: DevicePart | None) -> Recording:
        """Stop recording for a session.

        Raises:
            StateError: It is not recording.
        """
        with self.lock:
            if subscriber is None or subscriber not in self._subscribers:
                raise StateError("the devices are not being recorded: call start() first.")
            subscriber.end_ns = time.time_ns()
            self._subscribers.remove(subscriber)
            if self._subscribers:
                self._apply_pauses()
            else:
                self._end_segment()
            if len(subscriber.segments) == 1 and subscriber.segments[0].sessions == 1:
                (segment,) = subscriber.segments
                if segment.recording is None:
                    raise StateError(segment.failure or "torch's collector was stopped by somebody else.")
                return segment.recording
            return subscriber

    def toggle(self, subscriber: DevicePart, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Pause or resume a session; the collector itself is paused only while no session needs it."""
        with self.lock:
            names = [activity.name for activity in activities]
            if not subscriber.pauses.toggle(enable, names, time.time_ns()) or self._segment is None:
                return
            if self._segment.sessions == 1:
                self._segment.engine.toggle(enable, activities)
                self._segment.is_off = subscriber.is_off
            else:
                self._apply_pauses()

    def finish(self, segments: Sequence[Segment]) -> None:
        """Make sure that segments are complete; if one is still recording, restart the collector for the other sessions."""
        with self.lock:
            if self._segment is not None and self._segment in segments:
                self._restart()

    def _begin_segment(self, prepared: Engine | None) -> None:
        requests = [subscriber.request for subscriber in self._subscribers]
        wanted = frozenset(activity for request in requests for activity in request.activities)
        changed = [request.options for request in requests if _settings(request)]
        options = changed[0] if changed else requests[0].options
        request = dataclasses.replace(requests[0], activities=wanted, options=options)
        engine = prepared
        if engine is None:
            engine = KinetoEngine()
            engine.prepare(request)
        segment = self._segment = Segment(engine, request, time.time_ns())
        try:
            engine.start()
        except BaseException:
            self._segment = None
            raise
        segment.begin_ns = time.time_ns()
        for subscriber in self._subscribers:
            self._join(subscriber, segment)

    def _join(self, subscriber: DevicePart, segment: Segment) -> None:
        subscriber.segments.append(segment)
        segment.sessions += 1

    def _end_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.stop()

    def _restart(self) -> None:
        self._end_segment()
        if not self._subscribers:
            return
        try:
            self._begin_segment(None)
        except (KinetoscopeError, RuntimeError) as error:
            # Not raised: the caller has stopped already. The sessions that are still recording get a loss in their traces.
            for subscriber in self._subscribers:
                now_ns = time.time_ns()
                subscriber.segments.append(
                    Segment(KinetoEngine(), subscriber.request, now_ns, end_ns=now_ns, failure=str(error))
                )
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        """Pause or resume the collector: it is paused while all sessions have paused."""
        segment = self._segment
        if segment is None or not self._subscribers:
            return
        off = all(subscriber.is_off for subscriber in self._subscribers)
        if off != segment.is_off:
            segment.engine.toggle(not off, segment.request.activities)
            segment.is_off = off


def _settings(request: RecordingRequest) -> dict[str, Any]:
    chosen = {f"kinds of {activity.name}": kinds for activity, kinds in request.activity_filters.items()}
    configs = {type(config).__name__: config for config in request.options.extension_configs}
    return {**changed_settings(request.options.experimental_config), **chosen, **configs}


def _covers(running: RecordingRequest, wanted: RecordingRequest) -> bool:
    """Whether a collector that runs for one request also records everything that another one needs.

    Raises:
        StateError: The two need different settings, but there is only one collector.
    """
    current, other = _settings(running), _settings(wanted)
    same = current == other or not other
    if wanted.activities <= running.activities and same:
        return True
    if current and other and current != other:
        raise StateError(
            f"torch's collector already records devices with other settings for another session ({sorted(current)} instead of "
            f"{sorted(other)}): stop that one first, or use the same settings."
        )
    return False


DEVICES = DeviceCollection()
# In a forked child: forget the parent's subscribers and segment, and replace the lock.
os.register_at_fork(after_in_child=DEVICES.__init__)  # type: ignore[misc]


class SharedDevices:
    """An engine that records devices together with those of other sessions."""

    name = "kineto"

    def __init__(self) -> None:
        self._prepared: Engine | None = None
        self._request: RecordingRequest | None = None
        self._subscriber: DevicePart | None = None

    def prepare(self, request: RecordingRequest) -> None:
        """Warm up torch's collector, unless it is recording already for another session.

        Raises:
            StateError: torch's collector is in use by another profiler.
        """
        self._request, self._prepared = request, None
        with DEVICES.lock:
            if not DEVICES.is_running:
                self._prepared = KinetoEngine()
                self._prepared.prepare(request)

    def start(self) -> None:
        """Start recording, in a segment of its own or in the current one.

        Raises:
            StateError: Nothing was prepared, or torch's collector is in use by another profiler or with different settings.
        """
        if self._request is None:
            raise StateError("the devices' engine was started without being prepared: call prepare() first.")
        self._subscriber = DevicePart(self._request)
        prepared, self._prepared = self._prepared, None
        DEVICES.start(self._subscriber, prepared)

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Pause or resume the recording of activities."""
        if self._subscriber is not None:
            DEVICES.toggle(self._subscriber, enable, activities)

    def stop(self) -> Recording:
        """Stop recording; the result is read on first use.

        Raises:
            StateError: Nothing is being recorded.
        """
        subscriber, self._subscriber = self._subscriber, None
        return DEVICES.stop(subscriber)


_HOST = frozenset({ProfilerActivity.CPU})
_LOW_BITS = (1 << 32) - 1
_OF_HOST = ("add_info", "append_rows", "own_steps", "record_deep")


class HybridEngine:
    """Records the host with the native recorder and devices with torch's collector."""

    name = "native"
    # Several sessions can record at the same time.
    joins_others = True
    kind: EngineKind = "hybrid"

    def __init__(
        self, host: Engine | None = None, devices: Engine | None = None, *, needs_devices: bool = True
    ) -> None:
        """Nothing is loaded before `prepare`.

        Args:
            host: The engine for the host; None for the native engine.
            devices: The engine for the devices; None for torch's collector, shared with other sessions.
            needs_devices: If another profiler uses torch's collector: True raises StateError, False records the host alone, with
                a warning and a loss.
        """
        self._host: Engine = NativeEngine() if host is None else host
        self._devices: Engine = SharedDevices() if devices is None else devices
        self._needs_devices = needs_devices
        # Why the devices are not recorded, or empty.
        self._without_devices = ""
        self._running = False

    def prepare(self, request: RecordingRequest) -> None:
        """Prepare both engines.

        Raises:
            RecorderError: The native recorder is not available, or cannot record what was requested.
            StateError: torch's collector is already in use.
        """
        options = request.options
        self._host.prepare(dataclasses.replace(request, activities=request.activities & _HOST))
        # The device side records nothing that belongs to operators, and has no file of its own.
        for_devices = RecordingOptions(
            activities=options.activities,
            # torch's event objects, which would cover the devices only, are not needed.
            experimental_config=for_torchs_collector(options.experimental_config, trace_only=True),
            post_processing_timeout_s=options.post_processing_timeout_s,
        )
        devices = RecordingRequest(
            request.activities - _HOST,
            for_devices,
            torch_objects=request.torch_objects,
            trace_id=request.trace_id,
        )
        self._without_devices = ""
        self._try_devices(lambda: self._devices.prepare(devices))

    def _try_devices(self, do: Callable[[], None]) -> None:
        """Prepare or start the devices; if they are in use, record the host alone, with a warning, or raise the error if they are needed."""
        try:
            do()
        except StateError as error:
            if self._needs_devices:
                raise
            self._without_devices = str(error)
            warn_user(f"devices are not recorded: {error}")

    def start(self) -> None:
        """Start both engines or none; the devices first, so that the kernels of every recorded operator are recorded.

        Raises:
            StateError: Nothing was prepared, or one of the recorders is in use.
            RecorderError: The recording's file cannot be created.
        """
        # Set before both: after an interrupt in the middle, `stop` must stop what was started.
        self._running = True
        try:
            if not self._without_devices:
                self._try_devices(self._devices.start)
            self._host.start()
        except BaseException:
            self._running = False
            with contextlib.suppress(KinetoscopeError):
                self._devices.stop().discard()
            raise

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Pause or resume activities, each in the engine that records it."""
        if activities & _HOST:
            self._host.toggle(enable, activities & _HOST)
        if activities - _HOST and not self._without_devices:
            self._devices.toggle(enable, activities - _HOST)

    def __getattr__(self, name: str) -> Any:
        """What not all engines have is that of the host's engine."""
        if name not in _OF_HOST:
            raise AttributeError(name)
        return getattr(self._host, name)

    def stop(self) -> HybridRecording:
        """Stop the host's engine, then that of the devices.

        Raises:
            StateError: Nothing is being recorded.
        """
        if not self._running:
            raise StateError("nothing is being recorded: call start() first.")
        # The device runtime identifies threads by the low 32 bits of their pthread ids.
        threads = {
            (thread.ident or 0) & _LOW_BITS: thread.native_id or -1 for thread in threading.enumerate()
        }
        devices, failure = None, self._without_devices
        try:
            host = self._host.stop()
        finally:
            # Even if the host's engine fails, torch's collector must not be left running.
            if not failure:
                try:
                    devices = self._devices.stop()
                except (KinetoscopeError, RuntimeError) as error:
                    failure = str(error)
            self._running = False
        return HybridRecording(host, devices, threads, failure)


@dataclass(eq=False)
class HybridRecording:
    """The recordings of the host and of the devices, which become one trace.

    Attributes:
        host: That of the host.
        devices: That of the devices; None if there is none.
        threads: The native thread ids by the thread ids of the device runtime.
        failure: Why the devices' recording is missing.
    """

    host: Recording
    devices: Recording | None
    threads: dict[int, int]
    failure: str

    def trace(self) -> Trace:
        """Read both recordings, and merge them.

        Raises:
            StateError: The recording was discarded before it was read.
        """
        from kinetoscope.combine.device import join_device
        from kinetoscope.combine.extend import extend

        host, failure = self.host.trace(), self.failure
        if self.devices is not None:
            try:
                device = self.devices.trace()
            except KinetoscopeError as error:
                failure = str(error)
            else:
                return join_device(host, device, self.threads)
        return extend(host, losses=[Loss.of("devices_not_recorded", why=failure)])

    @property
    def rows(self) -> AppendedRows | None:
        """Rows that sources appended to the host's recording and `trace()` does not contain; valid after `trace()`."""
        return getattr(self.host, "rows", None)

    def discard(self) -> None:
        """Delete the recordings of the host and of the devices."""
        self.host.discard()
        if self.devices is not None:
            self.devices.discard()
