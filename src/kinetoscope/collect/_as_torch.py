"""What the stand-ins of `install` do where torch lets a mistake pass: warn, and let the program go on.

A program that was written for torch.profiler must not end because of a profiler that it knows nothing of. These classes
come first among the bases of a stand-in, before ours. A mistake that torch raises an exception for is one here too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kinetoscope._errors import ArgumentError, ArgumentTypeError, RecorderError, StateError
from kinetoscope.collect._activities import ProfilerAction
from kinetoscope.collect._warn import warn_user
from kinetoscope.trace import catalog

_SWITCHES = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules", "acc_events")


class SessionAsTorch:
    """For sessions."""

    _state: str
    _refused = False

    def __init__(self, **options: Any) -> None:
        """Take any whole number for a switch."""
        for name in _SWITCHES:
            if isinstance(options.get(name), int):
                options[name] = bool(options[name])
        super().__init__(**options)

    def start(self) -> None:
        """Begin; where that cannot be, nothing is recorded."""
        try:
            super().start()  # type: ignore[misc]
        except (StateError, RecorderError) as error:
            self._refused = True
            warn_user(f"start() has no effect: {error}")
        else:
            self._refused = False

    def stop(self) -> None:
        """End; there is nothing to end where `start` had no effect."""
        try:
            super().stop()  # type: ignore[misc]
        except StateError:
            if not self._refused:
                raise

    def export_chrome_trace(self, path: Any, *more: Any, **options: Any) -> None:
        """Write a trace; torch, too, only says so when an uncompressed file cannot be written."""
        try:
            super().export_chrome_trace(path, *more, **options)  # type: ignore[misc]
        except OSError as error:
            if os.fspath(path).endswith(".gz"):
                raise
            warn_user(f"export_chrome_trace() wrote nothing: {error}")

    def export_memory_timeline(self, path: Any, device: str | None = None) -> None:
        """Write how memory was used; under a name that says no format nothing is written."""
        suffix = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        try:
            super().export_memory_timeline(path, device)  # type: ignore[misc]
        except ArgumentError as error:
            if not suffix or suffix.endswith((".html", ".json", ".gz")):
                raise
            warn_user(f"export_memory_timeline() wrote nothing: {error}")

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text; what cannot be written is left out."""
        self._left_out(super().add_metadata, key, value)  # type: ignore[misc]

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value; what is none is left out."""
        self._left_out(super().add_metadata_json, key, value)  # type: ignore[misc]

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to every cycle; what is none is left out."""
        self._left_out(super().preset_metadata_json, key, value)  # type: ignore[misc]

    def events(self, *more: Any, **options: Any) -> Any:
        """The events; none while the recording has not ended."""
        return self._so_far("events", super().events, more, options)  # type: ignore[misc]

    def key_averages(self, *more: Any, **options: Any) -> Any:
        """The sums; none while the recording has not ended."""
        return self._so_far("key_averages", super().key_averages, more, options)  # type: ignore[misc]

    def _action(self, step: int) -> ProfilerAction:
        """The action for a step; what is none records nothing."""
        try:
            action: ProfilerAction = super()._action(step)  # type: ignore[misc]
        except ArgumentTypeError as error:
            warn_user(f"step {step} is not recorded: {error}")
            return ProfilerAction.NONE
        return action

    @staticmethod
    def _left_out(add: Callable[[str, str], None], key: str, value: str) -> None:
        try:
            add(key, value)
        except ArgumentTypeError:
            raise
        except ArgumentError as error:
            warn_user(f"left out of the trace: {error}")

    def _so_far(
        self, name: str, read: Callable[..., Any], more: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        try:
            return read(*more, **options)
        except StateError as error:
            if self._state != "recording":
                raise
            from kinetoscope.trace import Trace

            warn_user(f"{name}() has nothing to show: {error}")
            nothing = Trace.from_columns({}, strings=[""], info={})
            return catalog.resolve(catalog.VIEWS[name])(nothing)


class ObserverAsTorch:
    """For execution trace observers."""

    def register_callback(self, output_file_path: Any) -> Any:
        """Register; where the file cannot be made nothing is recorded."""
        try:
            return super().register_callback(output_file_path)  # type: ignore[misc]
        except ArgumentTypeError:
            raise
        except ArgumentError as error:
            warn_user(f"no execution trace is recorded: {error}")
            return self

    def get_output_file_path(self) -> str | None:
        """Where the trace goes; None as long as it goes nowhere."""
        try:
            path: str = super().get_output_file_path()  # type: ignore[misc]
        except StateError:
            return None
        return path
