"""Which operator started what ran on a device, and how long that ran.

A device's work is its kernels, copies and fillings. Ranges and waits that a source draws on a device's tracks only
describe time in which such work may run, and are never counted as work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.columns import Columns
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_call, is_device_work, is_operator, is_runtime_call
from kinetoscope.model.rows import Mask, Rows


def counted_launches(spans: Columns, launches: Columns) -> Rows:
    """The launches by which device time is counted: of work that a host span started, the first one of each device span."""
    host, device = launches["host"], launches["device"]
    rows = np.flatnonzero(device >= 0)
    rows = rows[is_device_work(spans["kind"][device[rows]])]
    # The last write wins: each device span remembers its first launch.
    first = np.full(len(spans), -1, dtype=np.int32)
    first[device[rows][::-1]] = rows[::-1]
    return np.asarray(rows[(first[device[rows]] == rows) & (host[rows] >= 0)])


def operators_around(
    spans: Mapping[str, Any] | Columns,
    calls: NDArray[np.int32],
    parent: NDArray[np.int32],
    nests: Mask,
) -> NDArray[np.int32]:
    """For each call of a runtime the innermost operator or backward function around it.

    Where none is, the innermost range, and without that the call itself. A call that begins in an operator and ends
    after it, as clocks of microseconds make them, nests in nothing; it belongs to what ran when it began.

    Args:
        spans: The columns `kind`, `thread`, `start_ns` and `duration_ns`.
        calls: Rows of spans; those of other kinds, and -1, are returned as they are.
        parent: For every span the one around it.
        nests: Which spans may be around others.
    """
    kind = spans["kind"]
    is_call = is_runtime_call(kind)
    operators = calls.copy()
    rows = np.flatnonzero(calls >= 0)
    rows = rows[is_call[calls[rows]]]
    around = _climbed(calls[rows], parent, is_call)
    alone = np.flatnonzero(is_call[around])
    if len(alone):
        running = _running_at_start(spans, calls[rows[alone]], parent, nests & ~is_call)
        around[alone] = np.where(running >= 0, running, around[alone])
    operator = _climbed(around, parent, ~is_operator(kind))
    operators[rows] = np.where(is_operator(kind[operator]), operator, around)
    return operators


def _climbed(rows: NDArray[np.int32], parent: NDArray[np.int32], passed: Mask) -> NDArray[np.int32]:
    """Climb from each row until a span that is not passed, or one without a parent."""
    reached = rows.copy()
    waiting = np.flatnonzero(passed[reached] & (parent[reached] >= 0))
    while len(waiting):
        reached[waiting] = parent[reached[waiting]]
        still = reached[waiting]
        waiting = waiting[passed[still] & (parent[still] >= 0)]
    return reached


def _running_at_start(
    spans: Mapping[str, Any] | Columns,
    rows: NDArray[np.int32],
    parent: NDArray[np.int32],
    may: Mask,
) -> NDArray[np.int32]:
    """The innermost of the spans that `may` be around others that runs when each row begins, -1 without."""
    thread, start_ns, duration_ns = (spans[name] for name in ("thread", "start_ns", "duration_ns"))
    candidates = np.flatnonzero(may).astype(np.int32)
    running = np.append(candidates, np.int32(-1))[np.searchsorted(candidates, rows, side="right") - 1]
    begins = start_ns[rows]
    waiting = np.flatnonzero(running >= 0)
    while len(waiting):
        still = running[waiting]
        over = (start_ns[still] + duration_ns[still] <= begins[waiting]) | ~may[still]
        running[waiting[over]] = parent[still[over]]
        waiting = waiting[over]
        waiting = waiting[running[waiting] >= 0]
    running[(running >= 0) & (thread[running] != thread[rows])] = -1
    return running


def started_by(spans: Columns, calls: NDArray[np.int32]) -> NDArray[np.int32]:
    """For each call of a runtime, as of a launch, the span that its time counts for: the operator around it."""
    nests = (spans["lane"] == 0) & (spans["stream"] < 0) & ~is_call(spans["kind"])
    return operators_around(spans, calls, spans["parent"], nests)


def device_self_ns(spans: Columns, launches: Columns) -> Rows:
    """For each span of the host the time of the work it started on devices, spans inside it left out."""
    counted = counted_launches(spans, launches)
    owner = started_by(spans, launches["host"])[counted]
    duration: Rows = spans["duration_ns"][launches["device"][counted]]
    return Groups(owner, len(spans)).sums(duration)
