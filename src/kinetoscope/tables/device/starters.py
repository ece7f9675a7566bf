"""Who started what ran on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kinetoscope.model.device_time import calls_runtime, counted_launches, started_by

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


class Starters(NamedTuple):
    """For every span that a launch of the host started, and -1 for all others and for the row -1.

    Attributes:
        call: The span of the host that started it, the call of the runtime where that was recorded.
        operator: The operator or range that its time counts for; -1 where only a call of the runtime is known.
    """

    call: NDArray[np.int32]
    operator: NDArray[np.int32]


def starters(trace: TraceData) -> Starters:
    """Find out what started each kernel, copy and filling, once for a trace."""

    def make() -> Starters:
        spans, launches = trace.columns("spans"), trace.columns("launches")
        call = np.full(len(spans) + 1, -1, dtype=np.int32)
        operator = call.copy()
        counted = counted_launches(spans, launches)
        device = launches["device"][counted]
        owner = started_by(spans, launches)[counted]
        call[device] = launches["host"][counted]
        operator[device] = np.where(calls_runtime(spans["kind"][owner]), -1, owner)
        return Starters(call, operator)

    return trace.cached("starters", make)
