"""`install`: replace the public names of `torch.profiler` by Kinetoscope's, for unmodified programs.

torch's classes are replaced by subclasses of ours and of torch's, and its functions by copies of ours. So `isinstance` works with
either class; and `uninstall` finds all replacements by identity, without touching what a program imported from `kinetoscope`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import types
from abc import ABCMeta
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch.profiler

from kinetoscope._errors import ArgumentError, ArgumentTypeError, RecorderError, StateError
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import ProfilerAction, supported_activities
from kinetoscope.collect.request.options import SWITCHES, EngineName, checked_engine
from kinetoscope.collect.session.base_session import _KinetoProfile
from kinetoscope.collect.session.handlers import tensorboard_trace_handler
from kinetoscope.collect.session.profile import profile
from kinetoscope.collect.session.schedule import schedule
from kinetoscope.collect.session.state import SessionState
from kinetoscope.collect.sources.execution_trace import ExecutionTraceObserver
from kinetoscope.collect.sources.ranges import ROUTES
from kinetoscope.tables.memory.timeline import DeviceWithoutMemoryError

if TYPE_CHECKING:
    from kinetoscope.collect.session.cycle import Cycle
    from kinetoscope.trace import Trace


_memory_profile_of_torch: Callable[[Any], Any] = torch.profiler.profiler._KinetoProfile._memory_profile  # noqa: SLF001  (torch's own)
_timeline_of_torch = torch.profiler.profiler._KinetoProfile.export_memory_timeline  # noqa: SLF001  (torch's own)


class SessionAsTorch:
    """Tolerates the mistakes of a program that torch's session tolerates, so that the program does not fail because its profiler was replaced.

    The first base class of the replacement, as `ObserverAsTorch` is.
    """

    state: SessionState
    _refused = False

    def __init__(self, **options: Any) -> None:
        """As in torch, accept any integer for a switch, and record Python calls if `with_stack` is on."""
        for name in SWITCHES:
            if isinstance(options.get(name), int):
                options[name] = bool(options[name])
        if options.get("with_stack") is True:
            options.setdefault("python_calls", True)
        super().__init__(**options)

    def start(self) -> None:
        """Start the session; a failure is a warning, and nothing is recorded."""
        try:
            super().start()  # type: ignore[misc]
        except (StateError, RecorderError) as error:
            self._refused = True
            warn_user(f"start() has no effect: {error}")
        else:
            self._refused = False

    def stop(self) -> None:
        """Stop the session; does nothing if `start` had failed."""
        try:
            super().stop()  # type: ignore[misc]
        except StateError:
            if not self._refused:
                raise

    def export_chrome_trace(self, path: Any, *more: Any, **options: Any) -> None:
        """Write a trace; as in torch, if an uncompressed file cannot be written, that is a warning."""
        try:
            super().export_chrome_trace(path, *more, **options)  # type: ignore[misc]
        except OSError as error:
            if os.fspath(path).endswith(".gz"):
                raise
            warn_user(f"export_chrome_trace() wrote nothing: {error}")

    def export_memory_timeline(self, path: Any, device: str | None = None) -> None:
        """Write the memory timeline: an empty one for a device without allocations, and none if the suffix is unknown."""
        import_aside()
        if deprecated := getattr(_timeline_of_torch, "__deprecated__", None):
            warn_user(deprecated, FutureWarning)
        suffix = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        try:
            super().export_memory_timeline(path, device)  # type: ignore[misc]
        except DeviceWithoutMemoryError as error:
            if suffix.endswith(".html"):
                raise
            # Raises torch's exception if this is not the name of a device.
            torch.device(str(device))
            from kinetoscope.formats.memory_timeline import write_empty_timeline

            write_empty_timeline(suffix)
            warn_user(f"export_memory_timeline() wrote an empty timeline: {error}")
        except ArgumentError as error:
            if not suffix or suffix.endswith((".html", ".json", ".gz")):
                raise
            warn_user(f"export_memory_timeline() wrote nothing: {error}")

    def _memory_profile(self) -> Any:
        """Memory over time; without recorded memory, raises torch's exception, whose message programs may check."""
        try:
            return super()._memory_profile()  # type: ignore[misc]
        except ArgumentError:
            # torch's own method raises its exception, since it also requires recorded memory.
            _memory_profile_of_torch(self)
            raise

    def _metadata_entry(self, key: str, value: str) -> dict[str, str]:
        try:
            entry: dict[str, str] = super()._metadata_entry(key, value)  # type: ignore[misc]
        except ArgumentTypeError:
            raise
        except ArgumentError as error:
            warn_user(f"left out of the trace: {error}")
            return {}
        return entry

    def _events_trace(self) -> Trace:
        import_aside()
        from kinetoscope.trace import Trace

        try:
            trace: Trace = super()._events_trace()  # type: ignore[misc]
        except StateError as error:
            if not self.state.has_engine:
                raise
            if self.state is SessionState.RECORDING:
                warn_user(f"there are no events to show: {error}")
            return Trace.from_columns({}, strings=[""], info={})
        return trace

    def _action(self, step: int) -> ProfilerAction:
        try:
            action: ProfilerAction = super()._action(step)  # type: ignore[misc]
        except ArgumentTypeError as error:
            warn_user(f"step {step} is not recorded: {error}")
            return ProfilerAction.NONE
        return action


class ObserverAsTorch:
    """Tolerates the mistakes of a program that torch's execution trace observer tolerates."""

    def register_callback(self, output_file_path: Any) -> Any:
        """Set the output file; if it cannot be created, nothing is recorded, with a warning."""
        try:
            return super().register_callback(output_file_path)  # type: ignore[misc]
        except ArgumentTypeError:
            raise
        except ArgumentError as error:
            warn_user(f"no execution trace is recorded: {error}")
            return self

    def get_output_file_path(self) -> str | None:
        """Return the path of the execution trace; None if no output file is set."""
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


class Installation(contextlib.ExitStack):
    """The result of `install`. As a context manager, it undoes that call at the end of the block."""

    def __init__(self, undo: Callable[[], None] | None) -> None:
        """Store the function that undoes the call; None if the call changed nothing."""
        super().__init__()
        if undo is not None:
            self.callback(undo)


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
        An object for `with` statements, which may be ignored: the end of the block undoes this call, unless Kinetoscope was
        installed before.

    Raises:
        ArgumentError: There is no such engine.
        StateError: Another tool has replaced one of torch's classes by something that is not a class.
    """
    return install_and_tell(None, engine)


def uninstall() -> None:
    """Undo `install` in every loaded module; active sessions continue. Without `install` it does nothing."""
    global _replaced
    with _lock:
        if _replaced is None:
            return
        replace_in_modules({id(ours): theirs for theirs, ours in _replaced.values()})
        ROUTES.install(False)
        _replaced = None


def is_installed() -> bool:
    """Whether `install` is active."""
    return _replaced is not None


def install_and_tell(on_cycle: Callable[[Cycle], None] | None, engine: EngineName) -> Installation:
    """Like `install`, and call `on_cycle` with every finished cycle of the sessions."""
    global _replaced
    if not isinstance(engine, str):
        raise ArgumentError(f"engine={engine!r} is not valid: choose an engine by its name, or 'auto'.")
    checked_engine(engine)
    of_sessions: dict[str, Any] = {"_default_engine": engine, "_in_place_of_torch": True}
    if on_cycle is not None:
        of_sessions["_cycle_ended"] = lambda _session, cycle: on_cycle(cycle)
    with _lock:
        if _replaced is not None:
            return Installation(None)
        # Stored before the first name is replaced: after an interrupt from here on, uninstall() can undo it.
        _replaced = _make_replacements(of_sessions)
        replace_in_modules({id(theirs): ours for theirs, ours in _replaced.values()})
        ROUTES.install(True)
        return Installation(uninstall)


def _make_replacements(of_sessions: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    replacements: dict[str, tuple[Any, Any]] = {}
    for name, ours in _CLASSES.items():
        theirs = getattr(torch.profiler, name)
        if not isinstance(theirs, type):
            raise StateError(
                f"torch.profiler.{name} is {theirs!r}, not a class: something else has replaced it. Call "
                "kinetoscope.install() first, or remove the replacement."
            )
        replacements[name] = theirs, _class_for(ours, theirs, of_sessions)
    for name, function in _FUNCTIONS.items():
        theirs = getattr(torch.profiler, name)
        replacements[name] = theirs, _with_signature_of(theirs, copied_function(function))
    return replacements


def _class_for(ours: type, theirs: type, of_sessions: dict[str, Any]) -> type:
    """Subclass our class and torch's, so that objects of both are instances."""

    class Known(ABCMeta):
        """Extends isinstance() and issubclass() of the replacement, but not of classes derived from it."""

        def __instancecheck__(cls, thing: object) -> bool:
            return super().__instancecheck__(thing) or (cls is replacement and is_known(type(thing)))

        def __subclasscheck__(cls, other: type) -> bool:
            return super().__subclasscheck__(other) or (cls is replacement and is_known(other))

    def is_known(other: type) -> bool:
        # Not issubclass(), which would call this method again through our class.
        return ours in other.__mro__ or theirs in other.__mro__

    leniency = SessionAsTorch if issubclass(ours, _KinetoProfile) else ObserverAsTorch
    contents: dict[str, Any] = {
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        "__doc__": ours.__doc__,
    }
    if issubclass(ours, _KinetoProfile):
        contents |= of_sessions
    replacement = Known(ours.__name__, (leniency, ours, theirs), contents)
    for name in dir(theirs):
        _give_signature(replacement, name, inspect.getattr_static(theirs, name))
    return replacement


def _give_signature(replacement: type, name: str, theirs: Any) -> None:
    """Give a method torch's signature, because programs inspect it to decide which keywords to pass."""
    ours = inspect.getattr_static(replacement, name)
    our_function, their_function = getattr(ours, "__func__", ours), getattr(theirs, "__func__", theirs)
    both = (our_function, their_function)
    if our_function is their_function or not all(isinstance(method, types.FunctionType) for method in both):
        return
    if inspect.signature(our_function) != inspect.signature(their_function):
        method = _with_signature_of(their_function, copied_function(our_function))
        setattr(replacement, name, type(ours)(method) if ours is not our_function else method)


def _with_signature_of(theirs: Any, copy: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(theirs, types.FunctionType) and inspect.signature(copy) != inspect.signature(theirs):
        copy.__signature__ = inspect.signature(theirs)  # type: ignore[attr-defined]
    return copy


def copied_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a Python function, so that the copy can have other attributes, and is another object."""
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
    updated: Callable[..., Any] = functools.update_wrapper(copy, function)
    del copy.__dict__["__wrapped__"]
    return updated


def replace_in_modules(replacements: dict[int, Any]) -> None:
    """Replace objects, given by their id(), in the global names of every loaded module except our own."""
    for namespace in _loaded_namespaces():
        for name, value in list(namespace.items()):
            replacement = replacements.get(id(value))
            if replacement is not None:
                namespace[name] = replacement


def _loaded_namespaces() -> Iterator[dict[str, Any]]:
    loaded: list[tuple[str, Any]] = list(sys.modules.items())
    for name, module in loaded:
        if isinstance(module, ModuleType) and name.partition(".")[0] != "kinetoscope":
            yield module.__dict__


_lock = threading.RLock()
_replaced: dict[str, tuple[Any, Any]] | None = None
