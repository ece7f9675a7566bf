"""Record the ranges that torch opens only while its own profiler is recording.

torch checks `torch.autograd.profiler._is_profiler_enabled` before it opens ranges for phases of the compiler, calls of compiled
graphs and launches of generated kernels; and it uses a class that does nothing unless its profiler is recording on the same
thread. Data pipes check for a profiler on their thread. While one of our sessions records, these checks return True, and
torch's class is replaced by one that works with any recorder. Afterwards all of this is restored.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.autograd import profiler as collector

from kinetoscope.collect.recorder.library import ready_recorder
from kinetoscope.collect.sources.shared_hooks import SharedHooks

_bindings: Any = torch._C._profiler  # noqa: SLF001  (torch's own)
_NAME = "_RecordFunctionFast"
_PIPES = "torch.utils.data.datapipes._hook_iterator"


class TorchRanges(SharedHooks):
    """Makes torch open its ranges while sessions record, and knows whether torch's own profiler is recording."""

    def __init__(self) -> None:
        super().__init__()
        self._theirs: bool | None = None

    @property
    def torch_profiles(self) -> bool:
        """Whether torch's own collector is recording, on any thread."""
        return bool(collector._is_profiler_enabled) if self._theirs is None else self._theirs  # noqa: SLF001  (torch's own)

    def forget_sessions(self) -> None:
        """In a forked child: restore torch, whose collector was recording for the parent, if it was."""
        super().forget_sessions()
        vars(collector)["_is_profiler_enabled"] = False

    def _install(self, first: bool) -> None:
        if not first:
            return
        self._theirs = bool(collector._is_profiler_enabled)  # noqa: SLF001  (torch's own)
        self._replaced.put(collector, "_set_is_profiler_enabled", self._flag_is_set)
        vars(collector)["_is_profiler_enabled"] = True
        # Without a recorder, torch's own collector records, and opens these ranges itself.
        theirs, recorder = getattr(_bindings, _NAME, None), ready_recorder()
        if isinstance(theirs, type) and recorder is not None:
            self._replaced.put(_bindings, _NAME, recorder.fast_range_class(theirs))
        pipes = sys.modules.get(_PIPES)
        # Not `torch.autograd._profiler_enabled` itself, because the compiler compares that by identity.
        ours = _Overlay(torch, autograd=_Overlay(torch.autograd, _profiler_enabled=lambda: True))
        if getattr(pipes, "torch", None) is torch:
            self._replaced.put(pipes, "torch", ours)

    def _restore(self) -> None:
        super()._restore()
        # Last, so that after an interrupt the next `close` repeats it.
        if self._theirs is not None:
            vars(collector)["_is_profiler_enabled"] = self._theirs
            self._theirs = None

    def _flag_is_set(self, enable: bool) -> None:
        """Replaces torch's setter of the flag, which its profiler calls when it starts or stops during our session."""
        with self._lock:
            if self._theirs is None:
                vars(collector)["_is_profiler_enabled"] = enable
            else:
                self._theirs = bool(enable)


class _Overlay:
    """Replaces a module, with some attributes of its own, in another module that uses it."""

    def __init__(self, theirs: Any, **ours: Any) -> None:
        vars(self).update(ours)
        self._theirs = theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


TORCH_RANGES = TorchRanges()
