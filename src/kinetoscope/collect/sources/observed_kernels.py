"""Replace generated kernels by callables that open a range around each launch."""

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
    """While sessions record, replaces the kernels in generated modules by callables that open ranges.

    Attributes:
        module_is_loaded: Called with the file of each generated module that is loaded meanwhile; must not raise.
    """

    module_is_loaded: Callable[[str], None] | None = None

    def __init__(self) -> None:
        """Start without hooks."""
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._sessions: weakref.WeakSet[object] = weakref.WeakSet()
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._wait: tuple[Any, Any] | None = None

    def open(self, session: object) -> None:
        """Record kernels for a session."""
        with self._lock:
            self._sessions.add(session)
            # Otherwise `CompiledModules` calls `compiler_is_imported` when it is.
            if COMPILER in sys.modules:
                self._install()

    def compiler_is_imported(self) -> None:
        """Install the hooks if a session records."""
        with self._lock:
            self._install()

    def close(self, session: object) -> None:
        """Stop recording kernels for a session; does nothing if it did not record."""
        with self._lock:
            self._sessions.discard(session)
            if not self._sessions:
                self._restore()

    def after_fork(self) -> None:
        """In a forked child: restore the kernels, and replace the lock, which a thread of the parent may hold."""
        self._lock = threading.RLock()
        self._sessions = weakref.WeakSet()
        self._restore()

    def _install(self) -> None:
        if self._wait is not None or not self._sessions:
            return
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.codecache import PyCodeCache

        theirs = AsyncCompile.wait

        def wait(compiling: Any, scope: dict[str, Any]) -> Any:
            # A generated module calls this when all of its kernels are defined.
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

    def _restore(self) -> None:
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
        """Replace the kernels of a generated module, whose global variables are `scope`."""
        for name, kernel in [*scope.items()]:
            if isinstance(kernel, types.BuiltinFunctionType) and kernel.__name__ == "kernel":
                ours = scope[name] = _observed(kernel, name)
                self._replaced.append((scope, name, kernel, ours))


def _observed(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a kernel, so that each launch is inside a range."""
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
