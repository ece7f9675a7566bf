"""The options of a session, and the interfaces of engines, sources and observers.

Must not import torch: the launcher creates the options of a program that has not imported torch yet.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from kinetoscope._errors import ArgumentError, ArgumentTypeError, StateError, checked_switch, checked_whole
from kinetoscope.model import units
from kinetoscope.summaries import SUFFIX

if TYPE_CHECKING:
    from torch.profiler import ProfilerActivity

    from kinetoscope.collect.request.activities import ActivityChoice, ActivityChoices, ActivityItem
    from kinetoscope.storage.appended_rows import RowColumns
    from kinetoscope.trace import Trace

EngineName = Literal["auto", "native", "kineto"]
OnError = Literal["raise", "warn"]
ReportPath = str | os.PathLike[str] | Literal[False] | None

# With a device activity, engine="native" is the hybrid engine.
EngineKind = Literal["native", "hybrid", "kineto"]

_REPORT = "need the name of a file, None for a default name, or False"
_SOURCE_CALLS = ("open", "start", "stop", "close")
_OBSERVER_CALLS = ("start", "stop", "cleanup")
_ENGINE_CALLS = ("prepare", "start", "stop")


class UnknownKeywordError(ArgumentError, TypeError):
    """A keyword that the installed torch no longer has. Also a TypeError, which Python raises for unknown keywords."""


class TraceObserver(Protocol):
    """An object that records together with the session, such as torch's or our `ExecutionTraceObserver`."""

    def start(self) -> None:
        """Start to record; called right before the engine starts."""

    def stop(self) -> None:
        """Stop or pause; called right before the engine stops."""

    def cleanup(self) -> None:
        """Release all resources; called at the end of the session's `with` block."""


class Gathered(Protocol):
    """The data that a user's source returns for a recording, and that it adds to the trace itself.

    The sources of Kinetoscope append rows to the recording instead, see `Source`.
    """

    def add_to(self, trace: Trace) -> Trace:
        """Return a trace with the data added, either a new one or the same."""

    def discard(self) -> None:
        """Delete the data, since the trace will not be built."""


class AppendRows(Protocol):
    """A function that appends rows to a table of the current recording.

    With the native engine they survive if the process is killed; for engines without a recording file they are kept in memory.
    Kinetoscope reads the table `counters` (`monotonic_ns`, `name` and `value`) and those of its own sources.
    """

    def __call__(self, table: str, columns: RowColumns, *, buffered: bool = False) -> bool:
        """Append rows, given as a list of JSON values for each column, or one as JSON text; return False if the recording has ended.

        `buffered` means that the caller buffers rows for up to a second; these are lost if the process is killed.
        """


class Source(Protocol):
    """An object that records additional data, such as `SystemCounters`.

    It may also have `write_to(append: AppendRows)`, which is called after `start`, once the engine is recording; `append` can be
    called until `stop` returns. Data that is appended there must not be returned by `stop` again. Our own sources derive from this,
    and leave out the calls in which they do nothing.
    """

    def open(self) -> None:
        """The session starts; it may make several recordings."""
        return

    def start(self) -> None:
        """A recording starts right after this call."""
        return

    def stop(self) -> Gathered | None:
        """The recording stops right after this call, which must be fast: slow work belongs in `add_to` of the result.

        Returns None if all data was appended to the recording.
        """

    def close(self) -> None:
        """The session has ended; `open` may be called again later."""
        return


class Recording(Protocol):
    """The result of an engine's `stop`, which becomes a trace on demand."""

    def trace(self) -> Trace:
        """Return the trace. A session calls this once, unless it was interrupted."""

    def discard(self) -> None:
        """Delete the recording and its temporary files; a second call does nothing."""


class Engine(Protocol):
    """Records operators and devices. An engine makes one recording at a time, and can be started again after `stop`."""

    name: str

    def prepare(self, request: RecordingRequest) -> None:
        """Load and warm up everything that would delay `start`."""

    def start(self) -> None:
        """Start to record what was requested by `prepare`."""

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Pause or resume some activities while recording; the pauses are in the trace's metadata and losses."""

    def stop(self) -> Recording:
        """Stop, and return the recording; the cost must not depend on the length of the recording.

        Raises:
            StillRecordingError: It cannot be stopped now or from this thread, and continues to record.
        """


class StillRecordingError(StateError):
    """An engine could not be stopped, and continues to record."""


@dataclass(frozen=True)
class EngineStatus:
    """Whether an engine can record on this machine, with a reason.

    Attributes:
        available: Whether the engine can record.
        reason: One sentence for the user: why it can, or what is missing.
        details: Details that `kinetoscope doctor` prints, in this order.
    """

    available: bool
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


def checked_engine(engine: EngineName | Engine) -> EngineName | Engine:
    """Check that a value is the name of an engine or an engine object.

    Raises:
        ArgumentError: It is neither; the message lists the names.
    """
    names = get_args(EngineName)
    if engine not in names if isinstance(engine, str) else not _has_calls(engine, _ENGINE_CALLS):
        raise ArgumentError(
            f"engine={engine!r} is not valid: choose one of {', '.join(map(repr, names))}, or pass an engine."
        )
    return engine


def checked_callable(name: str, value: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Check that a value is callable or None."""
    if value is not None and not callable(value):
        raise ArgumentTypeError(f"{name}={value!r} is not valid: it must be callable, or None.")
    return value


def _has_calls(thing: object, calls: Iterable[str]) -> bool:
    # Not isinstance() with a protocol, which from Python 3.12 on ignores methods that __getattr__ provides.
    return all(callable(getattr(thing, call, None)) for call in calls)


def _bytes(name: str, value: object) -> int:
    return checked_whole(name, value, 1, " of bytes, or None")


def _file(name: str, path: object, need: str = "need the name of a file, or None") -> Path:
    file = checked_path(name, path, need)
    if file.is_dir():
        raise ArgumentError(f"{name}={str(path)!r} is a folder: need the name of a file in it.")
    return file


def checked_summary(name: str, path: object) -> Path:
    """Check the path for summaries: a folder, or a file whose name ends in `.parquet`.

    Raises:
        ArgumentError: It is neither.
    """
    target = checked_path(name, path, "need a folder, or the name of a .parquet file, or None")
    if target.suffix == SUFFIX and target.is_dir():
        raise ArgumentError(
            f"{name}={str(path)!r} is a folder whose name ends like a file: use another name for it."
        )
    if target.suffix != SUFFIX and target.is_file():
        raise ArgumentError(
            f"{name}={str(path)!r} is a file but not a summary: need a folder, or a name that ends in .parquet."
        )
    return target


def checked_path(name: str, path: object, need: str = "need the name of a file, or None") -> Path:
    """Check the path of a file or folder, which may not exist yet.

    Raises:
        ArgumentError: It is not a path; the message says what is needed.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text:
        raise ArgumentError(f"{name}={path!r} is not valid: {need}.")
    try:
        # Absolute now, because a program may change its working directory before the file is written.
        return Path(text).absolute()
    except OSError:
        return Path(text)  # There is no working directory.


def _seconds(name: str, value: float) -> float:
    try:
        seconds = math.nan if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not seconds >= 0:
        untyped: object = value
        kind = ArgumentError if isinstance(untyped, (int, float)) else ArgumentTypeError
        raise kind(
            f"{name}={value!r} is not valid: {name} must be non-negative, in seconds, or None for no limit."
        )
    return seconds


def _report_file(name: str, path: object) -> Path | Literal[False] | None:
    return False if path is False else _file(name, path, _REPORT)


def _observer(name: str, observer: TraceObserver) -> TraceObserver:
    if isinstance(observer, type) or not _has_calls(observer, _OBSERVER_CALLS):
        raise ArgumentError(
            f"{name}={observer!r} is not valid: need an object with start(), stop() and cleanup(), "
            "such as ExecutionTraceObserver().register_callback(path), or None."
        )
    return observer


def _on_error(name: str, value: OnError) -> OnError:
    if value not in get_args(OnError):
        raise ArgumentError(f"{name}={value!r} is not valid: choose 'raise' or 'warn'.")
    return value


def _activities(_name: str, activities: Iterable[ActivityItem]) -> ActivityChoices:
    from kinetoscope.collect.request.activities import checked_choices

    return checked_choices(activities)


def _config(_name: str, config: Any) -> Any:
    from kinetoscope.collect.request.torch_settings import checked_config

    return checked_config(config)


def checked_sources(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Check the sources of a session.

    Raises:
        ArgumentError: One of them is not a source, or is given twice.
    """
    try:
        listed = tuple(sources)
    except TypeError:
        raise ArgumentError(
            f"sources={sources!r} is not valid: need a list of sources, such as [SystemCounters()]."
        ) from None
    for source in listed:
        missing = [call for call in _SOURCE_CALLS if not callable(getattr(source, call, None))]
        if isinstance(source, type) or missing:
            hint = f"it has no {missing[0]}()" if missing else "it is a class: make an object of it"
            raise ArgumentError(
                f"sources: {source!r} is not a source ({hint}); a source has open, start, stop and close."
            )
    if len({id(source) for source in listed}) < len(listed):
        raise ArgumentError("sources: the same source is given twice; make two of them or give it once.")
    return listed


@dataclass(frozen=True)
class Option:
    """The declaration of an option, from which command-line flags and warnings are made; see docs/options.md.

    Attributes:
        help: What it does, in one sentence.
        check: Called with the name and a value, but not with a default of None; returns the normalized value, or raises ArgumentError.
        flag: Its flag of `kinetoscope run`, without dashes; `launch` then has the keyword, too. Empty: neither has it.
        choices: The valid values on the command line.
        flag_help: Additional help text of the flag.
        metavar: The placeholder for its value in the command line's help; switches and choices have none.
        read: Parses its value on the command line.
        magic: Its flags of `%%kinetoscope`; None makes that of a switch from `flag`.
        launched: Its default if Kinetoscope itself starts the recording of a program or cell; None: the same as `default`.
        stays: Why values other than the default cannot be passed to another process; empty if they can.
        recorded: Whether it changes what is recorded; then it is stored in the metadata of the trace.
        warnings: By engine, the session's warning if the option is set and the engine does not support it; `{names}` becomes the settings
            without effect, `{torch}` the version of torch.
        name: The keyword.
        default: The default of a session.
    """

    help: str
    check: Callable[[str, Any], Any]
    flag: str = ""
    choices: tuple[str, ...] = ()
    flag_help: str = ""
    metavar: str = ""
    read: Callable[[str], Any] | None = None
    magic: tuple[str, ...] | None = None
    launched: Any = None
    stays: str = ""
    recorded: bool = False
    warnings: Mapping[EngineKind, str] = field(default_factory=dict)
    name: str = ""
    default: Any = None

    @property
    def is_switch(self) -> bool:
        """Whether its values are True and False."""
        return self.check is checked_switch

    @property
    def when_launched(self) -> Any:
        """Its default if Kinetoscope itself starts the recording of a program or cell."""
        return self.default if self.launched is None else self.launched

    @property
    def magic_flags(self) -> tuple[str, ...]:
        """Its flags of `%%kinetoscope`, the long one first, without dashes; a flag that begins with `no-` turns it off."""
        if self.magic is not None or not (self.flag and self.is_switch):
            return self.magic or ()
        return (f"no-{self.flag}" if self.when_launched else self.flag,)

    @property
    def long_flag(self) -> str:
        """The flag of `kinetoscope run` that changes its default, such as `--shapes`, `--no-stack` or `--ring`."""
        return f"--{'no-' if self.when_launched is True else ''}{self.flag}" if self.flag else ""


def _declare(help: str, check: Callable[[str, Any], Any], *, default: Any = None, **more: Any) -> Any:  # noqa: A002
    return field(default=default, metadata={_DECLARATION: Option(help, check, **more)})


def _switch(help: str, *, default: bool = False, **more: Any) -> Any:  # noqa: A002
    return _declare(help, checked_switch, default=default, **more)


_DECLARATION = "option"
_OBJECT_STAYS = "it is an object of this process"
_TORCHS_COLLECTOR = (
    "without effect on the native engine: {names}. engine='kineto' passes them to torch's own collector."
)
_IN_MEMORY = "{names}: without effect, since torch's own collector keeps its recording in memory"


@dataclass(frozen=True)
class RecordingOptions:
    """The options of a session, which are checked on construction; see `profile` for a description of each.

    The metadata of each field is its declaration, an `Option`.

    Raises:
        ArgumentError: An option has a value that cannot be used; the message names it and the valid ones.
    """

    activities: Iterable[ActivityItem] | None = _declare(
        "What to record: the CPU, and kinds of devices.",
        _activities,
        stays="they are chosen when the program has imported torch",
        warnings={"native": _TORCHS_COLLECTOR, "hybrid": _TORCHS_COLLECTOR},
    )
    record_shapes: bool = _switch(
        "Record the shapes, dtypes and scalars of each operator's inputs.", flag="shapes", recorded=True
    )
    profile_memory: bool = _switch(
        "Record every allocation and free.",
        flag="memory",
        magic=("memory", "m"),
        recorded=True,
        warnings={
            "hybrid": "device memory is not recorded: torch reports it only to its own collector. engine='kineto' records it."
        },
    )
    with_stack: bool = _switch(
        "Record the Python stack of each operator.",
        flag="stack",
        magic=("no-stacks",),
        launched=True,
        recorded=True,
    )
    with_flops: bool = _switch(
        "Count the floating-point operations of each operator, from the shapes of its inputs.",
        flag="flops",
        recorded=True,
    )
    with_modules: bool = _switch(
        "Record the `nn.Module` path of each operator.",
        flag="modules",
        launched=True,
        recorded=True,
        warnings={
            "kineto": "{names}: torch's own collector records the modules of TorchScript only, unless it records stacks, too: add "
            "with_stack=True, or use engine='native'."
        },
    )
    only_requested: bool = _switch(
        "Record stacks and modules only if `with_stack` and `with_modules` request them; otherwise the native engine always "
        "does, because they cost almost nothing.",
        launched=True,
    )
    python_calls: bool = _switch(
        "Record every call of a Python function.", flag="python-calls", recorded=True
    )
    module_spans: bool = _switch(
        "Record every call of an `nn.Module` with its exact start and end, and the modules of operators.",
        flag="module-spans",
        recorded=True,
    )
    garbage_collection: bool = _switch(
        "Record collections of Python's garbage.",
        flag="gc",
        launched=True,
        warnings={
            "kineto": "without effect: {names}. The collector of torch {torch} cannot record collections of garbage; engine='native' can."
        },
    )
    tensor_versions: bool = _switch(
        "Record which storage each tensor of an operator has, and its version, to find work whose result existed already.",
        flag="tensor-versions",
        recorded=True,
        warnings={"kineto": "without effect: {names}. engine='native' records the versions of tensors."},
    )
    deep_steps: bool = _switch(
        "Record some steps in full, with the shapes of inputs and the versions of tensors, from which those of the other steps are "
        "estimated: the first ones, then one of 64.",
        flag="deep-steps",
        launched=True,
        recorded=True,
    )
    samples: bool = _switch(
        "Read the Python stack of every thread 100 times a second.", flag="samples", default=True
    )
    experimental_config: Any = _declare(
        "Settings of torch's collector.",
        _config,
        stays=_OBJECT_STAYS,
        warnings={"native": _TORCHS_COLLECTOR, "hybrid": _TORCHS_COLLECTOR},
    )
    execution_trace_observer: TraceObserver | None = _declare(
        "An observer that runs with each recording, such as `ExecutionTraceObserver`.",
        _observer,
        stays=_OBJECT_STAYS,
    )
    acc_events: bool = _switch("Keep every cycle, not only the last.")
    custom_trace_id_callback: Callable[[], str] | None = _declare(
        "Makes the id of each trace.", checked_callable, stays=_OBJECT_STAYS
    )
    post_processing_timeout_s: float | None = _declare(
        "For how many seconds torch may make its own event objects.",
        _seconds,
        warnings={
            "native": _TORCHS_COLLECTOR,
            "kineto": "without effect: {names}. The collector of torch {torch} has no such limit.",
        },
    )
    engine: EngineName | Engine = _declare(
        "Record with Kinetoscope's own recorder (native), torch's collector (kineto), or the best available (auto).",
        lambda _, value: checked_engine(value),
        flag="engine",
        choices=get_args(EngineName),
        stays="an engine object belongs to the process that made it; choose an engine by its name",
        default="auto",
    )
    path: Path | None = _declare(
        "The live recording file.",
        _file,
        stays="the recording of a program is named by its output",
        warnings={"kineto": _IN_MEMORY},
    )
    summary: Path | None = _declare("Where each cycle's summary goes.", checked_summary)
    ring_bytes: int | None = _declare(
        "Upper limit of the recording in bytes; the oldest records are overwritten.",
        _bytes,
        flag="ring",
        metavar="SIZE",
        flag_help="SIZE may have a unit, such as 64M.",
        read=units.parse_size,
        warnings={"kineto": _IN_MEMORY},
    )
    oom_report: Path | Literal[False] | None = _declare(
        "The file of the report on what held the memory when it runs out, where `profile_memory` is on.",
        _report_file,
    )
    sources: tuple[Source, ...] = _declare(
        "What records in addition to the engine, such as `SystemCounters()`.",
        lambda _, value: checked_sources(value),
        stays=_OBJECT_STAYS,
        default=(),
    )
    source: bool = _switch(
        "Store the text of hot source lines in the trace.", flag="source", magic=(), default=True
    )
    align_ranks: bool = _switch(
        "Synchronize the ranks of a job at the begin and end of each recording, to align their clocks."
    )
    on_error: OnError = _declare(
        "What becomes of an exception in `on_trace_ready` or of the observer.", _on_error, default="raise"
    )

    def __post_init__(self) -> None:
        """Check and normalize every option."""
        values = {name: getattr(self, name) for name in OPTIONS}
        checked = {
            name: value if value is None is OPTIONS[name].default else OPTIONS[name].check(name, value)
            for name, value in values.items()
        }
        # Not by setattr(), which a frozen dataclass refuses.
        vars(self).update(checked)

    @classmethod
    def launched(cls, **options: Any) -> RecordingOptions:
        """Build the options of a recording that Kinetoscope itself starts, of a program or a cell.

        Args:
            **options: The user's options; others have the defaults of the command line.

        Raises:
            ArgumentError: An option has a value that cannot be used.
        """
        return cls(**{name: option.when_launched for name, option in OPTIONS.items()} | options)

    def to_json(self) -> dict[str, Any]:
        """Convert the options to JSON values for another process, where `RecordingOptions(**values)` restores them.

        Raises:
            ArgumentError: An option has a value that cannot be passed to another process.
        """
        values = {}
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if option.stays and value == option.default:
                continue
            # The name of an engine can be passed, an engine object cannot.
            if option.stays and not isinstance(value, str):
                raise ArgumentError(f"{name}={value!r} cannot be passed to another process: {option.stays}.")
            values[name] = str(value) if isinstance(value, Path) else value
        return values

    @cached_property
    def activity_choices(self) -> Mapping[ProfilerActivity, ActivityChoice]:
        """What to record of each activity."""
        from kinetoscope.collect.request.activities import checked_choices

        return checked_choices(self.activities)

    @property
    def activity_filters(self) -> dict[ProfilerActivity, frozenset[str]]:
        """The event kinds to record, for activities whose kinds were selected."""
        choices = self.activity_choices.items()
        return {activity: choice.kinds for activity, choice in choices if choice.kinds is not None}

    @property
    def extension_configs(self) -> tuple[Any, ...]:
        """Settings of extensions of torch's collector, such as torch's `PerformanceMetricsConfig`, of all activities."""
        return tuple(config for choice in self.activity_choices.values() for config in choice.configs)

    @property
    def recorded(self) -> dict[str, str]:
        """The switches that are on and stored in the metadata of a trace, each with the JSON text `1`."""
        return {name: "1" for name, option in OPTIONS.items() if option.recorded and getattr(self, name)}

    @property
    def needs_shapes(self) -> bool:
        """Whether shapes must be recorded, also to count floating-point operations, and to tell calls apart that are given the same tensors."""
        return self.record_shapes or self.with_flops or self.tensor_versions

    @property
    def needs_stacks(self) -> bool:
        """Whether the native recorder records the stacks of operators."""
        return self.with_stack or not self.only_requested

    @property
    def needs_modules(self) -> bool:
        """Whether the native recorder records the modules of operators, which it also needs to record module calls."""
        return self.with_modules or self.module_spans or not self.only_requested

    @property
    def needs_python_stacks(self) -> bool:
        """Whether torch's collector must record stacks: only then does it record Python calls and garbage collections."""
        return self.with_stack or self.python_calls or self.module_spans or self.garbage_collection


# The declarations of all options, by name.
OPTIONS: Mapping[str, Option] = {
    one.name: dataclasses.replace(one.metadata[_DECLARATION], name=one.name, default=one.default)
    for one in dataclasses.fields(RecordingOptions)
}
OPTION_NAMES = frozenset(OPTIONS)
SWITCHES = tuple(name for name, option in OPTIONS.items() if option.is_switch)


@dataclass(frozen=True)
class RecordingRequest:
    """What an engine records in one cycle of a session.

    Attributes:
        activities: The activities to record; the machine supports all of them, and there is at least one.
        options: The options of the session.
        record_function_ids: Record torch's own id of each operator call, which execution traces refer to.
        torch_objects: Let torch's own collector, if it is used, make event objects for `prof.profiler`.
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
        """The event kinds to record, for activities whose kinds were selected."""
        filters = self.options.activity_filters.items()
        return {activity: kinds for activity, kinds in filters if activity in self.activities}
