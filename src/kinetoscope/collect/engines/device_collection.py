"""The device side of hybrid sessions: torch's one collector, which all sessions that need devices share.

The first session starts it and the last one stops it. torch's collector gives what it has collected only when it is stopped: if the
trace of a session is read while others go on, it is stopped and started again, and what it collected in between are segments. A
session's part are the device calls of its own time, and the work that they launched.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import KinetoscopeError, StateError
from kinetoscope.collect.engines.kineto import KinetoEngine
from kinetoscope.collect.request.torch_settings import changed_settings
from kinetoscope.model import units
from kinetoscope.model.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kinetoscope.collect.request.activities import ProfilerActivity
    from kinetoscope.collect.request.options import Engine, Recording, RecordingRequest
    from kinetoscope.model.losses import Loss
    from kinetoscope.trace import Trace


@dataclass
class Segment:
    """What torch's collector collects from one start to one stop; times are of the system's clock.

    Attributes:
        engine: What collects it.
        request: What it collects.
        begin_ns: When it had begun.
        end_ns: When it began to end; None while it goes on.
        recording: What it left; None while it goes on, and if it failed.
        failure: Why there is no recording.
        sessions: How many sessions it has been collected for.
        is_off: Whether its collection is switched off at present.
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
        """Stop the collector, if it still collects."""
        if self.end_ns is not None:
            return
        # Before: what is launched while it stops may be missing.
        self.end_ns = time.time_ns()
        try:
            self.recording = self.engine.stop()
        except (KinetoscopeError, RuntimeError) as error:
            self.failure = str(error)


@dataclass(eq=False)
class Subscriber:
    """A session's part in the collection; times are of the system's clock.

    Attributes:
        request: What it needs.
        begin_ns: When its part begins.
        segments: The segments that its part is in, in order.
        pauses: When the program switched its collection off.
    """

    request: RecordingRequest
    begin_ns: int = 0
    segments: list[Segment] = field(default_factory=list)
    pauses: Pauses = field(default_factory=Pauses)

    @property
    def is_off(self) -> bool:
        """Whether none of its devices is collected for it at present."""
        off = {pause["activity"] for pause in self.pauses.as_list() if pause["to_realtime_ns"] is None}
        return off >= {activity.name for activity in self.request.activities}


class DeviceCollection:
    """torch's collector, while any session needs it."""

    def __init__(self, make_engine: Callable[[], Engine] = KinetoEngine) -> None:
        """Collect nothing yet; `make_engine` makes what collects."""
        self.lock = threading.RLock()
        self.make_engine = make_engine
        self._subscribers: list[Subscriber] = []
        self._segment: Segment | None = None

    @property
    def is_running(self) -> bool:
        """Whether the collector is on."""
        return self._segment is not None

    def start(self, one: Subscriber, prepared: Engine | None) -> None:
        """Begin a session's part; `prepared` is an engine that can begin at once, if there is one.

        Raises:
            StateError: torch's collector is in use by somebody else, or other sessions use it with other settings.
        """
        with self.lock:
            # First: an interrupt in the middle must find something that can be stopped.
            self._subscribers.append(one)
            try:
                if self._segment is None:
                    self._begin_segment(prepared)
                elif not _covers(self._segment.request, one.request):
                    _check_settings(self._segment.request, one.request)
                    self._restart()
                else:
                    self._join(one, self._segment)
                one.begin_ns = time.time_ns()
                self._apply_pauses()
            except BaseException:
                self._subscribers.remove(one)
                if not self._subscribers:
                    self._end_segment()
                raise

    def stop(self, one: Subscriber) -> Recording:
        """End a session's part.

        Raises:
            StateError: It has none.
        """
        with self.lock:
            if one not in self._subscribers:
                raise StateError("the devices are not being recorded: call start() first.")
            end_ns = time.time_ns()
            self._subscribers.remove(one)
            if self._subscribers:
                self._apply_pauses()
            else:
                self._end_segment()
            if len(one.segments) == 1 and one.segments[0].sessions == 1:
                (segment,) = one.segments
                if segment.recording is None:
                    raise StateError(segment.failure or "torch's collector was stopped by somebody else.")
                return segment.recording
            return DevicePart(self, one, end_ns)

    def toggle(self, one: Subscriber, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Switch a session's collection off or on; the collector itself only if no other session needs it."""
        with self.lock:
            names = [activity.name for activity in activities]
            if not one.pauses.toggle(enable, names, time.time_ns()) or self._segment is None:
                return
            if self._segment.sessions == 1:
                self._segment.engine.toggle(enable, activities)
                self._segment.is_off = one.is_off
            else:
                self._apply_pauses()

    def finish(self, segments: Sequence[Segment]) -> None:
        """See to it that segments have ended; sessions that go on do so in another one."""
        with self.lock:
            if self._segment is not None and self._segment in segments:
                self._restart()

    def reset_in_child(self) -> None:
        """In the child of a fork: the collection is the parent's."""
        self.__init__(self.make_engine)  # type: ignore[misc]

    def _begin_segment(self, prepared: Engine | None) -> None:
        """Start the collector for all subscribers."""
        request = self._subscribers[0].request
        wanted = frozenset(activity for one in self._subscribers for activity in one.request.activities)
        changed = [one.request.options for one in self._subscribers if _settings(one.request)]
        request = dataclasses.replace(
            request, activities=wanted, options=changed[0] if changed else request.options
        )
        engine = prepared
        if engine is None:
            engine = self.make_engine()
            engine.prepare(request)
        segment = self._segment = Segment(engine, request, time.time_ns())
        try:
            engine.start()
        except BaseException:
            self._segment = None
            raise
        segment.begin_ns = time.time_ns()
        for one in self._subscribers:
            self._join(one, segment)

    def _join(self, one: Subscriber, segment: Segment) -> None:
        """Let a session's part be in a segment, too."""
        one.segments.append(segment)
        segment.sessions += 1

    def _end_segment(self) -> None:
        """Stop the collector."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.stop()

    def _restart(self) -> None:
        """Stop the collector, and start it again for the sessions that go on."""
        self._end_segment()
        if not self._subscribers:
            return
        try:
            self._begin_segment(None)
        except (KinetoscopeError, RuntimeError) as error:
            # Not the fault of the session that made this necessary: those that go on say it in their traces.
            for one in self._subscribers:
                now_ns = time.time_ns()
                one.segments.append(
                    Segment(self.make_engine(), one.request, now_ns, end_ns=now_ns, failure=str(error))
                )
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        """Switch the collector off while all sessions have it off."""
        segment = self._segment
        if segment is None or not self._subscribers:
            return
        off = all(one.is_off for one in self._subscribers)
        if off != segment.is_off:
            segment.engine.toggle(not off, segment.request.activities)
            segment.is_off = off


def _settings(request: RecordingRequest) -> dict[str, Any]:
    """The settings of torch's collector that are not its defaults, and which kinds of activities are chosen."""
    chosen = {f"kinds of {activity.name}": kinds for activity, kinds in request.activity_filters.items()}
    return {**changed_settings(request.options.experimental_config), **chosen}


def _covers(running: RecordingRequest, wanted: RecordingRequest) -> bool:
    """Whether what is collected for one request is what another one needs."""
    same = _settings(running) == _settings(wanted) or not changed_settings(wanted.options.experimental_config)
    return wanted.activities <= running.activities and same


def _check_settings(running: RecordingRequest, wanted: RecordingRequest) -> None:
    """Refuse settings that torch's collector cannot have at the same time."""
    one, other = _settings(running), _settings(wanted)
    if one and other and one != other:
        raise StateError(
            f"torch's collector already records devices with other settings for another session ({sorted(one)} instead of "
            f"{sorted(other)}): stop that one first, or use the same settings."
        )


class DevicePart:
    """A session's part of what was collected for several."""

    engine = "kineto"

    def __init__(self, collection: DeviceCollection, one: Subscriber, end_ns: int) -> None:
        """Keep the segments; nothing is read yet."""
        self._collection = collection
        self._one = one
        self._end_ns = end_ns
        self._lock = threading.Lock()
        self._trace: Trace | None = None

    def trace(self) -> Trace:
        """The part as a trace, cut out by the first call.

        Raises:
            StateError: It was discarded, or nothing was collected.
        """
        with self._lock:
            if self._trace is None:
                self._trace = self._cut()
            return self._trace

    def discard(self) -> None:
        """Forget it; what others need of the segments stays."""
        self._one.segments.clear()

    def _cut(self) -> Trace:
        from kinetoscope.combine.concatenate import concatenate
        from kinetoscope.combine.cut import Part, cut
        from kinetoscope.combine.extend import extend
        from kinetoscope.model.losses import paused_losses

        segments = self._one.segments
        self._collection.finish(segments)
        found = [segment.recording.trace() for segment in segments if segment.recording is not None]
        if not found:
            reasons = [segment.failure for segment in segments if segment.failure]
            raise StateError(
                reasons[0] if reasons else "this recording was discarded: there is no trace of it."
            )
        whole = concatenate(found)
        zero_ns = whole.run_info.start_realtime_ns or 0
        windows = [
            (begin_ns - zero_ns, end_ns - zero_ns)
            for begin_ns, end_ns in self._windows_ns()
            if end_ns > begin_ns
        ] or [(0, 0)]
        starts, ends = (np.array(times, np.int64) for times in zip(*windows, strict=True))
        part = cut(whole, Part(0, starts, ends, by_launch=True))
        # All of it is one cycle of the session, whatever the segments were.
        spans = {name: part.column("spans", name) for name in part.columns("spans").given if name != "cycle"}
        losses = [*self._interruptions(), *paused_losses(self._one.pauses.as_list())]
        return extend(
            part,
            losses=losses,
            without_losses=["collection_paused"],
            tables={"spans": spans, "cycles": {}},
            info={"pauses": self._one.pauses.as_list(), "cycles": None, "selections": None},
        )

    def _windows_ns(self) -> list[tuple[int, int]]:
        """When something was collected for the session, in order."""
        windows = [(self._one.begin_ns, self._end_ns)]
        names = [activity.name for activity in self._one.request.activities]
        off = [window for name in names[:1] for window in self._one.pauses.windows_ns(name)]
        for begin_ns, end_ns in sorted(off):
            first_ns, last_ns = windows.pop()
            windows.append((first_ns, min(begin_ns, last_ns)))
            windows.append((int(min(end_ns, last_ns)), last_ns))
        return windows

    def _interruptions(self) -> list[Loss]:
        """What is missing since the collector was not on all the time."""
        from kinetoscope.model.losses import Loss

        losses: list[Loss] = []
        segments = self._one.segments
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


DEVICES = DeviceCollection()
os.register_at_fork(after_in_child=DEVICES.reset_in_child)


class SharedDevices:
    """An engine that records devices together with those of other sessions."""

    name = "kineto"

    def __init__(self, collection: DeviceCollection = DEVICES) -> None:
        """Record nothing yet."""
        self._collection = collection
        self._prepared: Engine | None = None
        self._request: RecordingRequest | None = None
        self._subscriber: Subscriber | None = None

    def prepare(self, request: RecordingRequest) -> None:
        """Let torch warm up its collector, unless it is running.

        Raises:
            StateError: torch's collector is in use, but not by us.
        """
        self._request, self._prepared = request, None
        with self._collection.lock:
            if not self._collection.is_running:
                self._prepared = self._collection.make_engine()
                self._prepared.prepare(request)

    def start(self) -> None:
        """Begin.

        Raises:
            StateError: Nothing was prepared, or torch's collector is in use in another way.
        """
        if self._request is None:
            raise StateError("the devices' engine was started without being prepared: call prepare() first.")
        self._subscriber = Subscriber(self._request)
        prepared, self._prepared = self._prepared, None
        self._collection.start(self._subscriber, prepared)

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Switch the collection off or on."""
        if self._subscriber is not None:
            self._collection.toggle(self._subscriber, enable, activities)

    def stop(self) -> Recording:
        """End.

        Raises:
            StateError: Nothing is being recorded.
        """
        one, self._subscriber = self._subscriber, None
        if one is None:
            raise StateError("the devices are not being recorded: call start() first.")
        return self._collection.stop(one)
