"""The hybrid engine: our recorder records the host, torch's collector the devices, and one trace has both.

Stacks, modules and shapes cost what they cost in the native engine, and torch's collector, which does not record
operators, has less to write. Calls of a device's runtime lie inside the operators that made them: this is how
the two are merged, and how their clocks are checked; see `kinetoscope.combine.device`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING

from kinetoscope._errors import KinetoscopeError, StateError
from kinetoscope.collect.engines.device_collection import SharedDevices
from kinetoscope.collect.engines.native import NativeEngine
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import ProfilerActivity
from kinetoscope.collect.request.options import Engine, Recording, RecordingOptions, RecordingRequest
from kinetoscope.collect.request.torch_settings import for_torchs_collector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetoscope.collect.request.options import AppendRows
    from kinetoscope.storage.appended_rows import AppendedRows
    from kinetoscope.trace import Trace


_HOST = frozenset({ProfilerActivity.CPU})
_LOW_BITS = (1 << 32) - 1


class HybridEngine:
    """Records the host with the native recorder and devices with torch's collector."""

    name = "native"
    # Any number of sessions record at once.
    joins_others = True
    # Settings of torch's collector have an effect.
    has_torchs_collector = True

    def __init__(
        self, host: Engine | None = None, devices: Engine | None = None, *, needs_devices: bool = True
    ) -> None:
        """Nothing is loaded before `prepare`.

        Args:
            host: What records the host; None for the native engine.
            devices: What records the devices; None for torch's collector, shared with other sessions.
            needs_devices: Whether it fails where torch's collector is in use by somebody else; else it records the host alone,
                with a warning and a loss.
        """
        self._host: Engine = NativeEngine() if host is None else host
        self._devices: Engine = SharedDevices() if devices is None else devices
        self._needs_devices = needs_devices
        # Why the devices are not recorded.
        self._without_devices = ""
        self._running = False

    def prepare(self, request: RecordingRequest) -> None:
        """Prepare both.

        Raises:
            RecorderError: The native recorder is not available, or cannot record what was requested.
            StateError: torch's collector is already in use.
        """
        options = request.options
        self._host.prepare(dataclasses.replace(request, activities=request.activities & _HOST))
        # The device side records nothing that belongs to operators, and has no file of its own.
        for_devices = RecordingOptions(
            activities=options.activities,
            # Its event objects would cover the devices only, and are never shown.
            experimental_config=for_torchs_collector(options.experimental_config, trace_only=True),
            post_processing_timeout_s=options.post_processing_timeout_s,
        )
        self._without_devices = ""
        try:
            self._devices.prepare(
                dataclasses.replace(
                    request,
                    activities=request.activities - _HOST,
                    options=for_devices,
                    path=None,
                    info={},
                    record_function_ids=False,
                )
            )
        except StateError as error:
            self._leave_out_devices(error)

    def _leave_out_devices(self, error: StateError) -> None:
        """Record the host alone, if that is better than nothing."""
        if self._needs_devices:
            raise error
        self._without_devices = str(error)
        warn_user(f"devices are not recorded: {error}")

    def start(self) -> None:
        """Start both, or none: the devices first, so that the kernels of every recorded operator are recorded.

        Raises:
            StateError: Nothing was prepared, or one of the recorders is in use.
            RecorderError: The recording's file cannot be created.
        """
        # Before both: an interrupt in the middle of it must find something that can be stopped.
        self._running = True
        try:
            self._start_devices()
            self._host.start()
        except BaseException:
            self._running = False
            with contextlib.suppress(KinetoscopeError):
                self._devices.stop().discard()
            raise

    def _start_devices(self) -> None:
        """Start the collector, if there is one."""
        if self._without_devices:
            return
        try:
            self._devices.start()
        except StateError as error:
            self._leave_out_devices(error)

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Switch activities off or on, each in the engine that records it."""
        if activities & _HOST:
            self._host.toggle(enable, activities & _HOST)
        if activities - _HOST and not self._without_devices:
            self._devices.toggle(enable, activities - _HOST)

    def add_info(self, info: Mapping[str, str]) -> None:
        """Write metadata into the host's recording, as JSON texts by key, if its engine can."""
        if isinstance(self._host, NativeEngine):
            self._host.add_info(info)

    @property
    def append_rows(self) -> AppendRows | None:
        """What writes rows into the host's recording; None if its engine cannot."""
        return getattr(self._host, "append_rows", None)

    def own_steps(self, owns: bool) -> None:
        """Whether marks of steps that this thread begins from now on are this session's."""
        if isinstance(self._host, NativeEngine):
            self._host.own_steps(owns)

    def stop(self) -> HybridRecording:
        """Stop the host's recording, then that of the devices.

        Raises:
            StateError: Nothing is being recorded.
        """
        if not self._running:
            raise StateError("nothing is being recorded: call start() first.")
        # The runtime of a device identifies a thread by the low 32 bits of its pthread id.
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
        """The devices' recording, or why there is none; the host's is kept either way."""
        if self._without_devices:
            return None, self._without_devices
        try:
            return self._devices.stop(), ""
        except (KinetoscopeError, RuntimeError) as error:
            return None, str(error)


class HybridRecording:
    """The recordings of host and devices over the same time."""

    def __init__(
        self, host: Recording, devices: Recording | None, threads: dict[int, int], failure: str
    ) -> None:
        """Store both; `threads` maps thread ids of the device's runtime to those of the system."""
        self._host = host
        self._devices = devices
        self._threads = threads
        self._failure = failure
        self._trace: Trace | None = None
        self._lock = threading.Lock()

    def trace(self) -> Trace:
        """Both as one trace, merged by the first call.

        Raises:
            StateError: The recording was discarded before it was read.
        """
        from kinetoscope.combine.device import join_device

        with self._lock:
            if self._trace is None:
                host = self._host.trace()
                device = self._device_trace()
                self._trace = (
                    _without_devices(host, self._failure)
                    if device is None
                    else join_device(host, device, self._threads)
                )
            return self._trace

    def _device_trace(self) -> Trace | None:
        """What was recorded of the devices; None with the reason stored if there is nothing."""
        if self._devices is None:
            return None
        try:
            return self._devices.trace()
        except KinetoscopeError as error:
            self._failure = str(error)
            return None

    @property
    def rows(self) -> AppendedRows | None:
        """What sources appended to the host's recording that is not in `trace()`, which reads it."""
        return getattr(self._host, "rows", None)

    def discard(self) -> None:
        """Forget both."""
        self._host.discard()
        if self._devices is not None:
            self._devices.discard()


def _without_devices(host: Trace, why: str) -> Trace:
    """The host's trace alone, with a loss for the devices."""
    from kinetoscope.combine.extend import extend
    from kinetoscope.model.losses import Loss

    return extend(host, losses=[Loss.of("devices_not_recorded", why=why)])
