"""Replace generated kernels by callables that open a range around each launch."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from kinetoscope.collect.recorder.library import ready_recorder
from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from kinetoscope.collect.sources.shared_hooks import SharedHooks

COMPILER = "torch._inductor.graph"


class ObservedKernels(SharedHooks):
    """While sessions record, replaces the kernels in generated modules by callables that open ranges.

    Attributes:
        module_is_loaded: Called with the file of each generated module that is loaded meanwhile; must not raise.
    """

    module_is_loaded: Callable[[str], None] | None = None

    def compiler_is_imported(self) -> None:
        """Install the hooks if a session records."""
        with self._lock:
            if self._sessions:
                self._install()

    def _install(self, first: bool = False) -> None:
        # Otherwise `CompiledModules` calls `compiler_is_imported` when it is.
        if self._replaced or COMPILER not in sys.modules:
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

        self._replaced.put(AsyncCompile, "wait", wait)
        for module in PyCodeCache.modules:
            self._observe(vars(module))

    def _observe(self, scope: dict[str, Any]) -> None:
        """Replace the kernels of a generated module, whose global variables are `scope`."""
        for name, kernel in [*scope.items()]:
            if isinstance(kernel, types.BuiltinFunctionType) and kernel.__name__ == "kernel":
                self._replaced.put(scope, name, _observed(kernel, name))


def _observed(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    if (recorder := ready_recorder()) is not None:
        return recorder.observed_kernel(kernel, name)

    def call(*arguments: Any) -> Any:
        opened = begin_range(name)
        try:
            return kernel(*arguments)
        finally:
            end_range(opened)

    return call


OBSERVED_KERNELS = ObservedKernels()
