"""`prof.profiler` where our own engine recorded: torch's calls, answered from our trace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import StateError

if TYPE_CHECKING:
    from kinetoscope.collect._torch_face import TorchFace


class ProfilerFace:
    """Stands where torch keeps its `torch.autograd.profiler.profile`; every answer is about what the session shows."""

    def __init__(self, session: Any) -> None:
        """Speak for a session."""
        self._session: Any = session

    @property
    def kineto_results(self) -> KinetoResultsFace | None:
        """What the collector returned; None before the first cycle has ended."""
        return KinetoResultsFace(self._session) if self._session._cycles.last is not None else None

    @property
    def function_events(self) -> Any:
        """The events, as `prof.events()` gives them."""
        return self._session.events()

    def key_averages(self, *arguments: Any, **keywords: Any) -> Any:
        """The events added up, as `prof.key_averages()` gives them."""
        return self._session.key_averages(*arguments, **keywords)

    def total_average(self) -> Any:
        """All events added up to one."""
        return self.function_events.total_average()

    def table(self, *arguments: Any, **keywords: Any) -> str:
        """The events as text, as `prof.events().table()` gives them."""
        text: str = self.function_events.table(*arguments, **keywords)
        return text

    @property
    def self_cpu_time_total(self) -> float:
        """The time on the CPU of all events, in microseconds."""
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
        """What the session cost."""
        return self._session._stats()

    def __getattr__(self, name: str) -> Any:
        """The session's own flags and settings, which torch keeps here too; nothing else."""
        if name in _SETTINGS:
            return getattr(self._session, name)
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


class KinetoResultsFace:
    """Stands where torch keeps its collector's `_ProfilerResult`."""

    def __init__(self, session: TorchFace) -> None:
        """Speak for a session."""
        self._session: Any = session

    def trace_start_ns(self) -> int:
        """When the recording began, in nanoseconds of the clock on the wall."""
        return int(self._session.trace.info.get("start_realtime_ns", 0))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the last cycle in Chrome's format."""
        self._session.export_chrome_trace(path)

    def events(self) -> Any:
        """torch's raw events, which only its own collector makes.

        Raises:
            StateError: Always; the message says what serves instead.
        """
        raise _only_with_kineto("events()", "prof.events() and prof.trace.table('spans')")

    def experimental_event_tree(self) -> Any:
        """torch's tree of events, which only its own collector makes.

        Raises:
            StateError: Always; the message says what serves instead.
        """
        raise _only_with_kineto(
            "experimental_event_tree()", "prof.trace.table('spans'), with its column `parent`,"
        )


def _only_with_kineto(call: str, instead: str) -> StateError:
    """Why a call has no answer here."""
    return StateError(
        f"prof.profiler.kineto_results.{call} holds objects of torch's own collector: give the session engine='kineto' to "
        f"have them (or install(engine='kineto') for a program that is not to be changed). {instead} tell the same with any engine."
    )
