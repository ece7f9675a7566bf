"""What an engine is: the one seam between a session, which decides when, and a recorder, which knows how.

A session hands an engine a `RecordingRequest`, starts it, stops it, and gets a `Recording`, from which a `Trace`
can be built at any later time. Nothing above this file knows which engine recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kinetoscope._errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch.profiler import ProfilerActivity

    from kinetoscope.trace import Trace


@dataclass(frozen=True)
class RecordingRequest:
    """What one recording shall contain and where it is kept.

    Attributes:
        activities: What is recorded; torch's own `ProfilerActivity` values, never empty.
        activity_filters: For some activities the names of the kinds that are wanted; all kinds of the others.
        extension_configs: Settings of parts of torch's collector, such as torch's `PerformanceMetricsConfig`.
        record_shapes: Keep the shapes, dtypes and scalars of each operator's inputs.
        profile_memory: Keep every allocation and free.
        with_stack: Keep the Python stack of each operator.
        with_flops: Keep what the floating-point operations of each operator are computed from.
        with_modules: Keep the `nn.Module` path of each operator.
        python_calls: Keep every call of a Python function.
        module_spans: Keep every call of an `nn.Module` with its exact start and end.
        record_function_ids: Keep torch's own number of each call, by which execution traces name it.
        torch_objects: Let torch's own collector, where it records, make the event objects that `prof.profiler` shows.
        experimental_config: torch's experimental settings, for the engine that has a use for them.
        post_processing_timeout_s: For how many seconds torch may make its own event objects; None means no limit.
        trace_id: The id of the trace; also in `info`.
        path: The live recording file; None means a private temporary place.
        ring_bytes: Upper limit of the recording in bytes, the oldest parts being overwritten; None means no limit.
        info: Metadata of the trace, each value a JSON text.
    """

    activities: frozenset[ProfilerActivity]
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    python_calls: bool = False
    module_spans: bool = False
    record_function_ids: bool = False
    torch_objects: bool = False
    experimental_config: Any = None
    post_processing_timeout_s: float | None = None
    trace_id: str = ""
    activity_filters: Mapping[ProfilerActivity, frozenset[str]] = field(default_factory=dict)
    extension_configs: tuple[Any, ...] = ()
    path: Path | None = None
    ring_bytes: int | None = None
    info: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineStatus:
    """Whether an engine can serve on this machine, and why (not).

    Attributes:
        available: True when the engine can record here and now.
        reason: One sentence for a person: why it is available, or what is missing.
        details: Facts for `kinetoscope doctor`, in the order in which they shall be printed.
    """

    available: bool
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


class StillRecordingError(StateError):
    """An engine was asked to stop, could not, and goes on recording as before."""


class Recording(Protocol):
    """What an engine leaves behind when it is stopped."""

    def trace(self) -> Trace:
        """The recording as a trace: built when first asked for, then the same object every time."""
        ...

    def discard(self) -> None:
        """Forget the recording and remove the files that nobody asked to keep; a second call does nothing."""
        ...


class Engine(Protocol):
    """One way of recording. An engine records one thing at a time and can be started again after `stop`."""

    name: str

    def prepare(self, request: RecordingRequest) -> None:
        """Load and warm up whatever `start` would otherwise have to wait for."""
        ...

    def start(self) -> None:
        """Begin to record what `prepare` was asked for."""
        ...

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Switch the collection of some activities off or on while recording; the trace says when they were off."""
        ...

    def stop(self) -> Recording:
        """Close the books and return the recording; the cost must not depend on how much was recorded.

        Raises:
            StillRecordingError: It cannot be stopped now, or not from this thread, and goes on as before.
        """
        ...
