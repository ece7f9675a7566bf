"""The hybrid engine: our recorder records the host, torch's collector the devices; the trace is merged from both.

Stacks, modules and shapes have the low overhead of the native engine, and torch's collector has less to do because it does not
record operators. The two are merged by time: calls of the device runtime are nested in the operators that made them. This is also
how the clocks of the two are checked; see `kinetoscope.combine.device`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import KinetoscopeError, StateError
from kinetoscope.collect.engines.device_collection import SharedDevices
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
from kinetoscope.collect.request.torch_settings import for_torchs_collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetoscope.storage.appended_rows import AppendedRows
    from kinetoscope.trace import Trace


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
        try:
            host = self._host.stop()
        finally:
            # Even if the host's engine fails, torch's collector must not be left running.
            devices, failure = self._stop_devices()
            self._running = False
        return HybridRecording(host, devices, threads, failure)

    def _stop_devices(self) -> tuple[Recording | None, str]:
        """Return the devices' recording, or the reason why there is none."""
        if self._without_devices:
            return None, self._without_devices
        try:
            return self._devices.stop(), ""
        except (KinetoscopeError, RuntimeError) as error:
            return None, str(error)


@dataclass(eq=False)
class HybridRecording:
    """The recordings of the host and of the devices, which become one trace.

    Attributes:
        host: That of the host.
        devices: That of the devices; None if there is none.
        threads: The native thread ids by the thread ids of the device runtime.
        failure: Why the devices' recording is missing or cannot be read.
    """

    host: Recording
    devices: Recording | None
    threads: dict[int, int]
    failure: str
    _trace: Trace | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def trace(self) -> Trace:
        """Return the merged trace; the first call reads both recordings and merges them.

        Raises:
            StateError: The recording was discarded before it was read.
        """
        from kinetoscope.combine.device import join_device

        with self._lock:
            if self._trace is None:
                host = self.host.trace()
                device = self._device_trace()
                self._trace = (
                    _without_devices(host, self.failure)
                    if device is None
                    else join_device(host, device, self.threads)
                )
            return self._trace

    def _device_trace(self) -> Trace | None:
        """The devices' trace; None, with the reason in `_failure`, if there is none."""
        if self.devices is None:
            return None
        try:
            return self.devices.trace()
        except KinetoscopeError as error:
            self.failure = str(error)
            return None

    @property
    def rows(self) -> AppendedRows | None:
        """Rows that sources appended to the host's recording and `trace()` does not contain; valid after `trace()`."""
        return getattr(self.host, "rows", None)

    def discard(self) -> None:
        """Delete the recordings of the host and of the devices."""
        self.host.discard()
        if self.devices is not None:
            self.devices.discard()


def _without_devices(host: Trace, why: str) -> Trace:
    from kinetoscope.combine.extend import extend
    from kinetoscope.model.losses import Loss

    return extend(host, losses=[Loss.of("devices_not_recorded", why=why)])
