"""`prof.profiler` with the native engine: torch's methods, computed from our trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.profiler

from kinetoscope._errors import StateError
from kinetoscope.collect.session.state import SessionState


class ProfilerApi:
    """API-compatible with torch's `torch.autograd.profiler.profile`, for the data of the session."""

    def __init__(self, session: Any) -> None:
        """Wrap a session."""
        self._session: Any = session

    @property
    def kineto_results(self) -> KinetoResultsApi | None:
        """API-compatible with the result of torch's collector; None before the first cycle has finished."""
        return KinetoResultsApi(self._session) if self._session._cycles.last is not None else None

    @property
    def function_events(self) -> Any:
        """The same as `prof.events()`."""
        return self._session.events()

    def key_averages(self, *arguments: Any, **keywords: Any) -> Any:
        """The same as `prof.key_averages()`."""
        return self._session.key_averages(*arguments, **keywords)

    def total_average(self) -> Any:
        """Aggregate all events into one."""
        return self.function_events.total_average()

    def table(self, *arguments: Any, **keywords: Any) -> str:
        """The same as `prof.events().table()`."""
        text: str = self.function_events.table(*arguments, **keywords)
        return text

    @property
    def self_cpu_time_total(self) -> float:
        """The sum of the events' self CPU times, in microseconds."""
        total: float = self.function_events.self_cpu_time_total
        return total

    def export_chrome_trace(self, path: str | os.PathLike[str], *_: Any, **__: Any) -> None:
        """Write the last cycle, as `prof.export_chrome_trace()` does."""
        self._session.export_chrome_trace(path)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write stacks, as `prof.export_stacks()` does."""
        self._session.export_stacks(path, metric)

    def toggle_collection_dynamic(self, enabled: bool, activities: Any) -> None:
        """Switch collection off or on, as `prof.toggle_collection_dynamic()` does."""
        self._session.toggle_collection_dynamic(enabled, activities)

    @property
    def trace_id(self) -> str:
        """The id of the last cycle."""
        return self._session.get_trace_id() or ""

    @property
    def _stats(self) -> Any:
        """The profiler overhead of the last cycle."""
        return self._session._stats()

    def __getattr__(self, name: str) -> Any:
        """Look up the session's options and state that torch's object has as attributes, too."""
        if name in _SETTINGS:
            return getattr(self._session, name)
        if name in _STATE:
            return _STATE[name](self._session)
        raise AttributeError(
            f"prof.profiler has no attribute {name!r} with the native engine; engine='kineto' gives torch's own object."
        )


_SETTINGS = frozenset(
    {
        "acc_events",
        "custom_trace_id_callback",
        "experimental_config",
        "post_processing_timeout_s",
        "profile_memory",
        "record_shapes",
        "use_device",
        "with_flops",
        "with_modules",
        "with_stack",
    }
)


# Attributes of torch's object that describe its state, computed from the session.
_STATE: dict[str, Callable[[Any], Any]] = {
    "enabled": lambda _: True,
    "entered": lambda session: session._state is SessionState.RECORDING,
    "use_cpu": lambda session: torch.profiler.ProfilerActivity.CPU in session.activities,
    "use_cuda": lambda session: session.use_device == "cuda",
    "kineto_activities": lambda session: set(session.activities),
    "profiling_start_time_ns": lambda session: int(session.trace.run_info.start_realtime_ns or 0),
    "profiling_end_time_ns": lambda session: int(
        (session.trace.run_info.start_realtime_ns or 0) + (session.trace.run_info.stop_ns or 0)
    ),
}


class KinetoResultsApi:
    """API-compatible with the collector's `_ProfilerResult`."""

    def __init__(self, session: Any) -> None:
        """Wrap a session."""
        self._session: Any = session

    def trace_start_ns(self) -> int:
        """Start of the recording, in nanoseconds since 1970."""
        return int(self._session.trace.run_info.start_realtime_ns or 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the last cycle in Chrome's format."""
        self._session.export_chrome_trace(path)

    def events(self) -> Any:
        """Not available: torch's raw events come only from its own collector.

        Raises:
            StateError: Always; the message names an alternative.
        """
        raise _only_with_kineto("events()", "prof.events() and prof.trace.table('spans')")

    def experimental_event_tree(self) -> Any:
        """Not available: torch's event tree comes only from its own collector.

        Raises:
            StateError: Always; the message names an alternative.
        """
        raise _only_with_kineto(
            "experimental_event_tree()", "prof.trace.table('spans'), with its column `parent`,"
        )


def _only_with_kineto(call: str, instead: str) -> StateError:
    """Build the error for a method that only torch's collector supports."""
    return StateError(
        f"prof.profiler.kineto_results.{call} has event objects of torch's own collector only: pass engine='kineto' to the "
        f"session (or install(engine='kineto') if you cannot change the program). {instead} have the same data with any engine."
    )
