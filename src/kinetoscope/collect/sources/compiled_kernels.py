"""Kernels that torch.compile generated, as spans that know which lines and modules of the program they compute.

Inductor calls its C++ kernels from a Python module that it generated, and each is a global of that module. While a session records,
a callable of ours that opens a range is in its place: nothing is compiled for it, so that kernels from a cache and kernels that were
compiled long before are recorded, too.

What a kernel computes is known while it is generated only. From the first session of the process on, each call that is generated is
noted with the nodes of its graph, and stored beside the generated module, where later processes that take the module from the cache
find it. A module that was compiled and cached without us has no such notes; so that it is not taken, the compiler's own setting
for provenance, which is a part of its cache's key, is turned on.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from kinetoscope.collect.sources.compiled_modules import COMPILED_MODULES
from kinetoscope.collect.sources.observed_kernels import OBSERVED_KERNELS
from kinetoscope.storage.appended_rows import LOSSES, KeptRows

if TYPE_CHECKING:
    from kinetoscope.collect.request.options import AppendRows


class CompiledKernels:
    """The source of every session that records the kernels of compiled graphs."""

    def __init__(self) -> None:
        """Nothing happens before a session begins."""
        self._append: AppendRows | None = None

    def open(self) -> None:
        """Note what is compiled from now on."""
        COMPILED_MODULES.watch()

    def start(self) -> None:
        """Record kernels."""
        OBSERVED_KERNELS.open(self)

    def write_to(self, append: AppendRows) -> None:
        """Write what is known of compiled modules into the recording, once for all sessions that share it."""
        self._append = append
        if not isinstance(append, KeptRows):
            COMPILED_MODULES._safely(COMPILED_MODULES.recording_began)

    def stop(self) -> None:
        """Record none any more, and write what else is known."""
        OBSERVED_KERNELS.close(self)
        append, self._append = self._append, None
        if append is not None:
            kept = append if isinstance(append, KeptRows) else None
            COMPILED_MODULES._safely(functools.partial(COMPILED_MODULES.recording_ends, kept))
            failures = COMPILED_MODULES.failures
            if failures:
                why = [f"Noting them failed: {why}" for why in failures]
                codes, counts = ["unknown_kernels"] * len(why), [*failures.values()]
                append(LOSSES, {"code": codes, "count": counts, "why": why})

    def close(self) -> None:
        """What is compiled afterwards is noted all the same: a later session records it."""
