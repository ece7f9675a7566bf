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

    def export_chrome_trace(self, path: str | os.PathLike[str], *_: Any, **__: Any) -> None:
        """Write the last cycle, as `prof.export_chrome_trace()` does."""
        self._session.export_chrome_trace(path)

    def toggle_collection_dynamic(self, enabled: bool, activities: Any) -> None:
        """Switch collection off or on, as `prof.toggle_collection_dynamic()` does."""
        self._session.toggle_collection_dynamic(enabled, activities)

    def __getattr__(self, name: str) -> Any:
        """Look up what torch's object has, too: the session's own attribute, or what is computed from the session."""
        if name in _OF_SESSION:
            return getattr(self._session, name)
        if name in _COMPUTED:
            return _COMPUTED[name](self._session)
        raise AttributeError(
            f"prof.profiler has no attribute {name!r} with the native engine; engine='kineto' gives torch's own object."
        )


_OF_SESSION = frozenset(
    {
        "acc_events",
        "custom_trace_id_callback",
        "experimental_config",
        "export_stacks",
        "key_averages",
        "post_processing_timeout_s",
        "profile_memory",
        "record_shapes",
        "use_device",
        "with_flops",
        "with_modules",
        "with_stack",
    }
)


# The other attributes and methods of torch's object.
_COMPUTED: dict[str, Callable[[Any], Any]] = {
    "_stats": lambda session: session._stats(),
    "function_events": lambda session: session.events(),
    # None before the first cycle has finished.
    "kineto_results": lambda session: session._cycles.last and KinetoResultsApi(session),
    "self_cpu_time_total": lambda session: session.events().self_cpu_time_total,
    "table": lambda session: session.events().table,
    "total_average": lambda session: session.events().total_average,
    "trace_id": lambda session: session.get_trace_id() or "",
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
