"""The ranges that a program opens: by torch itself, and through ITT or NVTX; recorded with every engine."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler as collector

from kinetoscope._errors import RecorderError
from kinetoscope.collect.recorder.library import ready_recorder
from kinetoscope.collect.request.activities import record_function

# Ranges that a program marks for other tools, through ITT or NVTX.
#
# While a session records, torch's Python modules for them reach their library through a wrapper of ours. It calls the library
# first, so that the program gets the library's result or error; then it opens or closes a range like `record_function`.
# Afterwards the modules are exactly as before.


class Ranges:
    """The open ranges of each thread, as a stack, and those that are closed by a handle."""

    def __init__(self) -> None:
        """Begin without any."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        # Open ranges do not belong to later recordings; torch ends a range when its last reference goes.
        self._of_thread = threading.local()
        self._by_handle: dict[object, Any] = {}

    def forget(self) -> None:
        """Drop the open ranges, because their recording is over."""
        self._begin_anew()

    def open(self, name: object) -> None:
        """Open a range inside the thread's open ones."""
        opened = record_function(str(name))
        opened.__enter__()
        self._stack().append(opened)

    def close(self) -> None:
        """Close the thread's innermost range; without one do nothing, as the libraries do."""
        stack = self._stack()
        if stack:
            stack.pop().__exit__(None, None, None)

    def open_by_handle(self, handle: object, name: object) -> None:
        """Begin a range that any thread may end."""
        opened = record_function(str(name))
        opened.__enter__()
        self._by_handle[handle] = opened

    def close_by_handle(self, handle: object) -> None:
        """End a range that was begun with a handle."""
        opened = self._by_handle.pop(handle, None)
        if opened is not None:
            opened.__exit__(None, None, None)

    def mark(self, name: object) -> None:
        """Record an instant as an empty range."""
        with record_function(str(name)):
            return

    def _stack(self) -> list[Any]:
        """This thread's open ranges."""
        stack: list[Any] | None = getattr(self._of_thread, "stack", None)
        if stack is None:
            stack = self._of_thread.stack = []
        return stack


ITT, NVTX = Ranges(), Ranges()


class _Shim:
    """Wraps a library: the same calls and results, and ranges are recorded too."""

    def __init__(self, library: Any, ranges: Ranges) -> None:
        """Wrap `library`."""
        self._library = library
        self._ranges = ranges
        self._calls = {
            "rangePush": self._then(ranges.open),
            "rangePushA": self._then(ranges.open),
            "rangePop": self._then(lambda *_: ranges.close()),
            "mark": self._then(ranges.mark),
            "markA": self._then(ranges.mark),
            "rangeEnd": self._then(ranges.close_by_handle),
        }

    def __getattr__(self, name: str) -> Any:
        """The library's attribute of this name; range calls are followed by our own."""
        found = getattr(self._library, name)
        if name == "rangeStartA":
            return self._start(found)
        wrap = self._calls.get(name)
        return found if wrap is None else wrap(found)

    @staticmethod
    def _then(ours: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A wrapper that calls the library's function, then ours with the same arguments."""

        def wrap(theirs: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                answer = theirs(*arguments, **keywords)
                ours(*arguments, *keywords.values())
                return answer

            return call

        return wrap

    def _start(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        """The call that returns a handle."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            handle = theirs(*arguments, **keywords)
            self._ranges.open_by_handle(handle, *arguments, *keywords.values())
            return handle

        return call


class Routes:
    """Routes torch's ITT and NVTX calls through our wrappers while a session records or `install` is active."""

    # Module, its variable for the library, and the ranges that are kept.
    _PLACES = (("torch.profiler.itt", "_itt", ITT), ("torch.cuda.nvtx", "_nvtx", NVTX))

    def __init__(self) -> None:
        """Begin with torch as it is."""
        self._lock = threading.RLock()
        self._sessions: weakref.WeakSet[object] = weakref.WeakSet()
        self._installed = False

    def open(self, session: object) -> None:
        """Record ranges while a session records."""
        with self._lock:
            self._sessions.add(session)
            self._apply()

    def close(self, session: object) -> None:
        """The session has stopped; does nothing for one that did not record."""
        with self._lock:
            if session in self._sessions:
                self._sessions.discard(session)
                if not self._sessions:
                    for _, _, ranges in self._PLACES:
                        ranges.forget()
            self._apply()

    def install(self, installed: bool) -> None:
        """Record ranges permanently, or no longer."""
        with self._lock:
            self._installed = installed
            self._apply()

    def after_fork(self) -> None:
        """The parent's session does not record this process; replace the lock, which a thread of the parent may hold."""
        self._lock = threading.RLock()
        self._sessions = weakref.WeakSet()
        self._apply()

    def _apply(self) -> None:
        """Install or remove the wrappers where needed."""
        wanted = self._installed or len(self._sessions) > 0
        for name, variable, ranges in self._PLACES:
            module = sys.modules.get(name)
            library = getattr(module, variable, None)
            if library is None:
                continue
            if wanted and not isinstance(library, _Shim):
                setattr(module, variable, _Shim(library, ranges))
            elif not wanted and isinstance(library, _Shim):
                setattr(module, variable, library._library)


ROUTES = Routes()
os.register_at_fork(after_in_child=ROUTES.after_fork)


# Ranges that torch opens only while its own profiler runs, recorded in every recording of ours.
#
# torch asks `torch.autograd.profiler._is_profiler_enabled` before it marks the phases of the compiler, calls of compiled graphs
# and launches of kernels that it made, and marks them with a class that does nothing unless its profiler runs on the same
# thread. Data pipes ask for a profiler on their thread. While a session records, the answer is yes, and a class of ours
# that works with every recorder replaces torch's. Afterwards torch is exactly as before.

# Ranges as of `record_function`, for those that we open ourselves for each batch.
#
# `record_function` calls two operators by name, which takes longer than making a small batch does. torch has two plain functions
# that begin and end the same range; where they are missing, `record_function` is used.


def _slow_begin(name: str) -> Any:
    """Begin a range."""
    opened = record_function(name)
    opened.__enter__()
    return opened


def _slow_end(opened: Any) -> None:
    """End a range."""
    opened.__exit__(None, None, None)


def _chosen(bindings: Any) -> tuple[Callable[[str], Any], Callable[[Any], None]]:
    """The quick way, if torch has both halves of it."""
    begin = getattr(bindings, "_record_function_with_args_enter", None)
    end = getattr(bindings, "_record_function_with_args_exit", None)
    return (_slow_begin, _slow_end) if begin is None or end is None else (begin, end)


# Takes a name and returns what closes the range; ranges may be closed in any order.
begin_range, end_range = _chosen(getattr(torch._C, "_autograd", None))


_bindings: Any = torch._C._profiler
_NAME = "_RecordFunctionFast"
_PIPES = "torch.utils.data.datapipes._hook_iterator"


class TorchRanges:
    """What torch believes about profilers, while sessions of ours record and afterwards."""

    def __init__(self) -> None:
        """Begin with torch as it is."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.RLock()
        self._sessions: weakref.WeakSet[object] = weakref.WeakSet()
        self._theirs: bool | None = None
        self._set_flag: Callable[[bool], None] | None = None
        self._class: tuple[Any, Any] | None = None

    @property
    def torch_profiles(self) -> bool:
        """Whether torch's own collector is on, on any thread, by its own account."""
        return bool(collector._is_profiler_enabled) if self._theirs is None else self._theirs

    def open(self, session: object) -> None:
        """Have torch open its ranges while a session records."""
        with self._lock:
            self._sessions.add(session)
            if self._theirs is None:
                self._take_over()

    def close(self, session: object) -> None:
        """The session has stopped; does nothing for one that did not record."""
        with self._lock:
            self._sessions.discard(session)
            if not self._sessions and self._theirs is not None:
                self._give_back()

    def after_fork(self) -> None:
        """No session of the parent records this process, and no thread of the parent holds the lock here."""
        self._lock = threading.RLock()
        self._sessions = weakref.WeakSet()
        if self._theirs is not None:
            self._give_back()

    def _take_over(self) -> None:
        self._theirs = bool(collector._is_profiler_enabled)
        self._set_flag = collector._set_is_profiler_enabled
        vars(collector)["_set_is_profiler_enabled"] = self._flag_is_set
        vars(collector)["_is_profiler_enabled"] = True
        theirs = getattr(_bindings, _NAME, None)
        if isinstance(theirs, type):
            ours = _range_class(theirs)
            self._class = theirs, ours
            setattr(_bindings, _NAME, ours)
        pipes = sys.modules.get(_PIPES)
        if getattr(pipes, "torch", None) is torch:
            vars(pipes)["torch"] = _TorchOfPipes()

    def _give_back(self) -> None:
        # `_theirs` goes last: where an interrupt comes between, the next `close` does all of this again.
        if vars(collector)["_set_is_profiler_enabled"] == self._flag_is_set:
            vars(collector)["_set_is_profiler_enabled"] = self._set_flag
        vars(collector)["_is_profiler_enabled"] = bool(self._theirs)
        if self._class is not None and getattr(_bindings, _NAME, None) is self._class[1]:
            setattr(_bindings, _NAME, self._class[0])
        self._class = None
        pipes = sys.modules.get(_PIPES)
        if isinstance(getattr(pipes, "torch", None), _TorchOfPipes):
            vars(pipes)["torch"] = torch
        self._theirs = None

    def _flag_is_set(self, enable: bool) -> None:
        """torch's profiler starts or stops during our session: ours continues, and torch's state is as it left it."""
        with self._lock:
            if self._theirs is None:
                vars(collector)["_is_profiler_enabled"] = enable
            else:
                self._theirs = bool(enable)


class _TorchOfPipes:
    """`torch` as the module of data pipes sees it: a profiler is on.

    `torch.autograd._profiler_enabled` itself stays what it is, since the compiler knows it by its identity.
    """

    def __init__(self) -> None:
        self.autograd = _AutogradOfPipes()

    def __getattr__(self, name: str) -> Any:
        """Everything else is torch's."""
        return getattr(torch, name)


class _AutogradOfPipes:
    """`torch.autograd` for the same purpose."""

    @staticmethod
    def _profiler_enabled() -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        """Everything else is torch's."""
        return getattr(torch.autograd, name)


def _range_class(theirs: type) -> type:
    """What stands in for torch's class; without a recorder to hand, one that keeps names only."""
    try:
        recorder = ready_recorder()
    except RecorderError:
        recorder = None
    return _named_range(theirs) if recorder is None else recorder.fast_range_class(theirs)


def _named_range(theirs: Any) -> type:
    """A class whose ranges are those of `record_function`, or torch's where its profiler runs on the thread."""

    class RecordFunctionFast:
        def __init__(
            self, name: str, input_values: Any = None, keyword_values: dict[str, Any] | None = None
        ) -> None:
            self._given = (name, input_values or (), keyword_values or {})
            self._end: Callable[[], object] = bool

        def __enter__(self) -> None:
            if torch._C._autograd._profiler_enabled():
                opened = theirs(*self._given)
                opened.__enter__()
                self._end = lambda: opened.__exit__(None, None, None)
            else:
                handle = begin_range(self._given[0])
                self._end = lambda: end_range(handle)

        def __exit__(self, *failure: object) -> None:
            end, self._end = self._end, bool
            end()

    return RecordFunctionFast


TORCH_RANGES = TorchRanges()
os.register_at_fork(after_in_child=TORCH_RANGES.after_fork)
