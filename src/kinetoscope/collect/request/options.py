"""What a session is made with: its options, and the interfaces of the engines, sources and observers among them.

Imports no torch: the launcher holds the options of a program that has not imported torch yet.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, get_args

from kinetoscope._errors import ArgumentError, ArgumentTypeError, StateError
from kinetoscope.model import units
from kinetoscope.summaries import SUFFIX

if TYPE_CHECKING:
    from torch.profiler import ProfilerActivity

    from kinetoscope.collect.request.activities import ActivityChoice, ActivityItem
    from kinetoscope.trace import Trace

EngineName = Literal["auto", "native", "kineto"]
OnError = Literal["raise", "warn"]
ReportPath = str | os.PathLike[str] | Literal[False] | None

# The native engine with a device is the hybrid one.
EngineKind = Literal["native", "hybrid", "kineto"]

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
    """What a source of the program's own has for one recording: what only it knows how to add to a trace.

    The sources of Kinetoscope append rows to the recording instead, see `Source`.

    It may also have `and_later(later) -> Gathered`, which combines it with what the same source gathered for a later
    recording, for one trace of all cycles.
    """

    def add_to(self, trace: Trace) -> Trace:
        """Return the trace with this in it: a new one, or the same. Called when a trace is built; leaves this as it is."""
        ...

    def discard(self) -> None:
        """Discard it: the trace will not be built."""
        ...


class AppendRows(Protocol):
    """Writes rows of a named table into the recording in progress.

    With the native engine they survive a killed process; engines without a file keep them until the recording is read. Kinetoscope
    reads the table `counters` (`monotonic_ns`, `name` and `value`) and those of its own sources.
    """

    def __call__(self, table: str, columns: Mapping[str, Sequence[Any]], *, buffered: bool = False) -> bool:
        """Write rows: for each column, by its name, the list of its values, as JSON has them.

        `buffered` says that the caller keeps rows back for up to a second. False if this recording has ended.
        """
        ...


class Source(Protocol):
    """Something that records in addition to the engine.

    It may also have `write_to(append: AppendRows)`, which is called after `start`, once the recording has begun; `append` can be
    called until `stop` returns. What is written there does not have to be in what `stop` returns.
    """

    def open(self) -> None:
        """The session begins; recordings may follow at any time."""
        ...

    def start(self) -> None:
        """A recording begins right after this."""
        ...

    def stop(self) -> Gathered | None:
        """The recording ends right after this; must be quick, and leaves what takes time to `add_to`. None if all is written."""
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


def _bytes(name: str, value: object) -> int | None:
    """A number of bytes that can be used."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or value.__index__() <= 0:
        raise ArgumentError(f"{name}={value!r} is not valid: need a whole number of bytes above 0, or None.")
    return value.__index__()


def _file(name: str, path: object, need: str = "need the name of a file, or None") -> Path | None:
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


def _report_file(name: str, path: object) -> Path | Literal[False] | None:
    """The file of a report, or False for none."""
    return False if path is False else _file(name, path, _REPORT)


def _observer(name: str, observer: TraceObserver | None) -> TraceObserver | None:
    """An observer that can be started, stopped and cleaned up, or nothing."""
    if observer is not None and (isinstance(observer, type) or not _has_calls(observer, _OBSERVER_CALLS)):
        raise ArgumentError(
            f"{name}={observer!r} is not valid: need an object with start(), stop() and cleanup(), "
            "such as ExecutionTraceObserver().register_callback(path), or None."
        )
    return observer


def _on_error(name: str, value: OnError) -> OnError:
    """What becomes of an exception."""
    if value not in get_args(OnError):
        raise ArgumentError(f"{name}={value!r} is not valid: choose 'raise' or 'warn'.")
    return value


def _activities(_name: str, activities: Iterable[ActivityItem] | None) -> tuple[ActivityItem, ...] | None:
    """Activities that torch knows."""
    if activities is None:
        return None
    from kinetoscope.collect.request.activities import as_items, checked_choices

    return as_items(checked_choices(activities))


def _config(_name: str, config: Any) -> Any:
    """torch's own settings object, or nothing."""
    if config is None:
        return None
    from kinetoscope.collect.request.torch_settings import checked_config

    return checked_config(config)


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


@dataclass(frozen=True)
class Limit:
    """What an engine does not do of an option.

    Attributes:
        note: What it does, for the table of options.
        warning: What a session says where the option is set; `{names}` becomes what has no effect, `{torch}` the version of torch.
            Empty where nobody asked: the option is on by default, or the engine does so in any case.
    """

    note: str
    warning: str = ""


@dataclass(frozen=True)
class Option:
    """The declaration of an option: commands, keywords, documents and warnings are made from it or checked against it.

    Attributes:
        help: What it does, in one sentence.
        check: Takes the name and a value, and returns the value in the form in which it is read, or raises ArgumentError.
        values: The valid values, for the table of options.
        flag: Its long option of `kinetoscope run`, without the dashes; `launch` has the keyword. Empty: neither has it.
        choices: The texts that the command line accepts.
        flag_help: What the help of the command line says in addition.
        metavar: What the command line calls its value; switches and choices have none.
        read: Makes a value of the text of the command line.
        magic: Its options of `%%kinetoscope`, the long one first, without the dashes; one that begins with `no-` turns it off.
        launched: Its value where Kinetoscope starts a program or a cell, and the user chose none; None: the default.
        stays: Why values other than the default cannot be passed to another process; empty if they can.
        recorded: Whether it decides what is recorded, and is in the metadata of the trace.
        limits: What engines do not do of it; an engine that is not named honors it.
        name: The keyword.
        default: The value of a session where the user chose none.
    """

    help: str
    check: Callable[[str, Any], Any]
    values: str = "`True`, `False`"
    flag: str = ""
    choices: tuple[str, ...] = ()
    flag_help: str = ""
    metavar: str = ""
    read: Callable[[str], Any] | None = None
    magic: tuple[str, ...] = ()
    launched: Any = None
    stays: str = ""
    recorded: bool = False
    limits: Mapping[EngineKind, Limit] = field(default_factory=dict)
    name: str = ""
    default: Any = None

    @property
    def is_switch(self) -> bool:
        """Whether its values are True and False."""
        return self.check is checked_switch

    @property
    def when_launched(self) -> Any:
        """Its value where Kinetoscope starts a program or a cell, and the user chose none."""
        return self.default if self.launched is None else self.launched

    @property
    def long_flag(self) -> str:
        """Its option of `kinetoscope run`, as people write it to change the default: `--shapes`, `--no-stack`, `--ring`."""
        return f"--{'no-' if self.when_launched is True else ''}{self.flag}" if self.flag else ""


def _declare(help: str, check: Callable[[str, Any], Any], **more: Any) -> dict[str, Option]:  # noqa: A002
    """The metadata of a field of `RecordingOptions`."""
    return {_DECLARATION: Option(help, check, **more)}


def _switch(help: str, **more: Any) -> dict[str, Option]:  # noqa: A002
    """The metadata of a field that is True or False."""
    return _declare(help, checked_switch, **more)


_DECLARATION = "option"
_OBJECT_STAYS = "it is an object of this process"
_TORCHS_COLLECTOR = (
    "without effect on the native engine: {names}. engine='kineto' passes them to torch's own collector."
)
_IN_MEMORY = "{names}: without effect, since torch's own collector keeps its recording in memory"


@dataclass(frozen=True)
class RecordingOptions:
    """The options of a session, checked when they are made; `profile` describes each of them.

    Each field has its declaration as metadata, an `Option`; docs/options.md is a table of them.

    Raises:
        ArgumentError: An option has a value that cannot be used; the message names it and the valid ones.
    """

    activities: tuple[ActivityItem, ...] | None = field(
        default=None,
        metadata=_declare(
            "What to record: the processor, and kinds of devices.",
            _activities,
            values="torch's `ProfilerActivity`, a list; `None`: all that the machine has",
            stays="they are chosen when the program has imported torch",
            limits={
                "native": Limit("the host, all kinds of events", _TORCHS_COLLECTOR),
                "hybrid": Limit("all kinds of events of the host", _TORCHS_COLLECTOR),
            },
        ),
    )
    record_shapes: bool = field(
        default=False,
        metadata=_switch(
            "Record the shapes, dtypes and scalars of each operator's inputs.",
            flag="shapes",
            magic=("shapes",),
            recorded=True,
        ),
    )
    profile_memory: bool = field(
        default=False,
        metadata=_switch(
            "Record every allocation and free.",
            flag="memory",
            magic=("memory", "m"),
            recorded=True,
            limits={
                "hybrid": Limit(
                    "memory of the host only",
                    "device memory is not recorded: torch reports it only to its own collector. engine='kineto' records it.",
                )
            },
        ),
    )
    with_stack: bool = field(
        default=False,
        metadata=_switch(
            "Record the Python stack of each operator.",
            flag="stack",
            magic=("no-stacks",),
            launched=True,
            recorded=True,
        ),
    )
    with_flops: bool = field(
        default=False,
        metadata=_switch(
            "Count the floating-point operations of each operator, from the shapes of its inputs.",
            flag="flops",
            magic=("flops",),
            recorded=True,
        ),
    )
    with_modules: bool = field(
        default=False,
        metadata=_switch(
            "Record the `nn.Module` path of each operator.",
            flag="modules",
            magic=("no-modules",),
            launched=True,
            recorded=True,
            limits={
                "kineto": Limit(
                    "TorchScript; all with `with_stack`",
                    "{names}: torch's own collector records the modules of TorchScript only, unless it records stacks, too: add "
                    "with_stack=True, or use engine='native'.",
                )
            },
        ),
    )
    only_requested: bool = field(
        default=False,
        metadata=_switch(
            "Record stacks and modules only if `with_stack` and `with_modules` request them; otherwise the native engine always "
            "does, because they cost almost nothing.",
            launched=True,
            limits={"kineto": Limit("always")},
        ),
    )
    python_calls: bool = field(
        default=False,
        metadata=_switch(
            "Record every call of a Python function.",
            flag="python-calls",
            magic=("python-calls",),
            recorded=True,
        ),
    )
    module_spans: bool = field(
        default=False,
        metadata=_switch(
            "Record every call of an `nn.Module` with its exact start and end, and the modules of operators.",
            flag="module-spans",
            magic=("module-spans",),
            recorded=True,
        ),
    )
    garbage_collection: bool = field(
        default=False,
        metadata=_switch(
            "Record collections of Python's garbage.",
            flag="gc",
            magic=("gc",),
            limits={
                "kineto": Limit(
                    "from torch 2.9 on",
                    "without effect: {names}. The collector of torch {torch} cannot record collections of garbage; "
                    "engine='native' can.",
                )
            },
        ),
    )
    samples: bool = field(
        default=True,
        metadata=_switch(
            "Read the Python stack of every thread 100 times a second.",
            flag="samples",
            magic=("no-samples",),
            # On by default, so a warning would come with every session.
            limits={"kineto": Limit("no")},
        ),
    )
    experimental_config: Any = field(
        default=None,
        metadata=_declare(
            "Settings of torch's collector.",
            _config,
            values="torch's `_ExperimentalConfig`, `None`",
            stays=_OBJECT_STAYS,
            limits={
                "native": Limit("what the native engine does in any case", _TORCHS_COLLECTOR),
                "hybrid": Limit("for devices, without the metadata of events", _TORCHS_COLLECTOR),
            },
        ),
    )
    execution_trace_observer: TraceObserver | None = field(
        default=None,
        metadata=_declare(
            "An observer that runs with each recording, such as `ExecutionTraceObserver`.",
            _observer,
            values="an object with `start()`, `stop()` and `cleanup()`, `None`",
            stays=_OBJECT_STAYS,
        ),
    )
    acc_events: bool = field(default=False, metadata=_switch("Keep every cycle, not only the last."))
    custom_trace_id_callback: Callable[[], str] | None = field(
        default=None,
        metadata=_declare(
            "Makes the id of each trace.",
            checked_callable,
            values="a function that returns a string; `None`: random ids",
            stays=_OBJECT_STAYS,
        ),
    )
    post_processing_timeout_s: float | None = field(
        default=None,
        metadata=_declare(
            "For how many seconds torch may make its own event objects.",
            _seconds,
            values="0 or more; `None`: no limit",
            limits={
                "native": Limit("no", _TORCHS_COLLECTOR),
                "kineto": Limit(
                    "if torch has it",
                    "without effect: {names}. The collector of torch {torch} has no such limit.",
                ),
            },
        ),
    )
    engine: EngineName | Engine = field(
        default="auto",
        metadata=_declare(
            "Record with Kinetoscope's own recorder (native), torch's collector (kineto), or the best available (auto).",
            lambda _, value: checked_engine(value),
            values='`"auto"`, `"native"`, `"kineto"`, or an engine object',
            flag="engine",
            choices=get_args(EngineName),
            stays="an engine object belongs to the process that made it; choose an engine by its name",
        ),
    )
    path: Path | None = field(
        default=None,
        metadata=_declare(
            "The live recording file.",
            _file,
            values="the name of a file; `None`: a private temporary one",
            stays="the recording of a program is named by its output",
            limits={"kineto": Limit("no", _IN_MEMORY)},
        ),
    )
    summary: Path | None = field(
        default=None,
        metadata=_declare(
            "Where each cycle's summary goes.",
            checked_summary,
            values="a folder, or a `.parquet` file; `None`: no summary",
        ),
    )
    ring_bytes: int | None = field(
        default=None,
        metadata=_declare(
            "Upper limit of the recording in bytes; the oldest records are overwritten.",
            _bytes,
            values="a whole number above 0; `None`: no limit",
            flag="ring",
            metavar="SIZE",
            flag_help="SIZE may have a unit, such as 64M.",
            read=units.parse_size,
            limits={"kineto": Limit("no", _IN_MEMORY)},
        ),
    )
    oom_report: Path | Literal[False] | None = field(
        default=None,
        metadata=_declare(
            "The file of the report on what held the memory when it runs out, where `profile_memory` is on.",
            _report_file,
            values="the name of a file; `None`: a default name; `False`: no report",
        ),
    )
    sources: tuple[Source, ...] = field(
        default=(),
        metadata=_declare(
            "What records in addition to the engine, such as `SystemCounters()`.",
            lambda _, value: checked_sources(value),
            values="a list of sources",
            stays=_OBJECT_STAYS,
        ),
    )
    source: bool = field(
        default=True,
        metadata=_switch("Store the text of hot source lines in the trace.", flag="source"),
    )
    align_ranks: bool = field(
        default=False,
        metadata=_switch(
            "Synchronize the ranks of a job at the begin and end of each recording, to align their clocks."
        ),
    )
    on_error: OnError = field(
        default="raise",
        metadata=_declare(
            "What becomes of an exception in `on_trace_ready` or of the observer.",
            _on_error,
            values='`"raise"`, `"warn"`',
        ),
    )

    def __post_init__(self) -> None:
        """Check every option, and bring it into the one form in which it is read."""
        checked = {name: option.check(name, getattr(self, name)) for name, option in OPTIONS.items()}
        # Past the frozen setters: this is still the making of the object.
        vars(self).update(checked)

    @classmethod
    def launched(cls, **given: Any) -> RecordingOptions:
        """The options of a recording that Kinetoscope itself starts, of a program or a cell.

        Args:
            **given: What the user chose; the rest has the defaults of the command line.

        Raises:
            ArgumentError: An option has a value that cannot be used.
        """
        return cls(**{name: option.when_launched for name, option in OPTIONS.items()} | given)

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values, for another process; `RecordingOptions(**values)` makes them again.

        Raises:
            ArgumentError: An option has a value that cannot be passed to another process.
        """
        values = {}
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if option.stays and value == option.default:
                continue
            # An engine has a name, too.
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
    def extension_configs(self) -> tuple[Any, ...]:
        """Settings of parts of torch's collector, of all activities, such as torch's `PerformanceMetricsConfig`."""
        if self.activities is None:
            return ()
        return tuple(config for choice in self.activity_choices.values() for config in choice.configs)

    @property
    def recorded(self) -> dict[str, bool]:
        """The switches that decide what is recorded, by name."""
        return {name: getattr(self, name) for name, option in OPTIONS.items() if option.recorded}

    @property
    def needs_shapes(self) -> bool:
        """Whether shapes are recorded: floating-point operations are counted from them."""
        return self.record_shapes or self.with_flops

    @property
    def needs_stacks(self) -> bool:
        """Whether our recorder records the stacks of operators."""
        return self.with_stack or not self.only_requested

    @property
    def needs_modules(self) -> bool:
        """Whether our recorder records the modules of operators: it finds module calls by them."""
        return self.with_modules or self.module_spans or not self.only_requested

    @property
    def needs_python_stacks(self) -> bool:
        """Whether torch's collector has to record stacks: it has calls and collections of garbage only with them."""
        return self.with_stack or self.python_calls or self.module_spans or self.garbage_collection


# The declaration of each option, by its name.
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
