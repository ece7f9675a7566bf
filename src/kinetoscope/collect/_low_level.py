"""The low-level session: prepare, start and stop one recording after the other, and read what they left."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from kinetoscope._errors import KinetoscopeError, StateError
from kinetoscope.collect import _metadata
from kinetoscope.collect._activities import ProfilerActivity, asked_activities, recordable
from kinetoscope.collect._arguments import checked_engine, checked_ring_bytes, refuse_later_ones
from kinetoscope.collect._choose import EngineName, choose_engine
from kinetoscope.collect._cycle import Cycle
from kinetoscope.collect._engine import Engine, RecordingRequest, StillRecordingError
from kinetoscope.collect._reading import ReadsLastCycle
from kinetoscope.collect._seat import SEAT
from kinetoscope.collect._warn import warn_user


class _KinetoProfile(ReadsLastCycle):
    """A session without a schedule: `prepare_trace`, `start_trace` and `stop_trace` are called by hand.

    Args:
        activities: What to record, any iterable of torch's `ProfilerActivity`; default: all that this machine has.
        record_shapes: Keep shapes, types and scalars of each operator's inputs.
        profile_memory: Keep every allocation and free, with sizes in bytes.
        with_stack: Keep the Python stack of each operator.
        with_flops: Not there yet.
        with_modules: Keep the path of the `nn.Module` each operator ran in.
        experimental_config: Not there yet.
        execution_trace_observer: Not there yet.
        acc_events: Not there yet.
        custom_trace_id_callback: Not there yet.
        post_processing_timeout_s: Not there yet.
        engine: `"native"`, `"kineto"` (torch's own collector), `"auto"`: native where it can serve; or an engine object.
        path: Where the live recording file is kept (cycles after the first get a number before the suffix); default
            a private temporary place that is removed when its trace is gone.
        ring_bytes: Upper limit of the recording in bytes; the oldest records are overwritten. None means no limit.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it and the valid ones.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: None = None,
        execution_trace_observer: None = None,
        acc_events: bool = False,
        custom_trace_id_callback: None = None,
        post_processing_timeout_s: None = None,
        engine: EngineName | Engine = "auto",
        path: str | os.PathLike[str] | None = None,
        ring_bytes: int | None = None,
    ) -> None:
        refuse_later_ones(
            with_flops=with_flops,
            experimental_config=experimental_config,
            execution_trace_observer=execution_trace_observer,
            acc_events=acc_events,
            custom_trace_id_callback=custom_trace_id_callback,
            post_processing_timeout_s=post_processing_timeout_s,
        )
        self.activities = asked_activities(activities)
        self._recordable = recordable(self.activities)
        self._asked_engine = checked_engine(engine)
        self.record_shapes = bool(record_shapes)
        self.profile_memory = bool(profile_memory)
        self.with_stack = bool(with_stack)
        self.with_modules = bool(with_modules)
        self._path = None if path is None else Path(path)
        self._ring_bytes = checked_ring_bytes(ring_bytes)
        self._metadata = _metadata.Metadata()
        # Guards the fields below. Never held while a user's code runs.
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._state = "idle"
        self._cycles_begun = 0
        self._cycle: Cycle | None = None
        self._owner_process = os.getpid()
        self._warned_in_child = False
        self._warned_of_loss = False

    # ------------------------------------------------------------------------------------------------- recording

    def start(self) -> None:
        """Prepare and start a recording.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
            RecorderError: The engine that was asked for cannot record here.
        """
        if self._in_child("start"):
            return
        self.prepare_trace()
        self.start_trace()

    def stop(self) -> None:
        """Stop the recording; its trace is built when it is first asked for. A second call does nothing.

        Raises:
            StateError: `start` was never called.
        """
        self.stop_trace()

    def prepare_trace(self) -> None:
        """Make ready whatever `start_trace` would otherwise have to wait for.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
            RecorderError: The engine that was asked for cannot record here.
        """
        if self._in_child("prepare_trace"):
            return
        with self._lock:
            if self._engine is None:
                self._engine = choose_engine(self._asked_engine, self._recordable)
            if self._state == "recording":
                raise already_recording()
            try:
                if self._state != "prepared":
                    SEAT.take(self, self._engine)
                self._engine.prepare(self._request())
                self._state = "prepared"
            except BaseException:
                self._abandon()
                raise

    def start_trace(self) -> None:
        """Begin to record; prepares first where `prepare_trace` was not called.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
        """
        if self._in_child("start_trace"):
            return
        with self._lock:
            if self._state != "prepared":
                self.prepare_trace()
            try:
                # Before the engine's own start: an interrupt in the middle of that must find out that it may be on.
                self._state = "recording"
                self._chosen().start()
                self._cycles_begun += 1
            except BaseException:
                self._abandon()
                raise

    def stop_trace(self) -> None:
        """Close the recording. Nothing is computed here, so the cost does not depend on what was recorded.

        Raises:
            StateError: Nothing was ever started.
        """
        self._finish(keep=True)

    def _finish(self, *, keep: bool) -> bool:
        """Close the recording and say whether one was running; `keep=False` is for a warm-up that led to nothing."""
        if self._in_child("stop"):
            return False
        with self._lock:
            if self._state == "idle":
                SEAT.leave(self)
                if self._cycles_begun == 0 and keep:
                    raise StateError(
                        "there is nothing to stop: call start() first, or use the session in a `with` block."
                    )
                return False
            if self._state == "prepared":
                self._abandon()
                return False
            try:
                recording = self._chosen().stop()
                self._stand_up()
            except StillRecordingError:
                raise
            except BaseException:
                self._abandon()
                raise
            earlier = self._cycle
            if not keep and earlier is not None:
                recording.discard()
                return True
            info = self._metadata.gathered()
            self._metadata.end_cycle()
            self._cycle = Cycle(recording, info, worth_reading=keep)
            if earlier is not None:
                self._drop(earlier)
            return True

    def _stand_up(self) -> None:
        """Let the next session record."""
        self._state = "idle"
        SEAT.leave(self)

    def _request(self) -> RecordingRequest:
        """What the engine is asked for in this cycle."""
        switches = {
            "record_shapes": self.record_shapes,
            "profile_memory": self.profile_memory,
            "with_stack": self.with_stack,
            "with_modules": self.with_modules,
        }
        path = self._path
        if path is not None and self._cycles_begun:
            path = path.with_name(f"{path.stem}.{self._cycles_begun}{path.suffix}")
        info = _metadata.flags(switches) | _metadata.process_group() | self._metadata.gathered()
        return RecordingRequest(
            activities=self._recordable, path=path, ring_bytes=self._ring_bytes, info=info, **switches
        )

    def _chosen(self) -> Engine:
        """The engine, once there is one."""
        if self._engine is None:
            raise StateError("no engine is chosen yet: call start() first.")
        return self._engine

    def _abandon(self) -> None:
        """Leave an engine that was prepared, or that failed half way, in a state from which it can start again."""
        was_recording = self._state == "recording"
        self._stand_up()
        if was_recording:
            # The failure that led here is already on its way to the user; a second one would only hide it.
            with contextlib.suppress(KinetoscopeError):
                self._chosen().stop().discard()

    def _drop(self, earlier: Cycle) -> None:
        """Let go of the cycle before; say so once if nobody has looked at it."""
        if not earlier.worth_reading:
            return
        earlier.discard()
        if not self._warned_of_loss:
            self._warned_of_loss = True
            warn_user(
                "a finished recording was dropped because the next one ended before anybody read it: export it, or "
                "take `prof.trace`, in on_trace_ready."
            )

    def _in_child(self, call: str) -> bool:
        """Whether this is a fork of the process that records here; warns the first time."""
        if self._owner_process == os.getpid():
            return False
        if not self._is_under_way():
            # Nothing of the parent's is open: the child may use the session as its own, with nothing inherited.
            self._owner_process, self._engine, self._lock = os.getpid(), None, threading.RLock()
            return False
        if not self._warned_in_child:
            self._warned_in_child = True
            warn_user(
                f"{call}() was called in process {os.getpid()}, a fork of process {self._owner_process}, which owns "
                "this session: nothing is done here. Make a session in the child to record the child."
            )
        return True

    def _is_under_way(self) -> bool:
        """Whether something was begun that has not ended."""
        return self._state != "idle"

    # -------------------------------------------------------------------------------------------------- metadata

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text to the trace: the one that records now or next or, after stop, the finished one.

        Args:
            key: Top-level key of the exported trace.
            value: Any string.

        Raises:
            ArgumentError: The key belongs to the trace format, or the value is no string.
        """
        self.add_metadata_json(key, _metadata.quoted(key, value))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace: the one that records now or next or, after stop, the finished one.

        Args:
            key: Top-level key of the exported trace.
            value: Strict JSON.

        Raises:
            ArgumentError: The value is not valid JSON, or the key belongs to the trace format; nothing is changed.
        """
        with self._lock:
            if self._state == "idle" and self._cycle is not None:
                checked = _metadata.Metadata()
                checked.add(key, value)
                self._cycle.add_info(checked.gathered())
            else:
                self._metadata.add(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace of every cycle that begins from now on.

        Args:
            key: Top-level key of the exported trace.
            value: Strict JSON.

        Raises:
            ArgumentError: The value is not valid JSON, or the key belongs to the trace format; nothing is changed.
        """
        self._metadata.preset(key, value)

    def _why_no_trace(self) -> str:
        """Which call is missing before there is something to read."""
        if self._state == "recording":
            return "the recording is still running; call stop() first."
        if self._state == "prepared":
            return "the session is prepared but records nothing; call start_trace(), then stop_trace()."
        return "call start() and stop() first, or leave the `with` block."


def already_recording() -> StateError:
    """What a session answers to a second start."""
    return StateError("this session is already recording: call stop() before starting it again.")
