"""The kernels of compiled code, observed in the modules that call them."""

from __future__ import annotations

import os
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from kinetoscope._errors import RecorderError
from kinetoscope.collect.recorder.library import ready_recorder
from kinetoscope.collect.sources.quick_ranges import begin_range, end_range

COMPILER = "torch._inductor.graph"


class ObservedKernels:
    """Puts callables that open ranges in the place of generated kernels, while sessions record.

    Attributes:
        module_is_loaded: Called with the file of each generated module that is loaded meanwhile; it must not raise.
    """

    module_is_loaded: Callable[[str], None] | None = None

    def __init__(self) -> None:
        """Begin with torch as it is."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.RLock()
        self._sessions: weakref.WeakSet[object] = weakref.WeakSet()
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._wait: tuple[Any, Any] | None = None

    def open(self, session: object) -> None:
        """Record the kernels while a session records."""
        with self._lock:
            self._sessions.add(session)
            # If it is not imported yet, `CompiledModules` waits for it.
            if COMPILER in sys.modules:
                self._take_over()

    def compiler_is_imported(self) -> None:
        """Record the kernels from now on, if a session records."""
        with self._lock:
            self._take_over()

    def close(self, session: object) -> None:
        """The session has stopped; does nothing for one that did not record."""
        with self._lock:
            self._sessions.discard(session)
            if not self._sessions:
                self._give_back()

    def after_fork(self) -> None:
        """No session of the parent records this process, and no thread of the parent holds the lock here."""
        self._lock = threading.RLock()
        self._sessions = weakref.WeakSet()
        self._give_back()

    def _take_over(self) -> None:
        if self._wait is not None or not self._sessions:
            return
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.codecache import PyCodeCache

        theirs = AsyncCompile.wait

        def wait(compiling: Any, scope: dict[str, Any]) -> Any:
            # A generated module calls it once all of its kernels are defined.
            answer = theirs(compiling, scope)
            with self._lock:
                if self._sessions:
                    self._observe(scope)
                    if self.module_is_loaded is not None and isinstance(file := scope.get("__file__"), str):
                        self.module_is_loaded(file)
            return answer

        self._wait = theirs, wait
        AsyncCompile.wait = wait
        for module in PyCodeCache.modules:
            self._observe(vars(module))

    def _give_back(self) -> None:
        if self._wait is not None:
            from torch._inductor.async_compile import AsyncCompile

            theirs, ours = self._wait
            if AsyncCompile.wait is ours:
                AsyncCompile.wait = theirs
            self._wait = None
        while self._replaced:
            scope, name, theirs, ours = self._replaced.pop()
            if scope.get(name) is ours:
                scope[name] = theirs

    def _observe(self, scope: dict[str, Any]) -> None:
        """Replace the kernels of a generated module."""
        for name, kernel in [*scope.items()]:
            if isinstance(kernel, types.BuiltinFunctionType) and kernel.__name__ == "kernel":
                ours = scope[name] = _observed(kernel, name)
                self._replaced.append((scope, name, kernel, ours))


def _observed(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A callable that calls a kernel inside a range."""
    try:
        recorder = ready_recorder()
    except RecorderError:
        recorder = None
    if recorder is not None:
        return recorder.observed_kernel(kernel, name)

    def call(*arguments: Any) -> Any:
        opened = begin_range(name)
        try:
            return kernel(*arguments)
        finally:
            end_range(opened)

    return call


OBSERVED_KERNELS = ObservedKernels()
os.register_at_fork(after_in_child=OBSERVED_KERNELS.after_fork)
