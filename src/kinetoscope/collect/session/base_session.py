"""The base session: prepare, start and stop one recording after another, and read them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

import torch

from kinetoscope._errors import (
    ArgumentError,
    ArgumentTypeError,
    KinetoscopeError,
    NotRecordedError,
    StateError,
)
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.engines.choose import (
    choose_engine,
    records_garbage_collection,
    warn_of_ignored_settings,
)
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import (
    GARBAGE_COLLECTION_SETTING,
    check_that_something_is_recorded,
    noted_settings,
    recordable,
)
from kinetoscope.collect.request.options import (
    Engine,
    EngineName,
    RecordingOptions,
    RecordingRequest,
    Source,
    StillRecordingError,
)
from kinetoscope.collect.process.devices import described_devices
from kinetoscope.collect.process.rank import numbered, rank_filled_in, rank_info, ranked
from kinetoscope.collect.session import metadata
from kinetoscope.collect.session.cycle import Cycle, FinishedCycles, Stopwatch
from kinetoscope.collect.session.observer_window import ObserverWindow
from kinetoscope.collect.session.reading import ReadsCycles
from kinetoscope.collect.session.source_window import SourceWindow
from kinetoscope.collect.session.torch_api import TorchSessionApi
from kinetoscope.collect.sources.compiled_kernels import COMPILED_MODULES, CompiledKernels
from kinetoscope.collect.sources.compiling import COMPILE_HOOKS, Compiling
from kinetoscope.collect.sources.ranges import ROUTES, TORCH_RANGES
from kinetoscope.summaries import SUFFIX
from kinetoscope.tables.host.source_lines import SOURCE_LINES
from kinetoscope.torch_events.event_tree import FLOPS_OF_EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from kinetoscope.collect.request.options import OnError
    from kinetoscope.trace import Trace


# Exceptions of user callbacks, raised only after the session has finished its own work.


@contextmanager
def yielding_to_interrupts(call: str) -> Iterator[bool]:
    """While an interrupt propagates, as in `finally: prof.stop()`, do not replace it by an error of ours.

    Yields:
        Whether the call may raise; if not, its exception becomes a warning.
    """
    leaving = sys.exc_info()[1]
    may_raise = leaving is None or isinstance(leaving, Exception)
    try:
        yield may_raise
    except Exception as error:
        if may_raise:
            raise
        warn_user(f"{call} failed: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Closed:
    """The result of closing a recording: whether there was one, and which failure to report to the user."""

    recorded: bool = False
    failure: BaseException | None = None
    whose: str = "the execution trace observer"


# Whose failure the exception of a program's signal handler is.
HANDLER = "the handler of a signal"


@dataclass(frozen=True)
class _Failure:
    """An exception, and which callback raised it."""

    whose: str
    error: BaseException


class Failures:
    """What failed during one transition of a session."""

    def __init__(self, on_error: OnError, step: int) -> None:
        """Begin without any; `step` appears in warnings."""
        self._on_error = on_error
        self._step = step
        self._waiting: list[_Failure] = []

    def note(self, whose: str, error: BaseException) -> None:
        """Store an exception until the end, or make it a warning if `on_error` says so; interrupts are always stored.

        So is what a handler of a signal raised, which is the program's own affair.
        """
        if self._on_error == "raise" or not isinstance(error, Exception) or whose == HANDLER:
            self._waiting.append(_Failure(whose, error))
        else:
            warn_user(
                f"{whose} failed at step {self._step}, profiling continues: {type(error).__name__}: {error}"
            )

    def raise_first(self, *, may_raise: bool) -> None:
        """Raise the first exception and warn of the others; if none may be raised, raise interrupts only."""
        out = next((one for one in self._waiting if may_raise or not isinstance(one.error, Exception)), None)
        for one in self._waiting:
            if one is not out:
                warn_user(f"{one.whose} failed: {type(one.error).__name__}: {one.error}")
        if out is not None:
            raise out.error


# A session belongs to the process that made it; this decides what a fork of that process may do with it.

P = ParamSpec("P")


class _Owned(Protocol):
    """The part of a session that ownership needs."""

    _owner: Owner

    def _is_under_way(self) -> bool: ...

    def _reset_in_child(self) -> None: ...


S = TypeVar("S", bound=_Owned)


class Owner:
    """Which process a session belongs to."""

    def __init__(self) -> None:
        """The present process."""
        self.process = os.getpid()
        self._warned = False

    def refuses(self, session: _Owned, call: str) -> bool:
        """Whether a call must do nothing because it comes from a fork while the parent's session is active."""
        if self.process == os.getpid():
            return False
        if not session._is_under_way():
            # Nothing of the parent's is active: the child may use the session as its own, with nothing inherited.
            self.process = os.getpid()
            session._reset_in_child()
            return False
        if not self._warned:
            self._warned = True
            warn_user(
                f"{call}() was called in process {os.getpid()}, a fork of process {self.process}, which owns "
                "this session: the call has no effect. Create a session in the child to record it."
            )
        return True


def by_owner(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Make a method do nothing in a fork of the process that owns the session."""
    call = method.__name__.strip("_")

    @functools.wraps(method)
    def checked(self: S, *args: P.args, **keywords: P.kwargs) -> None:
        if not self._owner.refuses(self, call):
            method(self, *args, **keywords)

    checked_method: Any = checked
    found: Callable[Concatenate[S, P], None] = checked_method
    return found


# The id of each recorded cycle, by which its trace can be found again elsewhere.


def new_trace_id(callback: Callable[[], str] | None) -> str:
    """Return the id from the user's callback; without one a random id, 32 hexadecimal digits, as torch does.

    Raises:
        ArgumentError: The callback did not return a string.
    """
    if callback is None:
        return uuid.uuid4().hex.upper()
    made = callback()
    if not isinstance(made, str):
        raise ArgumentTypeError(
            f"custom_trace_id_callback returned {made!r}: it must return a string, the id of the trace."
        )
    return made


# Signals that are deferred while a recording is prepared, started or stopped.
#
# torch's `DataLoader` has a handler for the end of a child process that raises an error when a worker has died, wherever the program
# happens to be. If that is in the middle of closing a recording, the trace of exactly that failure would be lost. An interrupt
# from the keyboard there would leave the recorder running. What a program's own handler raises, such as the TimeoutError of an
# alarm, must not be taken for a failure of a recording, of which most are warnings.

_NAMES = [
    "SIGALRM",
    "SIGCHLD",
    "SIGCONT",
    "SIGHUP",
    "SIGIO",
    "SIGPROF",
    "SIGQUIT",
    "SIGTERM",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
]


class DeferredSignals:
    """Defer the program's signal handlers: on exit each one is called once if its signal arrived.

    A second interrupt is not deferred, so that Ctrl+C pressed twice works. Does nothing outside the main thread, where no
    handler is called, and for signals that the program does not handle.

    Attributes:
        error: What a handler raised when it was called afterwards; an interrupt rather than an error.
    """

    def __init__(self, *, interrupts: bool = True) -> None:
        """Defer nothing yet; without `interrupts`, the one of the keyboard is never deferred."""
        self._names = [*_NAMES, "SIGINT"] if interrupts else _NAMES
        self.error: BaseException | None = None
        self._handlers: dict[int, Any] = {}
        self._holds = False
        self._came: dict[int, tuple[Any, ...]] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._holds = True
        for number in (getattr(signal, name) for name in self._names if hasattr(signal, name)):
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._holds:
            return
        for number, handler in self._handlers.items():
            # Another handler may have been installed meanwhile, which may call this one.
            if signal.getsignal(number) == self._note:
                signal.signal(number, handler)
        self._holds = False
        for number, came in self._came.items():
            try:
                self._handlers[number](*came)
            except BaseException as raised:  # noqa: BLE001  (the caller decides whether it may come out)
                if self.error is None or not isinstance(raised, Exception):
                    self.error = raised
        if error is not None and self.error is not None and not isinstance(self.error, Exception):
            # The caller does not get to read it.
            raise self.error

    def raise_error(self) -> None:
        """Raise what a handler raised, if one did."""
        if self.error is not None:
            raise self.error

    def _note(self, number: int, *rest: Any) -> None:
        """The handler while signals are deferred."""
        if self._holds and not (number == signal.SIGINT and number in self._came):
            self._came[number] = (number, *rest)
        else:
            self._handlers[number](number, *rest)


# Out of memory during a session: the report that is written before the exception propagates.

# The message of torch's host allocator, on every system.
_HOST_SAYS = re.compile(r"DefaultCPUAllocator: (not enough memory|can't allocate memory)")
_HOST_WANTED = re.compile(r"tried to allocate (\d+) bytes")
_DEVICE_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_DEVICE_NUMBER = re.compile(r"\b(?:GPU|device) (\d+)\b")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_OWN = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception says that memory ran out: torch's of a device or of the host, or Python's own."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and _HOST_SAYS.search(str(error)) is not None


def report_out_of_memory(
    trace: Callable[[], Trace], oom_report: Path | Literal[False] | None, recording: Path | None
) -> None:
    """Write the report if the exception being handled is an out-of-memory error.

    The exception gets a note with the report's path. A report that cannot be written is a
    warning, where warnings are errors a note as well.

    Args:
        trace: Gives the trace that ends with the failure.
        oom_report: Where the text goes, as in `RecordingOptions`; the page goes next to it.
        recording: The file of the recording; a report without a given path goes next to it, else to the working directory.
    """
    error = sys.exc_info()[1]
    if error is None or oom_report is False or not is_out_of_memory(error):
        return
    try:
        text_path, page_path = _places(oom_report, recording)
        _write_report(trace(), error, text_path, page_path)
        error.add_note(f"kinetoscope: what held the memory is reported in {text_path} and {page_path}")
    except Exception as failure:  # noqa: BLE001  (whatever it is, the program's own exception matters more)
        message = f"the out-of-memory report could not be written: {type(failure).__name__}: {failure}"
        try:
            warn_user(message)
        except Warning:
            error.add_note(f"kinetoscope: {message}")


def _write_report(trace: Trace, error: BaseException, text_path: Path, page_path: Path) -> None:
    """Write the text and, below the same description of the failure, the memory page."""
    import_aside("kinetoscope.viewer.report")
    from kinetoscope.display.out_of_memory import failure_lines, memory_lines
    from kinetoscope.storage.atomic_write import open_atomically
    from kinetoscope.viewer.report import write_memory_page

    failure = failure_lines(
        trace,
        failure=f"{type(error).__name__}: {error}",
        where=_where(error),
        requested_bytes=_requested_bytes(str(error)),
    )
    device = _device(error)
    try:
        held = memory_lines(trace, device)
    except ArgumentError:
        # Memory ran out on a device whose allocations were not recorded.
        device = None
        held = memory_lines(trace, device)
    with open_atomically(text_path) as file:
        file.write("\n".join([*failure, "", *held, ""]).encode("utf-8", "backslashreplace"))
    write_memory_page(trace, page_path, device, notice="\n".join(line for line in failure if line))


def _places(oom_report: Path | None, recording: Path | None) -> tuple[Path, Path]:
    """The files of the text and of the page."""
    if oom_report is not None:
        text = oom_report if oom_report.suffix else oom_report.with_suffix(".txt")
    elif recording is not None:
        text = recording.with_name(f"{recording.stem}.oom.txt")
    else:
        text = Path.cwd() / f"kinetoscope-oom-{os.getpid()}-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    page = text.with_name(f"{text.stem}.memory.html")
    return text.absolute(), page.absolute()


def _where(error: BaseException) -> str | None:
    """The innermost line of the program that the exception came through, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    own = [frame for frame in frames if not frame.filename.startswith((_OWN, _TORCH, "<frozen"))]
    frame = (own or frames)[-1]
    return f"{frame.filename}({frame.lineno}): {frame.name}" + (f"    {frame.line}" if frame.line else "")


def _requested_bytes(message: str) -> int | None:
    """The size of the failed allocation in bytes; None if the message has none."""
    if found := _HOST_WANTED.search(message):
        return int(found[1])
    if found := _DEVICE_WANTED.search(message):
        return int(float(found[1]) * _UNITS[found[2]])
    return None


def _device(error: BaseException) -> str | None:
    """The device that ran out of memory; None if the exception does not name it."""
    if not isinstance(error, torch.OutOfMemoryError):
        return "cpu"
    number = _DEVICE_NUMBER.search(str(error))
    kind = next((name for name in ("xpu", "mps", "hpu", "mtia") if name in str(error).lower()), "cuda")
    return f"{kind}:{number[1]}" if number else kind


# The sessions that record in this process: any number on our recorder, and one on each other engine, because two would mix their
# records.


class ActiveSessions:
    """The active sessions of this process, each with its engine."""

    def __init__(self) -> None:
        """Begin empty."""
        self._lock = threading.RLock()
        self._sessions: list[tuple[weakref.ref[_KinetoProfile], Engine]] = []

    def acquire(self, session: _KinetoProfile, engine: Engine) -> None:
        """Make a session active; StateError if another one takes its engine. A second call does nothing."""
        with self._lock:
            self._stop_abandoned()
            if why := self.why_not(session, engine):
                raise StateError(
                    f"another Kinetoscope session is already recording in this process: {why}. Stop it before starting a second "
                    "one."
                )
            if all(found() is not session for found, _ in self._sessions):
                self._sessions.append((weakref.ref(session), engine))

    def release(self, session: _KinetoProfile) -> None:
        """Make a session inactive; does nothing if it is not active."""
        # Before the lock: Python 3.12 does not release a lock if an interrupt hits a comprehension with a condition.
        own = [one for one in list(self._sessions) if one[0]() is session]
        with self._lock:
            for one in own:
                if one in self._sessions:
                    self._sessions.remove(one)

    def why_not(self, session: _KinetoProfile, engine: Engine) -> str:
        """Why a session cannot record with an engine while other sessions are active; empty if it can."""
        others = [other for found, other in list(self._sessions) if found() not in (None, session)]
        same = [other for other in others if other.name == engine.name]
        if not same:
            return ""
        beside: Callable[[list[Engine], RecordingOptions], str] | None = getattr(
            engine, "why_not_beside", None
        )
        if beside is None:
            return f"the engine {engine.name!r} makes one recording at a time"
        return beside(same, session._options)

    def current(self) -> _KinetoProfile | None:
        """The active session that began first; None if there is none."""
        active = (found() for found, _ in list(self._sessions))
        return next((session for session in active if session is not None), None)

    def reset_in_child(self) -> None:
        """Forget the parent's sessions after a fork, with a new lock."""
        self.__init__()  # type: ignore[misc]

    def _stop_abandoned(self) -> None:
        """Stop the recordings of sessions that were dropped without stop(): nobody can reach them."""
        for one in list(self._sessions):
            if one[0]() is None:
                self._sessions.remove(one)
                with contextlib.suppress(KinetoscopeError):
                    one[1].stop().discard()


ACTIVE_SESSIONS = ActiveSessions()
os.register_at_fork(after_in_child=ACTIVE_SESSIONS.reset_in_child)


Value = TypeVar("Value")


class _Option(Generic[Value]):
    """An option of a session as an attribute; what it is set to is checked, and counts from the next cycle on."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, session: None, owner: type) -> Self: ...
    @overload
    def __get__(self, session: _KinetoProfile, owner: type) -> Value: ...
    def __get__(self, session: _KinetoProfile | None, owner: type) -> Self | Value:
        if session is None:
            return self
        value: Value = getattr(session._options, self._name)
        return value

    def __set__(self, session: _KinetoProfile, value: Value) -> None:
        changed: dict[str, Any] = {self._name: value}
        session._options = dataclasses.replace(session._options, **changed)


class _KinetoProfile(TorchSessionApi, ReadsCycles):
    """A session without a schedule: `prepare_trace`, `start_trace` and `stop_trace` are called by hand.

    Args:
        **options: The arguments of `profile` but `schedule`, `on_trace_ready` and `use_cuda`.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it and the valid ones.
    """

    # What "auto" means for the classes that `install` puts in place of torch's.
    _default_engine: EngineName = "auto"
    # Whether a program that was written for torch.profiler records: its event lists count what torch's do.
    _in_place_of_torch = False

    # In torch these are plain attributes, which programs read and set between cycles.
    record_shapes = _Option[bool]()
    profile_memory = _Option[bool]()
    with_stack = _Option[bool]()
    with_flops = _Option[bool]()
    with_modules = _Option[bool]()
    python_calls = _Option[bool]()
    module_spans = _Option[bool]()
    garbage_collection = _Option[bool]()
    source = _Option[bool]()
    samples = _Option[bool]()
    acc_events = _Option[bool]()
    experimental_config = _Option[Any]()
    custom_trace_id_callback = _Option[Callable[[], str] | None]()
    post_processing_timeout_s = _Option[float | None]()

    def __init__(self, **options: Any) -> None:
        self._set_up(RecordingOptions(**options))

    def _set_up(self, options: RecordingOptions) -> None:
        """Make the session of these options; nothing is recorded yet."""
        if options.engine == "auto" != self._default_engine:
            options = dataclasses.replace(options, engine=self._default_engine)
        self._options = options
        self.activities = set(options.activity_choices)
        self.activity_filters = {
            activity: set(choice.kinds)
            for activity, choice in options.activity_choices.items()
            if choice.kinds is not None
        }
        self._recordable = recordable(self.activities)
        self._metadata = metadata.Metadata()
        self._observer = ObserverWindow(options.execution_trace_observer)
        self._sources = SourceWindow(self._own_sources(options))
        # What is compiled before the session records is in its recording, too.
        COMPILED_MODULES.watch()
        # Guards the fields below. Never held while a user's code runs.
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._engine_is_for_one_cycle = False
        self._state = "idle"
        self._cycles_begun = 0
        self._cycles = FinishedCycles(keep_all=options.acc_events)
        self._trace_id: str | None = None
        self._stopwatch = Stopwatch()
        self._owner = Owner()
        self._warned_of: set[str] = set()

    def _own_sources(self, options: RecordingOptions) -> tuple[Source, ...]:
        """The sources of these options, and those that every session has."""
        return Compiling(), CompiledKernels(), *options.sources

    # ------------------------------------------------------------------------------------------------- metadata

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text to the trace: the one that records now or next or, after stop, the finished one.

        Args:
            key: Top-level key of the exported trace.
            value: Any string.

        Raises:
            ArgumentError: The key belongs to the trace format, or the value is no string.
        """
        self.add_metadata_json(key, metadata.quoted(key, value))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace: the one that records now or next or, after stop, the finished one.

        Args:
            key: Top-level key of the exported trace.
            value: Strict JSON.

        Raises:
            ArgumentError: The value is not valid JSON, or the key belongs to the trace format; nothing is changed.
        """
        with self._lock:
            if self._state == "idle" and self._cycles.last is not None:
                checked = metadata.Metadata()
                checked.add(key, value)
                self._cycles.add_info(checked.gathered())
            else:
                self._metadata.add(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace of every cycle that begins from now on.

        Args:
            key: Top-level key of the exported trace.
            value: Strict JSON.

        Raises:
            ArgumentError: The value is not valid JSON, or the key belongs to the trace format; nothing is changed.
        """
        self._metadata.preset(key, value)

    @property
    def preset_metadata(self) -> dict[str, str]:
        """What `preset_metadata_json` was given: JSON texts by key."""
        return self._metadata.preset_ones

    # ------------------------------------------------------------------------------------------------- recording

    @by_owner
    def start(self) -> None:
        """Prepare and start a recording.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
            RecorderError: The requested engine cannot record here.
        """
        self.prepare_trace()
        self.start_trace()

    def stop(self) -> None:
        """Stop the recording; its trace is built on first use. A second call does nothing.

        Raises:
            StateError: `start` was never called.
        """
        with yielding_to_interrupts("stop()"):
            self.stop_trace()

    @by_owner
    def prepare_trace(self) -> None:
        """Prepare everything that would delay `start_trace`, and give the cycle its id.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
            RecorderError: The requested engine cannot record here.
            ArgumentError: `custom_trace_id_callback` returned something that is no string, or none of the activities can
                be recorded here.
        """
        import_aside()
        check_that_something_is_recorded(self.activities, self._recordable)
        trace_id = new_trace_id(self.custom_trace_id_callback)
        # First, and with every signal heard: it may compile the recorder.
        self._choose_engine()
        with DeferredSignals(interrupts=False) as held, self._lock:
            if self._state == "recording":
                raise already_recording()
            try:
                engine = self._require_engine()
                if self._state != "prepared":
                    ACTIVE_SESSIONS.acquire(self, engine)
                with self._stopwatch.preparing():
                    engine.prepare(self._request(trace_id))
                self._trace_id = trace_id
                self._state = "prepared"
            except BaseException:
                self._abandon()
                raise
        held.raise_error()

    def _choose_engine(self) -> None:
        """Have an engine for the next cycle."""
        with self._lock:
            if self._engine is None or (self._engine_is_for_one_cycle and self._state == "idle"):
                self._engine = self._find_engine()

    @by_owner
    def start_trace(self) -> None:
        """Begin to record; prepares first where `prepare_trace` was not called.

        Raises:
            StateError: A session, this one or another, is already recording in this process.
        """
        if self._state != "prepared":
            self.prepare_trace()
        try:
            with DeferredSignals(interrupts=False) as held:
                # First the observer, then the recording, and the other way round at the end, as in torch.
                self._observer.open()
                self._sources.start()
                with self._lock:
                    self._begin_recording()
        except BaseException:
            self._sources.cancel()
            with self._lock:
                if self._state == "prepared":
                    self._abandon()
            if self._state == "idle":
                # The failure that led here is on its way to the user; a second one would only hide it.
                self._observer.close()
            raise
        held.raise_error()

    def _begin_recording(self) -> None:
        """Let the engine record."""
        if self._state == "recording":
            raise already_recording()
        if self._state != "prepared":
            raise StateError("this session was stopped by another thread while it was being started.")
        try:
            # Before the engine's own start: an interrupt in the middle of that must find out that it may be on.
            self._state = "recording"
            with self._stopwatch.starting():
                engine = self._require_engine()
                engine.start()
                self._sources.write_to(getattr(engine, "append_rows", None))
            self._cycles_begun += 1
            COMPILE_HOOKS.recording_began()
            ROUTES.open(self)
            TORCH_RANGES.open(self)
        except BaseException:
            self._abandon()
            raise

    def stop_trace(self) -> None:
        """Close the recording. Nothing is computed here, so the cost does not depend on what was recorded.

        Raises:
            StateError: Nothing was ever started.
        """
        closed = self._finish(keep=True)
        if closed.failure is not None:
            raise closed.failure

    def _finish(self, *, keep: bool) -> Closed:
        """Close the recording even if the observer fails; `keep=False` discards a warm-up without a recording."""
        if self._owner.refuses(self, "stop"):
            return Closed()
        with DeferredSignals() as held:
            try:
                failure = self._observer.close()
                self._sources.stop()
            finally:
                # Whatever came in between: nothing may be left on.
                with self._lock:
                    recorded = self._stop_engine(keep)
            if recorded and keep:
                self._write_summary()
        if held.error is not None and (failure is None or not isinstance(held.error, Exception)):
            return Closed(recorded, held.error, HANDLER)
        return Closed(recorded, failure)

    def _stop_engine(self, keep: bool) -> bool:
        """Stop the engine and store its recording; return whether something was recorded."""
        if self._state == "idle":
            # An interrupt may have come between the steps of standing up.
            self._release()
            if self._cycles_begun == 0 and keep:
                raise NotRecordedError(
                    "there is nothing to stop: call start() first, or use the session in a `with` block."
                )
            return False
        if self._state == "prepared":
            self._abandon()
            return False
        try:
            with self._stopwatch.stopping():
                stopped = self._require_engine().stop()
                recording = self._sources.with_gathered(stopped, keep_parts=self.acc_events)
            self._release()
        except StillRecordingError:
            raise
        except BaseException:
            self._abandon()
            raise
        if not keep and self._cycles.last is not None:
            recording.discard()
            return True
        # Groups that were made while it recorded belong to it, too, and so do numbers of threads and precisions that were set.
        info = described_devices() | rank_info() | self._metadata.gathered()
        self._metadata.end_cycle()
        cycle = Cycle(
            recording,
            info,
            worth_reading=keep,
            number=self._cycles.finished,
            stats=self._stopwatch.stats,
        )
        for earlier in self._cycles.add(cycle):
            self._drop(earlier)
        if keep:
            self._cycle_ended(cycle)
        return True

    def _write_summary(self) -> None:
        """Write the summary of the cycle that ended last. It may fail: the program continues, and the trace is there."""
        import_aside()
        target, cycle = self._options.summary, self._cycles.last
        if target is None or cycle is None:
            return
        from kinetoscope.summaries.summary import save_summaries

        try:
            trace = cycle.trace()
            if target.suffix == SUFFIX:
                target = numbered(ranked(target), cycle.number)
            else:
                target = rank_filled_in(target)
                # Each cycle is a job of its own for who reads a folder.
                target = target / f"cycle-{cycle.number}" if cycle.number else target
            # The private file of a recording is gone before anybody can look at it.
            source = "" if self._options.path is None else os.path.abspath(trace.path or "")
            save_summaries(trace, target, source)
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            warn_user(
                f"the summary of this cycle could not be written to {target}: {type(error).__name__}: {error}. The trace is "
                "not affected: `kinetoscope summarize` makes a summary of a saved one."
            )

    def _cycle_ended(self, cycle: Cycle) -> None:
        """Called with every finished cycle; overridden by the classes that `install` puts in place of torch's."""

    def _release(self) -> None:
        """End the session's use of the engine."""
        self._state = "idle"
        ROUTES.close(self)
        TORCH_RANGES.close(self)
        ACTIVE_SESSIONS.release(self)

    def _request(self, trace_id: str) -> RecordingRequest:
        """Make the engine's request for this cycle."""
        options, path = self._options, self._options.path
        if path is not None:
            path = numbered(ranked(path), self._cycles_begun)
        info = metadata.flags(options.recorded) | rank_info() | described_devices()
        info |= metadata.execution_trace(self._observer.observer)
        info |= noted_settings(options.experimental_config)
        if options.garbage_collection and self._engine and records_garbage_collection(self._engine):
            info |= {GARBAGE_COLLECTION_SETTING: "1"}
        if not options.source:
            info |= {SOURCE_LINES: "{}"}
        if self._in_place_of_torch and options.with_flops:
            info |= {FLOPS_OF_EVENTS: '"torch"'}
        info |= {"trace_id": json.dumps(trace_id), "cycle": json.dumps({"number": self._cycles.finished})}
        if not isinstance(options.engine, str):
            # An engine that stores its request must not reference itself through it.
            options = dataclasses.replace(options, engine="auto")
        return RecordingRequest(
            activities=self._recordable,
            options=options,
            record_function_ids=self._observer.observer is not None,
            torch_objects=self._default_engine == "kineto",
            trace_id=trace_id,
            path=path,
            info=info | self._metadata.gathered(),
        )

    def _report_out_of_memory(self, recorded: bool) -> None:
        """Write a report if this recording of memory ends because there was no more of it."""
        if recorded and self.profile_memory:
            path = self._options.path
            recording = None if path is None else ranked(path)
            report_out_of_memory(lambda: self.trace, self._options.oom_report, recording)

    def _find_engine(self) -> Engine:
        """The engine of the options; where the choice is ours and our recorder is busy, torch's collector for this cycle."""
        self._engine_is_for_one_cycle = False
        engine = choose_engine(self._options, self._recordable)
        if self._options.engine == "auto" and (why := ACTIVE_SESSIONS.why_not(self, engine)):
            engine = choose_engine(dataclasses.replace(self._options, engine="kineto"), self._recordable)
            self._engine_is_for_one_cycle = True
            warn_user(
                f"another Kinetoscope session is recording in this process, so this one records with torch's own collector (Kineto): {why}."
            )
        warn_of_ignored_settings(engine, self._options, in_place_of_torch=self._in_place_of_torch)
        return engine

    def _require_engine(self) -> Engine:
        """The engine, once there is one."""
        if self._engine is None:
            raise StateError("no engine is chosen yet: call start() first.")
        return self._engine

    def _abandon(self) -> None:
        """Reset an engine that was prepared or that failed, so that it can start again."""
        was_recording = self._state == "recording"
        self._release()
        if was_recording:
            # The failure that led here is already on its way to the user; a second one would only hide it.
            with contextlib.suppress(KinetoscopeError):
                self._require_engine().stop().discard()

    def _drop(self, earlier: Cycle) -> None:
        """Drop an earlier cycle; warn once if it was never read."""
        if not earlier.worth_reading:
            return
        earlier.discard()
        if "dropped" not in self._warned_of:
            self._warned_of.add("dropped")
            warn_user(
                "a finished recording was dropped because the next one ended before it was read: export it or "
                "read `prof.trace` in on_trace_ready, or pass acc_events=True to keep all of them."
            )

    def _is_under_way(self) -> bool:
        """Whether a recording is prepared or active."""
        return self._state != "idle"

    def _reset_in_child(self) -> None:
        """Replace everything that a thread of the parent may have locked."""
        self._engine, self._lock = None, threading.RLock()
        self._observer = ObserverWindow(self._observer.observer)
        self._sources = self._sources.fresh()

    def _why_no_trace(self) -> str:
        """Which call is missing before a trace can be read."""
        if self._is_under_way() and self._owner.process != os.getpid():
            return f"this process is a fork of process {self._owner.process}, which records; create a session here to record this one."
        if self._state == "recording":
            return "the recording is still running; call stop() first."
        if self._state == "prepared":
            return "the session is prepared but records nothing; call start_trace(), then stop_trace()."
        return "call start() and stop() first, or leave the `with` block."


def already_recording() -> StateError:
    """The error of a second start."""
    return StateError("this session is already recording: call stop() before starting it again.")
