"""Record the ranges that torch opens only while its own profiler is recording.

torch checks `torch.autograd.profiler._is_profiler_enabled` before it opens ranges for phases of the compiler, calls of compiled
graphs and launches of generated kernels; and it uses a class that does nothing unless its profiler is recording on the same
thread. Data pipes check for a profiler on their thread. While one of our sessions records, these checks return True, and
torch's class is replaced by one that works with any recorder. Afterwards all of this is restored.
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
    """Makes torch open its ranges while sessions record, and knows whether torch's own profiler is recording."""

    def __init__(self) -> None:
        """Start without hooks."""
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._sessions: weakref.WeakSet[object] = weakref.WeakSet()
        self._theirs: bool | None = None
        self._set_flag: Callable[[bool], None] | None = None
        self._class: tuple[Any, Any] | None = None

    @property
    def torch_profiles(self) -> bool:
        """Whether torch's own collector is recording, on any thread."""
        return bool(collector._is_profiler_enabled) if self._theirs is None else self._theirs

    def open(self, session: object) -> None:
        """Make torch open its ranges for a session."""
        with self._lock:
            self._sessions.add(session)
            if self._theirs is None:
                self._install()

    def close(self, session: object) -> None:
        """Stop that for a session; does nothing if it did not record."""
        with self._lock:
            self._sessions.discard(session)
            if not self._sessions and self._theirs is not None:
                self._restore()

    def after_fork(self) -> None:
        """In a forked child: restore torch, and replace the lock, which a thread of the parent may hold.

        Torch's collector was recording for the parent, if it was.
        """
        self._lock = threading.RLock()
        self._sessions = weakref.WeakSet()
        if self._theirs is not None:
            self._restore()
        vars(collector)["_is_profiler_enabled"] = False

    def _install(self) -> None:
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

    def _restore(self) -> None:
        # `_theirs` is reset last, so that after an interrupt the next `close` repeats all of this.
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
        """Replaces torch's setter of the flag: torch's profiler has started or stopped during our session."""
        with self._lock:
            if self._theirs is None:
                vars(collector)["_is_profiler_enabled"] = enable
            else:
                self._theirs = bool(enable)


class _TorchOfPipes:
    """Replaces `torch` in the module of data pipes, for which a profiler is enabled.

    `torch.autograd._profiler_enabled` itself is not replaced, because the compiler compares it by identity.
    """

    def __init__(self) -> None:
        self.autograd = _AutogradOfPipes()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _AutogradOfPipes:
    """Replaces `torch.autograd` for data pipes."""

    @staticmethod
    def _profiler_enabled() -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.autograd, name)


def _range_class(theirs: type) -> type:
    """Create the class that replaces torch's; without a loaded recorder, one whose ranges have names but no inputs."""
    try:
        recorder = ready_recorder()
    except RecorderError:
        recorder = None
    return _named_range(theirs) if recorder is None else recorder.fast_range_class(theirs)


def _named_range(theirs: Any) -> type:
    """Create a class that opens plain ranges or, if torch's profiler is recording on the thread, torch's own."""

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
