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

from typing import TYPE_CHECKING

from kinetoscope.collect.sources.compiled_modules import COMPILED_MODULES
from kinetoscope.collect.sources.observed_kernels import OBSERVED_KERNELS
from kinetoscope.combine.compiled import (
    attribute_kernels,
)
from kinetoscope.combine.graph_replays import attribute_replays

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


class CompiledKernels:
    """The source of every session that records the kernels of compiled graphs."""

    def open(self) -> None:
        """Note what is compiled from now on."""
        COMPILED_MODULES.watch()

    def start(self) -> None:
        """Record kernels."""
        OBSERVED_KERNELS.open(self)

    def stop(self) -> GatheredKernels:
        """Record none any more."""
        OBSERVED_KERNELS.close(self)
        return GatheredKernels()

    def close(self) -> None:
        """What is compiled afterwards is noted all the same: a later session records it."""


class GatheredKernels:
    """What was noted of the kernels of a recording, until its trace is built."""

    def add_to(self, trace: Trace) -> Trace:
        """Attribute the kernels to lines and modules of the program."""
        attributed = attribute_kernels(trace, COMPILED_MODULES.calls_of, COMPILED_MODULES.failures)
        return attribute_replays(attributed)

    def and_later(self, later: GatheredKernels) -> GatheredKernels:
        """Take the later one: notes hold for all recordings of the process."""
        return later

    def discard(self) -> None:
        """Nothing is held."""
