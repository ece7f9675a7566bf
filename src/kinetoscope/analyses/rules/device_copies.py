"""Tensors are copied between host and device, and the program or the device waits for it.

What a copy costs is the time in which the device copies and does nothing else, and the time for which it is then idle because the
host waited for the copy, and not in it for work that was launched before. Sources: TraceLens (copies above 5 %), nsys (any copy of pageable memory). Thresholds: 5 % of step time at
one line; 2 % for pageable memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.tables.device.launches import most_copy_ns, starters
from kinetoscope.tables.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_PERCENT = 5.0
LEAST_PAGEABLE_PERCENT = 2.0
TIMES_COPY = 2
"""A wait that takes more than so many times as long as its copies may take is one for something else."""
COPYING = frozenset(
    {
        "aten::to",
        "aten::_to_copy",
        "aten::type_as",
        "aten::copy_",
        "aten::cpu",
        "aten::cuda",
        "aten::pin_memory",
    }
)
"""Operators that copy tensors; one that reads a value to decide something waits for the device, whatever it copies."""


def host_device_copies(loop: Loop) -> Finding | None:
    """Find the line whose copies between host and device cost most."""
    copies = _between_host_and_device(loop)
    calls = loop.called_by(starters(loop.trace).call[copies].astype(np.int64))
    known = calls >= 0
    copies, calls = copies[known], calls[known]
    best = max(
        (
            (_cost_ns(loop, copies[np.isin(calls, rows)]), place, copies[np.isin(calls, rows)], rows)
            for place, _, rows in loop.by_place(calls, loop.trace.column("spans", "duration_ns")[copies])
        ),
        key=lambda one: one[0],
        default=None,
    )
    if best is None or (share := loop.share(best[0])) < LEAST_PERCENT:
        return None
    time_ns, place, mine, rows = best
    return Finding(
        "host-device-copies",
        sentence(
            f"{place or 'The program'} copies tensors between host and device {loop.counted(len(mine), 'time')}: {{}} of {loop.unit.time}",
            (share, "%"),
        ),
        "Create tensors on the device, copy once and in large pieces, and copy batches from pinned memory with non_blocking=True.",
        share,
        time_ns,
        place,
        loop.module_of(int(rows[0])),
        tuple(np.unique(mine)[:MOST_ROWS].tolist()),
        time=_when(loop, mine),
    )


def pageable_copy(loop: Loop) -> Finding | None:
    """Find copies of pageable memory, which the driver first copies to pinned memory while the program waits."""
    copies = _between_host_and_device(loop, pageable=True)
    time_ns = _cost_ns(loop, copies)
    share = loop.share(time_ns)
    if share < LEAST_PAGEABLE_PERCENT:
        return None
    spans = loop.trace.columns("spans")
    longest = copies[np.argsort(-spans["duration_ns"][copies], kind="stable")]
    call = loop.called_by(starters(loop.trace).call[longest[:1]].astype(np.int64))
    place = loop.place_of(int(call[0]))
    return Finding(
        "pageable-copy",
        sentence(
            f"The program copies from or to pageable memory {loop.counted(len(copies), 'time')}"
            f"{f', most at {place}' if place else ''}: {{}} of {loop.unit.time}",
            (share, "%"),
        ),
        "Use pinned memory: DataLoader(..., pin_memory=True) or tensor.pin_memory(), and then .to(device, non_blocking=True).",
        share,
        time_ns,
        place,
        spans=tuple(longest[:MOST_ROWS].tolist()),
        time=_when(loop, copies),
    )


def _when(loop: Loop, copies: NDArray[np.int64]) -> Intervals:
    """When some copies run, and when the device is idle after the host had waited for them."""
    if loop.device is None:
        return Intervals.none()
    idle, opened = loop.device.idle, _opened(loop, copies)
    return loop.when(copies) | Intervals.of(idle.start_ns[opened], idle.end_ns[opened])


def _opened(loop: Loop, copies: NDArray[np.int64]) -> NDArray[np.int64]:
    """The gaps of the loop's device that began when the host waited for some copies: a wait for a copy lies in the operator that copies."""
    if loop.device is None:
        return np.zeros(0, dtype=np.int64)
    waits = loop.device.gaps.wait
    calls = np.unique(loop.called_by(starters(loop.trace).call[copies].astype(np.int64)))
    opened = np.flatnonzero(np.isin(waits, copying_calls(loop)))
    return opened[np.isin(loop.called_by(waits[opened]), calls[calls >= 0])]


def copying_calls(loop: Loop) -> NDArray[np.int64]:
    """The waits before the gaps of the loop's device in which the program waits for a copy of a tensor: not for a value, nor for what ran before.

    A copy to the host waits for all work that was launched before it. It is blamed for no more than what its bytes may take.
    """
    if loop.device is None:
        return np.zeros(0, dtype=np.int64)
    spans = loop.trace.columns("spans")
    waits = np.unique(loop.device.gaps.wait)
    waits = waits[waits >= 0]
    copying = np.array([text in COPYING for text in loop.trace.strings], dtype=bool)
    calls = loop.called_by(waits)
    waits, calls = waits[copying[spans["name"][calls]]], calls[copying[spans["name"][calls]]]
    copies = loop.device.copies[0]
    owner = loop.called_by(starters(loop.trace).call[copies].astype(np.int64))
    most_ns = np.zeros(len(spans) + 1, dtype=np.int64)
    np.add.at(most_ns, owner, most_copy_ns(loop.trace, copies))
    return np.asarray(waits[spans["duration_ns"][waits] <= TIMES_COPY * most_ns[calls]])


def _between_host_and_device(loop: Loop, *, pageable: bool = False) -> NDArray[np.int64]:
    """The copies of the loop's device from or to the host's memory, or to pageable memory only, that an operator copying tensors started."""
    if loop.device is None:
        return np.zeros(0, dtype=np.int64)
    rows, directions = loop.device.copies
    chosen = [
        one.name in ("HtoD", "DtoH") and (not pageable or "pageable" in (one.source, one.target))
        for one in directions
    ]
    rows = rows[np.array(chosen, dtype=bool)]
    calls = loop.called_by(starters(loop.trace).call[rows].astype(np.int64))
    copying = np.array([*(text in COPYING for text in loop.trace.strings), True], dtype=bool)
    names = loop.trace.column("spans", "name")
    return np.asarray(rows[copying[np.where(calls >= 0, names[calls], -1)]])


def _cost_ns(loop: Loop, copies: NDArray[np.int64]) -> int:
    """What some copies cost: the time in which the device only copied, and its idle time after the host had waited for them."""
    if loop.device is None or len(copies) == 0:
        return 0
    spans, activity, gaps = loop.trace.columns("spans"), loop.device.activity, loop.device.gaps
    start = spans["start_ns"][copies]
    end = start + spans["duration_ns"][copies]
    only = (activity.copies - activity.compute - activity.communication).within(start, end)
    opened = _opened(loop, copies)
    rows = np.concatenate((copies, gaps.wait[opened]))
    return loop.typical_sum(rows, np.concatenate((only, gaps.length_ns[opened])))
