"""`install`: the public names of `torch.profiler` become Kinetoscope's, for unmodified programs.

torch's classes are replaced by subclasses of ours and of torch's, and its functions by copies of ours. So
`isinstance` works with either class, and a replacement is found wherever it was imported, but
is never confused with what a program imported from `kinetoscope` itself.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import types
from abc import ABCMeta
from collections.abc import Callable, Iterator
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch.profiler

from kinetoscope._errors import ArgumentError, ArgumentTypeError, RecorderError, StateError
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import (
    ProfilerAction,
    supported_activities,
)
from kinetoscope.collect.request.options import (
    SWITCHES,
    EngineName,
    checked_engine,
)
from kinetoscope.collect.session.base_session import _KinetoProfile
from kinetoscope.collect.session.profile import profile, tensorboard_trace_handler
from kinetoscope.collect.session.schedule import schedule
from kinetoscope.collect.sources.execution_trace import ExecutionTraceObserver
from kinetoscope.collect.sources.ranges import ROUTES
from kinetoscope.tables.memory.timeline import DeviceWithoutMemoryError

if TYPE_CHECKING:
    from kinetoscope.collect.session.cycle import Cycle


# Where torch tolerates a mistake, the classes of `install` warn and let the program continue.
#
# A program that was written for torch.profiler must not fail because of a replaced profiler. These classes
# come first among the bases, before ours. A mistake that torch raises an exception for raises one here too.


_memory_profile_of_torch: Callable[[Any], Any] = torch.profiler.profiler._KinetoProfile._memory_profile


class SessionAsTorch:
    """For sessions."""

    _state: str
    _refused = False

    def __init__(self, **options: Any) -> None:
        """Take any whole number for a switch; with stacks, record the calls, which torch's profiler lists."""
        for name in SWITCHES:
            if isinstance(options.get(name), int):
                options[name] = bool(options[name])
        if options.get("with_stack") is True:
            options.setdefault("python_calls", True)
        super().__init__(**options)

    def start(self) -> None:
        """Start; if that fails, nothing is recorded."""
        try:
            super().start()  # type: ignore[misc]
        except (StateError, RecorderError) as error:
            self._refused = True
            warn_user(f"start() has no effect: {error}")
        else:
            self._refused = False

    def stop(self) -> None:
        """Stop; does nothing if `start` had no effect."""
        try:
            super().stop()  # type: ignore[misc]
        except StateError:
            if not self._refused:
                raise

    def export_chrome_trace(self, path: Any, *more: Any, **options: Any) -> None:
        """Write a trace; as in torch, a failure to write an uncompressed file is a warning."""
        try:
            super().export_chrome_trace(path, *more, **options)  # type: ignore[misc]
        except OSError as error:
            if os.fspath(path).endswith(".gz"):
                raise
            warn_user(f"export_chrome_trace() wrote nothing: {error}")

    def export_memory_timeline(self, path: Any, device: str | None = None) -> None:
        """Write the memory timeline; empty for a device that held nothing, and none if the suffix names no format."""
        import_aside()
        suffix = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        try:
            super().export_memory_timeline(path, device)  # type: ignore[misc]
        except DeviceWithoutMemoryError as error:
            if suffix.endswith(".html"):
                raise
            # Raises torch's error for a name that is none of a device.
            torch.device(str(device))
            from kinetoscope.formats.memory_timeline import write_empty_timeline

            write_empty_timeline(suffix)
            warn_user(f"export_memory_timeline() wrote an empty timeline: {error}")
        except ArgumentError as error:
            if not suffix or suffix.endswith((".html", ".json", ".gz")):
                raise
            warn_user(f"export_memory_timeline() wrote nothing: {error}")

    def _memory_profile(self) -> Any:
        """Memory over time; without recorded memory torch's own error, whose message programs may look at."""
        try:
            return super()._memory_profile()  # type: ignore[misc]
        except ArgumentError:
            # Raises: it also looks whether memory was recorded, among other things.
            _memory_profile_of_torch(self)
            raise

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text; invalid ones are skipped."""
        self._left_out(super().add_metadata, key, value)  # type: ignore[misc]

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value; invalid ones are skipped."""
        self._left_out(super().add_metadata_json, key, value)  # type: ignore[misc]

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to every cycle; invalid ones are skipped."""
        self._left_out(super().preset_metadata_json, key, value)  # type: ignore[misc]

    def events(self, *more: Any, **options: Any) -> Any:
        """The events; empty while recording."""
        return self._so_far("events", super().events, more, options)  # type: ignore[misc]

    def key_averages(self, *more: Any, **options: Any) -> Any:
        """The sums; empty while recording."""
        return self._so_far("key_averages", super().key_averages, more, options)  # type: ignore[misc]

    def _action(self, step: int) -> ProfilerAction:
        """The action for a step; an invalid one records nothing."""
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
        import_aside()
        try:
            return read(*more, **options)
        except StateError as error:
            if self._state != "recording":
                raise
            from kinetoscope.trace import Trace

            warn_user(f"{name}() has nothing to show: {error}")
            nothing = Trace.from_columns({}, strings=[""], info={})
            return getattr(nothing, name)()


class ObserverAsTorch:
    """For execution trace observers."""

    def register_callback(self, output_file_path: Any) -> Any:
        """Register; if the file cannot be created, nothing is recorded."""
        try:
            return super().register_callback(output_file_path)  # type: ignore[misc]
        except ArgumentTypeError:
            raise
        except ArgumentError as error:
            warn_user(f"no execution trace is recorded: {error}")
            return self

    def get_output_file_path(self) -> str | None:
        """The path of the trace; None if not registered."""
        try:
            path: str = super().get_output_file_path()  # type: ignore[misc]
        except StateError:
            return None
        return path


_CLASSES: dict[str, type] = {
    "profile": profile,
    "_KinetoProfile": _KinetoProfile,
    "ExecutionTraceObserver": ExecutionTraceObserver,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "schedule": schedule,
    "supported_activities": supported_activities,
    "tensorboard_trace_handler": tensorboard_trace_handler,
}


class Installation:
    """The result of `install`. As a context manager it undoes its own call at the end, and nothing else."""

    def __init__(self, take_back: Callable[[], None] | None) -> None:
        """Store how to undo this call; None if it changed nothing."""
        self._take_back = take_back

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Undo the call, once."""
        take_back, self._take_back = self._take_back, None
        if take_back is not None:
            take_back()


def install(*, engine: EngineName = "auto") -> Installation:
    """Replace the public names of `torch.profiler` by Kinetoscope's, so that unmodified programs and libraries use it.

    This applies to `torch.profiler` and `torch.profiler.profiler`, to later imports from them, and to every
    loaded module that has imported such a name already. A second call changes nothing. Sessions that exist, and classes
    derived from torch's, are not changed. Mistakes that torch tolerates, such as an export into a missing folder or a
    second `start()`, are warnings. Ranges that the program marks with NVTX or ITT are recorded in every recording.

    Args:
        engine: The engine of sessions that do not name one: `"native"`, `"kineto"` (torch's own collector, for tools that
            read `prof.profiler.kineto_results`), or `"auto"`.

    Returns:
        An object that may be ignored; in a `with` statement the end of the block undoes this call, unless Kinetoscope was
        installed before it.

    Raises:
        ArgumentError: There is no such engine.
        StateError: Something else has replaced one of torch's classes by another kind of object.
    """
    return install_and_tell(None, engine)


def uninstall() -> None:
    """Undo `install` in every loaded module; active sessions continue. Without `install` it does nothing."""
    global _stand_ins
    with _lock:
        if _stand_ins is None:
            return
        replace({id(ours): theirs for theirs, ours in _stand_ins.values()})
        ROUTES.install(False)
        _stand_ins = None


def is_installed() -> bool:
    """Whether `install` is active."""
    return _stand_ins is not None


def install_and_tell(on_cycle: Callable[[Cycle], None] | None, engine: EngineName) -> Installation:
    """Install, and call `on_cycle` with every finished recording."""
    global _stand_ins
    if not isinstance(engine, str):
        raise ArgumentError(f"engine={engine!r} is not valid: choose an engine by its name, or 'auto'.")
    checked_engine(engine)
    of_sessions: dict[str, Any] = {"_default_engine": engine, "_in_place_of_torch": True}
    if on_cycle is not None:
        of_sessions["_cycle_ended"] = lambda _session, cycle: on_cycle(cycle)
    with _lock:
        if _stand_ins is not None:
            return Installation(None)
        # Stored before the first name is replaced: after an interrupt from here on, uninstall() can undo it.
        _stand_ins = _made_stand_ins(of_sessions)
        replace({id(theirs): ours for theirs, ours in _stand_ins.values()})
        ROUTES.install(True)
        return Installation(uninstall)


def _made_stand_ins(of_sessions: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """For each name torch's object and its replacement."""
    made: dict[str, tuple[Any, Any]] = {}
    for name, ours in _CLASSES.items():
        theirs = getattr(torch.profiler, name)
        if not isinstance(theirs, type):
            raise StateError(
                f"torch.profiler.{name} is {theirs!r}, not a class: something else has replaced it. Call "
                "kinetoscope.install() first, or remove the replacement."
            )
        made[name] = theirs, _class_for(ours, theirs, of_sessions)
    for name, function in _FUNCTIONS.items():
        theirs = getattr(torch.profiler, name)
        made[name] = theirs, _with_signature_of(theirs, copied(function))
    return made


def _class_for(ours: type, theirs: type, of_sessions: dict[str, Any]) -> type:
    """A class that works as ours and passes as torch's: objects of both classes are instances of it."""

    class Known(ABCMeta):
        """Extends isinstance() of the replacement itself; classes derived from it work as usual."""

        def __instancecheck__(cls, thing: object) -> bool:
            return super().__instancecheck__(thing) or (cls is stand_in and is_known(type(thing)))

        def __subclasscheck__(cls, other: type) -> bool:
            return super().__subclasscheck__(other) or (cls is stand_in and is_known(other))

    def is_known(other: type) -> bool:
        # Not issubclass: that would call this method again through our class.
        return ours in other.__mro__ or theirs in other.__mro__

    leniency = SessionAsTorch if issubclass(ours, _KinetoProfile) else ObserverAsTorch
    contents: dict[str, Any] = {
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        "__doc__": ours.__doc__,
    }
    if issubclass(ours, _KinetoProfile):
        contents |= of_sessions
    stand_in = Known(ours.__name__, (leniency, ours, theirs), contents)
    for name in dir(theirs):
        _give_signature(stand_in, name, inspect.getattr_static(theirs, name))
    return stand_in


def _give_signature(stand_in: type, name: str, theirs: Any) -> None:
    """Give a method the signature of torch's: programs choose by it which keywords they pass."""
    ours = inspect.getattr_static(stand_in, name)
    our_function, their_function = getattr(ours, "__func__", ours), getattr(theirs, "__func__", theirs)
    both = (our_function, their_function)
    if our_function is their_function or not all(isinstance(one, types.FunctionType) for one in both):
        return
    if inspect.signature(our_function) != inspect.signature(their_function):
        method = _with_signature_of(their_function, copied(our_function))
        setattr(stand_in, name, type(ours)(method) if ours is not our_function else method)


def _with_signature_of(theirs: Any, copy: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of our function, described as torch's; what only ours takes can still be passed."""
    if isinstance(theirs, types.FunctionType) and inspect.signature(copy) != inspect.signature(theirs):
        copy.__signature__ = inspect.signature(theirs)  # type: ignore[attr-defined]
    return copy


def copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function."""
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"{function!r} is not written in Python")
    copy = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    made: Callable[..., Any] = functools.update_wrapper(copy, function)
    del copy.__dict__["__wrapped__"]
    return made


def replace(replacements: dict[int, Any]) -> None:
    """Replace the objects with these ids, in every loaded module but our own."""
    for namespace in namespaces():
        for name, value in list(namespace.items()):
            replacement = replacements.get(id(value))
            if replacement is not None:
                namespace[name] = replacement


def namespaces() -> Iterator[dict[str, Any]]:
    """The names of every loaded module; objects in sys.modules that are not modules are skipped."""
    loaded: list[tuple[str, Any]] = list(sys.modules.items())
    for name, module in loaded:
        if isinstance(module, ModuleType) and name.partition(".")[0] != "kinetoscope":
            yield module.__dict__


_lock = threading.RLock()
_stand_ins: dict[str, tuple[Any, Any]] | None = None
