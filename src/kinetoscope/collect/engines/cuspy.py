"""Cuspy, a second collector for CUDA that torch has from 2.15 on: it records devices while Kineto records the host."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity

from kinetoscope._errors import ArgumentError, RecorderError
from kinetoscope.collect.request.activities import torchs_configs
from kinetoscope.collect.request.options import RecordingOptions
from kinetoscope.collect.request.torch_settings import TORCHS_SESSION, changed_settings
from kinetoscope.model.losses import Loss


class Cuspy:
    """A session of torch's own that runs Cuspy, of which another session controls the collector for the host."""

    def __init__(self, session: Any) -> None:
        """Take a session that is not prepared."""
        self._session = session
        self._observer: Any = None

    @classmethod
    def requested(
        cls, options: RecordingOptions, activities: frozenset[ProfilerActivity], **settings: Any
    ) -> Cuspy | None:
        """Return None unless a program requests Cuspy, by `CuspyConfig` or `custom_profiler_config`, and torch has it.

        Raises:
            ArgumentError: Cuspy cannot record these activities.
        """
        names = [type(config).__name__ for config in options.extension_configs]
        names.append(str(changed_settings(options.experimental_config).get("custom_profiler_config", "")))
        if "cuspy" not in "".join(names).lower() or not hasattr(TORCHS_SESSION, "take_pending_cuspy_export"):
            return None
        configs = torchs_configs(options.activity_choices)
        chosen = [
            {activity: configs[activity]} if activity in configs else activity for activity in activities
        ]
        settings = {"experimental_config": options.experimental_config, **settings}
        try:
            session = TORCHS_SESSION(activities=chosen, **settings)
        except ValueError as error:
            raise ArgumentError(f"activities: {error}.") from error
        return cls(session) if session._use_cuspy else None  # noqa: SLF001  (torch's own)

    def prepare(self) -> Any:
        """Register with CUPTI, and return torch's collector for the host, prepared.

        Raises:
            ArgumentError: A package that Cuspy needs is missing.
        """
        try:
            self._session.prepare_trace()
        except ImportError as error:
            raise ArgumentError(f"activities: Cuspy cannot be used here: {error}") from error
        self._observer = self._session._cuspy_profiler_observer  # noqa: SLF001  (torch's own)
        host, self._session.profiler = self._session.profiler, contextlib.nullcontext()
        return host

    def start(self) -> None:
        """Record from now on; the collector for the host has started."""
        self._observer.open_window()

    def stop(self) -> list[Loss]:
        """Stop recording, let CUPTI deliver what it has, and return what was not recorded."""
        self._session.stop_trace()
        if not self._observer.available:
            return [Loss.of("devices_not_recorded", why="Cuspy cannot be used with this driver.")]
        self._observer.join()
        return []

    def joined_with(self, host: Path) -> Path:
        """Add the devices to torch's text of the host, and return where both are; torch deletes the given file.

        Raises:
            RecorderError: torch could not add them.
        """
        window = self._session._cuspy_window_id  # noqa: SLF001  (torch's own)
        if window is None:
            return host
        joined = host.with_name("joined.json.gz")
        try:
            self._observer.set_export(window, host, joined)
        # Whatever fails in there is a loss of the trace, not an error of the program.
        except Exception as error:
            raise RecorderError(f"torch's Cuspy could not write what it recorded ({error!r}).") from error
        return joined
