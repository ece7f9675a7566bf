"""Ranges that torch opens only while its own profiler runs, recorded in every recording of ours.

torch asks `torch.autograd.profiler._is_profiler_enabled` before it marks the phases of the compiler, calls of compiled graphs
and launches of kernels that it made, and marks them with a class that does nothing unless its profiler runs on the same
thread. Data pipes ask for a profiler on their thread. While a session records, the answer is yes, and a class of ours
that works with every recorder replaces torch's. Afterwards torch is exactly as before.
"""

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
from kinetoscope.collect.sources.quick_ranges import begin_range, end_range

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
