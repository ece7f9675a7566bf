"""The switch: the public names of `torch.profiler` lead to Kinetoscope, for programs that know nothing of it.

What is put in torch's place are stand-ins: subclasses of our class and of torch's, and copies of our functions. So
`isinstance` holds whichever of the two somebody kept, and a stand-in is found again wherever an import has taken it, but
never mistaken for what a program imported from `kinetoscope` itself.
"""

from __future__ import annotations

import functools
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
from kinetoscope.collect.session.activities import ProfilerAction, supported_activities
from kinetoscope.collect.session.base_session import _KinetoProfile
from kinetoscope.collect.session.options import SWITCHES, EngineName, checked_engine
from kinetoscope.collect.session.profile import profile, tensorboard_trace_handler
from kinetoscope.collect.session.schedule import schedule
from kinetoscope.collect.session.user_warnings import warn_user
from kinetoscope.collect.sources.ranges import ROUTES
from kinetoscope.collect.torch_compat.execution_trace import ExecutionTraceObserver

if TYPE_CHECKING:
    from kinetoscope.collect.session.cycle import Cycle


# What the stand-ins of `install` do where torch lets a mistake pass: warn, and let the program go on.
#
# A program that was written for torch.profiler must not end because of a profiler that it knows nothing of. These classes
# come first among the bases of a stand-in, before ours. A mistake that torch raises an exception for is one here too.


class SessionAsTorch:
    """For sessions."""

    _state: str
    _refused = False

    def __init__(self, **options: Any) -> None:
        """Take any whole number for a switch."""
        for name in SWITCHES:
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
            return getattr(nothing, name)()


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
    """What `install` returns. As a context manager it takes back at the end what its own call put in, and nothing else."""

    def __init__(self, take_back: Callable[[], None] | None) -> None:
        """Remember how to take back what this call changed; None if it changed nothing."""
        self._take_back = take_back

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take back what this call put in; once."""
        take_back, self._take_back = self._take_back, None
        if take_back is not None:
            take_back()


def install(*, engine: EngineName = "auto") -> Installation:
    """Let the public names of `torch.profiler` lead to Kinetoscope, so that unmodified programs and libraries use it.

    This holds for `torch.profiler` and `torch.profiler.profiler`, for what is imported from them later, and for every
    loaded module that has imported such a name already. A second call changes nothing. Sessions that exist, and classes
    made from torch's, stay what they are. What torch lets pass, such as an export into a folder that does not exist or a
    second `start()`, is a warning and no error. Ranges that the program marks by NVTX or ITT are kept in every recording.

    Args:
        engine: What records where the program does not say: `"native"`, `"kineto"` (torch's own collector, for tools that
            read `prof.profiler.kineto_results`), or `"auto"`.

    Returns:
        Nothing that must be kept; in a `with` statement the end of the block undoes this call, unless Kinetoscope was
        installed before it.

    Raises:
        ArgumentError: There is no such engine.
        StateError: Something else has put what is no class in the place of one of torch's.
    """
    return install_and_tell(None, engine)


def uninstall() -> None:
    """Give torch its names back, in every loaded module; sessions that record go on. Without `install` nothing happens."""
    global _stand_ins
    with _lock:
        if _stand_ins is None:
            return
        replace({id(ours): theirs for theirs, ours in _stand_ins.values()})
        ROUTES.install(False)
        _stand_ins = None


def is_installed() -> bool:
    """Whether the names of `torch.profiler` lead to Kinetoscope now."""
    return _stand_ins is not None


def install_and_tell(on_cycle: Callable[[Cycle], None] | None, engine: EngineName) -> Installation:
    """Install, and have every recording that ends handed to `on_cycle`."""
    global _stand_ins
    if not isinstance(engine, str):
        raise ArgumentError(f"engine={engine!r} is not valid: choose an engine by its name, or 'auto'.")
    checked_engine(engine)
    of_sessions: dict[str, Any] = {"_default_engine": engine}
    if on_cycle is not None:
        of_sessions["_cycle_ended"] = lambda _session, cycle: on_cycle(cycle)
    with _lock:
        if _stand_ins is not None:
            return Installation(None)
        # Kept before the first name is replaced: an interrupt from here on leaves something that can be taken back.
        _stand_ins = _made_stand_ins(of_sessions)
        replace({id(theirs): ours for theirs, ours in _stand_ins.values()})
        ROUTES.install(True)
        return Installation(uninstall)


def _made_stand_ins(of_sessions: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """For each name what torch has, and what stands in for it."""
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
        made[name] = getattr(torch.profiler, name), copied(function)
    return made


def _class_for(ours: type, theirs: type, of_sessions: dict[str, Any]) -> type:
    """A class that works as ours and is known as torch's: to `isinstance` both count as it, made here or before."""

    class Known(ABCMeta):
        """Answers for the stand-in itself; a class that a program derives from it answers for itself as usual."""

        def __instancecheck__(cls, thing: object) -> bool:
            return super().__instancecheck__(thing) or (cls is stand_in and is_known(type(thing)))

        def __subclasscheck__(cls, other: type) -> bool:
            return super().__subclasscheck__(other) or (cls is stand_in and is_known(other))

    def is_known(other: type) -> bool:
        # Not issubclass: that asks our class, which asks its subclasses, of which the stand-in is one.
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
    return stand_in


def copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is the same and yet another object."""
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
    """Put other things in the place of those with these ids, in every loaded module but our own."""
    for namespace in namespaces():
        for name, value in list(namespace.items()):
            replacement = replacements.get(id(value))
            if replacement is not None:
                namespace[name] = replacement


def namespaces() -> Iterator[dict[str, Any]]:
    """The names of every loaded module. A module that only pretends to be one is left alone."""
    loaded: list[tuple[str, Any]] = list(sys.modules.items())
    for name, module in loaded:
        if isinstance(module, ModuleType) and name.partition(".")[0] != "kinetoscope":
            yield module.__dict__


_lock = threading.RLock()
_stand_ins: dict[str, tuple[Any, Any]] | None = None
