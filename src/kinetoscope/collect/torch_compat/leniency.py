"""Base classes for the replacements of `install`, which turn exceptions into warnings for mistakes that torch tolerates.

A program that was written for torch.profiler must not fail because its profiler was replaced. These classes come first among the
bases, before ours. Mistakes for which torch raises an exception raise one here, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.profiler

from kinetoscope._errors import ArgumentError, ArgumentTypeError, RecorderError, StateError
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import ProfilerAction
from kinetoscope.collect.request.options import SWITCHES
from kinetoscope.collect.session.state import SessionState
from kinetoscope.tables.memory.timeline import DeviceWithoutMemoryError

_memory_profile_of_torch: Callable[[Any], Any] = torch.profiler.profiler._KinetoProfile._memory_profile
_timeline_of_torch = torch.profiler.profiler._KinetoProfile.export_memory_timeline


class SessionAsTorch:
    """Behaves like torch's session on mistakes of the program."""

    state: SessionState
    _refused = False

    def __init__(self, **options: Any) -> None:
        """As in torch, accept any integer for a switch, and record Python calls if `with_stack` is on."""
        for name in SWITCHES:
            if isinstance(options.get(name), int):
                options[name] = bool(options[name])
        if options.get("with_stack") is True:
            options.setdefault("python_calls", True)
        super().__init__(**options)

    def start(self) -> None:
        """Start the session; a failure is a warning, and nothing is recorded."""
        try:
            super().start()  # type: ignore[misc]
        except (StateError, RecorderError) as error:
            self._refused = True
            warn_user(f"start() has no effect: {error}")
        else:
            self._refused = False

    def stop(self) -> None:
        """Stop the session; does nothing if `start` had failed."""
        try:
            super().stop()  # type: ignore[misc]
        except StateError:
            if not self._refused:
                raise

    def export_chrome_trace(self, path: Any, *more: Any, **options: Any) -> None:
        """Write a trace; as in torch, if an uncompressed file cannot be written, that is a warning."""
        try:
            super().export_chrome_trace(path, *more, **options)  # type: ignore[misc]
        except OSError as error:
            if os.fspath(path).endswith(".gz"):
                raise
            warn_user(f"export_chrome_trace() wrote nothing: {error}")

    def export_memory_timeline(self, path: Any, device: str | None = None) -> None:
        """Write the memory timeline: an empty one for a device without allocations, and none if the suffix is unknown."""
        import_aside()
        if deprecated := getattr(_timeline_of_torch, "__deprecated__", None):
            warn_user(deprecated, FutureWarning)
        suffix = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        try:
            super().export_memory_timeline(path, device)  # type: ignore[misc]
        except DeviceWithoutMemoryError as error:
            if suffix.endswith(".html"):
                raise
            # Raises torch's exception if this is not the name of a device.
            torch.device(str(device))
            from kinetoscope.formats.memory_timeline import write_empty_timeline

            write_empty_timeline(suffix)
            warn_user(f"export_memory_timeline() wrote an empty timeline: {error}")
        except ArgumentError as error:
            if not suffix or suffix.endswith((".html", ".json", ".gz")):
                raise
            warn_user(f"export_memory_timeline() wrote nothing: {error}")

    def _memory_profile(self) -> Any:
        """Return memory over time; without recorded memory, raise torch's exception, whose message programs may check."""
        try:
            return super()._memory_profile()  # type: ignore[misc]
        except ArgumentError:
            # torch's own method raises its exception, since it also requires recorded memory.
            _memory_profile_of_torch(self)
            raise

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text to the metadata; an invalid one is skipped with a warning."""
        self._add_or_warn(super().add_metadata, key, value)  # type: ignore[misc]

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the metadata; an invalid one is skipped with a warning."""
        self._add_or_warn(super().add_metadata_json, key, value)  # type: ignore[misc]

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the metadata of every cycle; an invalid one is skipped with a warning."""
        self._add_or_warn(super().preset_metadata_json, key, value)  # type: ignore[misc]

    def events(self, *more: Any, **options: Any) -> Any:
        """List the events; an empty list, with a warning, while recording."""
        return self._empty_while_recording("events", super().events, more, options)  # type: ignore[misc]

    def key_averages(self, *more: Any, **options: Any) -> Any:
        """Aggregate the events; an empty list, with a warning, while recording."""
        return self._empty_while_recording("key_averages", super().key_averages, more, options)  # type: ignore[misc]

    def _action(self, step: int) -> ProfilerAction:
        """Return the action of a step; NONE, with a warning, if the schedule returns something that is not an action."""
        try:
            action: ProfilerAction = super()._action(step)  # type: ignore[misc]
        except ArgumentTypeError as error:
            warn_user(f"step {step} is not recorded: {error}")
            return ProfilerAction.NONE
        return action

    @staticmethod
    def _add_or_warn(add: Callable[[str, str], None], key: str, value: str) -> None:
        try:
            add(key, value)
        except ArgumentTypeError:
            raise
        except ArgumentError as error:
            warn_user(f"left out of the trace: {error}")

    def _empty_while_recording(
        self, name: str, read: Callable[..., Any], more: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        import_aside()
        try:
            return read(*more, **options)
        except StateError as error:
            if self.state not in (SessionState.PREPARED, SessionState.RECORDING):
                raise
            from kinetoscope.trace import Trace

            if self.state is SessionState.RECORDING:
                warn_user(f"{name}() has nothing to show: {error}")
            nothing = Trace.from_columns({}, strings=[""], info={})
            return getattr(nothing, name)()


class ObserverAsTorch:
    """Behaves like torch's execution trace observer on mistakes of the program."""

    def register_callback(self, output_file_path: Any) -> Any:
        """Set the output file; if it cannot be created, nothing is recorded, with a warning."""
        try:
            return super().register_callback(output_file_path)  # type: ignore[misc]
        except ArgumentTypeError:
            raise
        except ArgumentError as error:
            warn_user(f"no execution trace is recorded: {error}")
            return self

    def get_output_file_path(self) -> str | None:
        """Return the path of the execution trace; None if no output file is set."""
        try:
            path: str = super().get_output_file_path()  # type: ignore[misc]
        except StateError:
            return None
        return path
