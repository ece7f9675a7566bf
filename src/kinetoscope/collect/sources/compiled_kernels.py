"""Record kernels that torch.compile generated as spans, with the source lines and modules of the program that they compute.

Inductor calls its C++ kernels from a generated Python module, in which each kernel is a global variable. While a session
records, these variables are replaced by callables that open a range. Nothing is compiled for that, so kernels that come from a
cache, or were compiled long before, are recorded, too.

What a kernel computes is only known while it is generated. From the first session of the process on, we store for each
generated call the nodes of its graph, in a file next to the generated module, where later processes that load the module from
the cache find it. A module that was compiled and cached without us has no such file. To keep it from being used, we turn on the
compiler's own provenance setting, which is part of the key of its cache.
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
    """A source that every session has: records the kernels of compiled graphs."""

    def __init__(self) -> None:
        self._append: AppendRows | None = None

    def open(self) -> None:
        """Collect what generated kernels compute from now on."""
        COMPILED_MODULES.watch()

    def start(self) -> None:
        """Start to record kernels as ranges."""
        OBSERVED_KERNELS.open(self)

    def write_to(self, append: AppendRows) -> None:
        """Write the facts of compiled modules to the recording, once for all sessions that share it."""
        self._append = append
        if not isinstance(append, KeptRows):
            COMPILED_MODULES._safely(COMPILED_MODULES.recording_began)

    def stop(self) -> None:
        """Stop recording kernels, and write the remaining facts of compiled modules, and losses."""
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
        """Do nothing: what generated kernels compute is still collected, for later sessions."""
