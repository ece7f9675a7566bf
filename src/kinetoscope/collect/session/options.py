"""What a session is made with: its options, and the interfaces of the engines, sources and observers among them.

Imports no torch: the launcher holds the options of a program that has not imported torch yet.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, get_args

from kinetoscope._errors import ArgumentError, ArgumentTypeError, StateError
from kinetoscope.summaries import SUFFIX

if TYPE_CHECKING:
    from torch.profiler import ProfilerActivity

    from kinetoscope.collect.session.activities import ActivityChoice, ActivityItem
    from kinetoscope.trace import Trace

EngineName = Literal["auto", "native", "kineto"]
OnError = Literal["raise", "warn"]
ReportPath = str | os.PathLike[str] | Literal[False] | None

# The switches that decide what is recorded.
RECORDED = (
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_modules",
    "with_flops",
    "python_calls",
    "module_spans",
)
SWITCHES = (*RECORDED, "garbage_collection", "samples", "acc_events", "align_ranks", "source")

_REPORT = "need the name of a file, None for a name of ours, or False"
_SOURCE_CALLS = ("open", "start", "stop", "close")
_OBSERVER_CALLS = ("start", "stop", "cleanup")
_ENGINE_CALLS = ("prepare", "start", "stop")


class UnknownKeywordError(ArgumentError, TypeError):
    """A keyword that the installed torch no longer has; Python raises TypeError for those."""


class TraceObserver(Protocol):
    """Something that records at the same times as the session, such as torch's and our `ExecutionTraceObserver`."""

    def start(self) -> None:
        """Begin; called right before the session's own recording begins."""
        ...

    def stop(self) -> None:
        """Pause or end; called right before the session's own recording ends."""
        ...

    def cleanup(self) -> None:
        """Finish for good; called when the `with` block of the session is left."""
        ...


class Gathered(Protocol):
    """What a source has for one recording.

    It may also have `and_later(later) -> Gathered`, which combines it with what the same source gathered for a later
    recording, for one trace of all cycles.
    """

    def add_to(self, trace: Trace) -> Trace:
        """Return the trace with this in it: a new one, or the same. Called when a trace is built; leaves this as it is."""
        ...

    def discard(self) -> None:
        """Discard it: the trace will not be built."""
        ...


class Source(Protocol):
    """Something that records in addition to the engine."""

    def open(self) -> None:
        """The session begins; recordings may follow at any time."""
        ...

    def start(self) -> None:
        """A recording begins right after this."""
        ...

    def stop(self) -> Gathered:
        """The recording ends right after this; must be quick, and leaves what takes time to `add_to`."""
        ...

    def close(self) -> None:
        """The session is over. It may be opened again."""
        ...


class Recording(Protocol):
    """What an engine leaves behind when it is stopped."""

    def trace(self) -> Trace:
        """The recording as a trace: built by the first call, then the same object every time."""
        ...

    def discard(self) -> None:
        """Forget the recording and remove its temporary files; a second call does nothing."""
        ...


class Engine(Protocol):
    """One way of recording. An engine records one thing at a time and can be started again after `stop`."""

    name: str

    def prepare(self, request: RecordingRequest) -> None:
        """Load and warm up whatever `start` would otherwise have to wait for."""
        ...

    def start(self) -> None:
        """Begin to record what `prepare` was given."""
        ...

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Switch the collection of some activities off or on while recording; the trace says when they were off."""
        ...

    def stop(self) -> Recording:
        """Stop and return the recording; the cost must not depend on how much was recorded.

        Raises:
            StillRecordingError: It cannot be stopped now, or not from this thread, and continues to record.
        """
        ...


class StillRecordingError(StateError):
    """An engine could not be stopped, and continues to record."""


@dataclass(frozen=True)
class EngineStatus:
    """Whether an engine can record on this machine, and why (not).

    Attributes:
        available: True when the engine can record here and now.
        reason: One sentence for a person: why it is available, or what is missing.
        details: Facts for `kinetoscope doctor`, in the order in which they are printed.
    """

    available: bool
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordingOptions:
    """The options of a session, checked when they are made; `profile` describes each of them.

    Attributes:
        activities: What to record; None means everything that the machine has when the session is made.
        record_shapes: Record shapes, dtypes and scalars of each operator's inputs.
        profile_memory: Record every allocation and free.
        with_stack: Record the Python stack of each operator.
        with_flops: Count the floating-point operations of each operator.
        with_modules: Record the `nn.Module` path of each operator.
        python_calls: Record every call of a Python function.
        module_spans: Record every call of an `nn.Module` with its exact start and end.
        garbage_collection: Record collections of Python's garbage.
        samples: Sample the Python stack of every thread.
        experimental_config: torch's `_ExperimentalConfig`, or None.
        execution_trace_observer: The observer that runs with each recording, or None.
        acc_events: Keep every cycle, not only the last.
        custom_trace_id_callback: Makes the id of each trace; None for random ids.
        post_processing_timeout_s: For how many seconds torch may make its own event objects; None means no limit.
        engine: The name of the engine, or an engine object.
        path: The live recording file; None means a private temporary file.
        summary: Where each cycle's summary goes, a folder or a `.parquet` file; None for no summary.
        ring_bytes: Upper limit of the recording in bytes, the oldest records being overwritten; None means no limit.
        oom_report: The file of the out-of-memory report; None for a name of ours, False for no report.
        sources: What records in addition to the engine.
        source: Store the text of hot source lines with the trace.
        align_ranks: Let the ranks of a job meet at the begin and end of each recording.
        on_error: What becomes of an exception in `on_trace_ready` or of the observer.

    Raises:
        ArgumentError: An option has a value that cannot be used; the message names it and the valid ones.
    """

    activities: tuple[ActivityItem, ...] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    python_calls: bool = False
    module_spans: bool = False
    garbage_collection: bool = False
    samples: bool = True
    experimental_config: Any = None
    execution_trace_observer: TraceObserver | None = None
    acc_events: bool = False
    custom_trace_id_callback: Callable[[], str] | None = None
    post_processing_timeout_s: float | None = None
    engine: EngineName | Engine = "auto"
    path: Path | None = None
    summary: Path | None = None
    ring_bytes: int | None = None
    oom_report: Path | Literal[False] | None = None
    sources: tuple[Source, ...] = ()
    source: bool = True
    align_ranks: bool = False
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        """Check every option, and bring it into the one form in which it is read."""
        checked: dict[str, Any] = {name: checked_switch(name, getattr(self, name)) for name in SWITCHES}
        if self.activities is not None:
            from kinetoscope.collect.session.activities import as_items, checked_choices

            choices = checked_choices(self.activities)
            checked |= {"activities": as_items(choices), "activity_choices": choices}
        if self.experimental_config is not None:
            from kinetoscope.collect.session.activities import checked_config

            checked_config(self.experimental_config)
        checked_engine(self.engine)
        _check_observer(self.execution_trace_observer)
        checked_callable("custom_trace_id_callback", self.custom_trace_id_callback)
        if self.on_error not in get_args(OnError):
            raise ArgumentError(f"on_error={self.on_error!r} is not valid: choose 'raise' or 'warn'.")
        checked |= {
            "post_processing_timeout_s": _seconds(
                "post_processing_timeout_s", self.post_processing_timeout_s
            ),
            "path": _file("path", self.path, "need the name of a file, or None"),
            "summary": checked_summary("summary", self.summary),
            "ring_bytes": _ring_bytes(self.ring_bytes),
            "oom_report": False
            if self.oom_report is False
            else _file("oom_report", self.oom_report, _REPORT),
            "sources": checked_sources(self.sources),
        }
        # Past the frozen setters: this is still the making of the object.
        vars(self).update(checked)

    @cached_property
    def activity_choices(self) -> Mapping[ProfilerActivity, ActivityChoice]:
        """What to record of each activity."""
        from kinetoscope.collect.session.activities import checked_choices

        return checked_choices(self.activities)

    @property
    def extension_configs(self) -> tuple[Any, ...]:
        """Settings of parts of torch's collector, of all activities, such as torch's `PerformanceMetricsConfig`."""
        if self.activities is None:
            return ()
        return tuple(config for choice in self.activity_choices.values() for config in choice.configs)

    @property
    def recorded(self) -> dict[str, bool]:
        """The switches that decide what is recorded, by name."""
        return {name: getattr(self, name) for name in RECORDED}

    @property
    def needs_shapes(self) -> bool:
        """Whether shapes are recorded: floating-point operations are counted from them."""
        return self.record_shapes or self.with_flops

    @property
    def needs_python_stacks(self) -> bool:
        """Whether torch's collector has to record stacks: it has calls and collections of garbage only with them."""
        return self.with_stack or self.python_calls or self.module_spans or self.garbage_collection


OPTION_NAMES = frozenset(one.name for one in dataclasses.fields(RecordingOptions))


@dataclass(frozen=True)
class RecordingRequest:
    """What an engine records in one cycle of a session.

    Attributes:
        activities: What is recorded, limited to what the machine has; never empty.
        options: The options of the session.
        record_function_ids: Record torch's own number of each call, by which execution traces name it.
        torch_objects: Let torch's own collector, where it records, make the event objects that `prof.profiler` shows.
        trace_id: The id of the trace; also in `info`.
        path: The live recording file of this rank and cycle; None means a private temporary file.
        info: Metadata of the trace, each value a JSON text.
    """

    activities: frozenset[ProfilerActivity]
    options: RecordingOptions = field(default_factory=RecordingOptions)
    record_function_ids: bool = False
    torch_objects: bool = False
    trace_id: str = ""
    path: Path | None = None
    info: Mapping[str, str] = field(default_factory=dict)

    @property
    def activity_filters(self) -> dict[ProfilerActivity, frozenset[str]]:
        """The names of the kinds to record, for activities of which not all kinds are."""
        if self.options.activities is None:
            return {}
        return {
            activity: choice.kinds
            for activity, choice in self.options.activity_choices.items()
            if choice.kinds is not None and activity in self.activities
        }


def checked_switch(name: str, value: object) -> bool:
    """A switch as a bool; values that are merely truthy, such as the text "False", are refused."""
    if value is None or isinstance(value, bool):
        return bool(value)
    try:
        number = float(value) if not isinstance(value, (str, bytes)) else math.nan  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if number not in (0, 1):
        raise ArgumentTypeError(f"{name}={value!r} is not valid: choose True or False.")
    return bool(number)


def checked_engine(engine: EngineName | Engine) -> EngineName | Engine:
    """The name of an engine, or an engine itself, or an error that lists the names."""
    names = get_args(EngineName)
    if engine not in names if isinstance(engine, str) else not _has_calls(engine, _ENGINE_CALLS):
        raise ArgumentError(
            f"engine={engine!r} is not valid: choose one of {', '.join(map(repr, names))}, or pass an engine."
        )
    return engine


def checked_callable(name: str, value: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Something that can be called, or nothing."""
    if value is not None and not callable(value):
        raise ArgumentTypeError(f"{name}={value!r} is not valid: it must be callable, or None.")
    return value


def _has_calls(thing: object, calls: Iterable[str]) -> bool:
    """Whether an object has all of some methods."""
    # Not by isinstance: from Python 3.12 on that does not see what an object's __getattr__ offers.
    return all(callable(getattr(thing, call, None)) for call in calls)


def _ring_bytes(ring_bytes: int | None) -> int | None:
    """A size of the ring that can be used."""
    if ring_bytes is None:
        return None
    given: object = ring_bytes
    if isinstance(given, bool) or not isinstance(given, SupportsIndex) or given.__index__() <= 0:
        raise ArgumentError(
            f"ring_bytes={ring_bytes!r} is not valid: need a whole number of bytes above 0, or None."
        )
    return given.__index__()


def _file(name: str, path: object, need: str) -> Path | None:
    """The path of a file that does not have to exist."""
    if path is None:
        return None
    found = _path(name, path, need)
    if found.is_dir():
        raise ArgumentError(f"{name}={str(path)!r} is a folder: need the name of a file in it.")
    return found


def checked_summary(name: str, path: object) -> Path | None:
    """The place of summaries: a folder, or a file whose name ends in `.parquet`.

    Raises:
        ArgumentError: It is neither.
    """
    if path is None:
        return None
    found = _path(name, path, "need a folder, or the name of a .parquet file, or None")
    if found.suffix == SUFFIX and found.is_dir():
        raise ArgumentError(
            f"{name}={str(path)!r} is a folder whose name ends like a file: use another name for it."
        )
    if found.suffix != SUFFIX and found.is_file():
        raise ArgumentError(
            f"{name}={str(path)!r} is a file that is no summary: need a folder, or a name that ends in .parquet."
        )
    return found


def _path(name: str, path: object, need: str) -> Path:
    """A text or path as a path."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text:
        raise ArgumentError(f"{name}={path!r} is not valid: {need}.")
    try:
        # Now: a program may change its working directory before the file is written.
        return Path(text).absolute()
    except OSError:
        return Path(text)  # There is no working directory.


def _seconds(name: str, value: float | None) -> float | None:
    """A time limit in seconds."""
    if value is None:
        return None
    try:
        seconds = math.nan if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not seconds >= 0:
        given: object = value
        kind = ArgumentError if isinstance(given, (int, float)) else ArgumentTypeError
        raise kind(
            f"{name}={value!r} is not valid: {name} must be non-negative, in seconds, or None for no limit."
        )
    return seconds


def _check_observer(observer: TraceObserver | None) -> None:
    """Raise an error unless an observer can be started, stopped and cleaned up."""
    if observer is not None and (isinstance(observer, type) or not _has_calls(observer, _OBSERVER_CALLS)):
        raise ArgumentError(
            f"execution_trace_observer={observer!r} is not valid: need an object with start(), stop() and cleanup(), "
            "such as ExecutionTraceObserver().register_callback(path), or None."
        )


def checked_sources(sources: Iterable[Source]) -> tuple[Source, ...]:
    """The sources of a session, or an error that names the first object that is not one."""
    try:
        found = tuple(sources)
    except TypeError:
        raise ArgumentError(
            f"sources={sources!r} is not valid: need a list of sources, such as [SystemCounters()]."
        ) from None
    for source in found:
        missing = [call for call in _SOURCE_CALLS if not callable(getattr(source, call, None))]
        if isinstance(source, type) or missing:
            hint = f"it has no {missing[0]}()" if missing else "it is a class: make an object of it"
            raise ArgumentError(
                f"sources: {source!r} is not a source ({hint}); a source has open, start, stop and close."
            )
    if len({id(source) for source in found}) < len(found):
        raise ArgumentError("sources: the same source is given twice; make two of them or give it once.")
    return found
