"""Copies between host and device: the program or the device waits for them.

A copy costs the time in which the device copies and does nothing else. It also costs the time for which the device is then idle because
the host waited for the copy, but not the part of that wait in which work launched before ran.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.loop_device import LoopDevice
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.tables.device.launches import most_copy_ns, starters
from kinetoscope.tables.intervals import Intervals, ran_within

TIMES_COPY = 2
"""A wait that takes more than so many times as long as its copies may take is one for something else."""
COPYING = frozenset(
    (
        "aten::to",
        "aten::_to_copy",
        "aten::type_as",
        "aten::copy_",
        "aten::cpu",
        "aten::cuda",
        "aten::pin_memory",
    )
)
"""Operators that copy tensors; one that reads a value to decide something waits for the device, whatever it copies."""


@Rule(
    "host-device-copies",
    "{place} copies tensors between host and device {copies:time}: {share} of {time}",
    "Create tensors on the device, copy once and in large pieces, and copy batches from pinned memory with non_blocking=True.",
    finds="copies between host and device at one line that nothing hides",
    source="TraceLens",
    least=5.0,
    explains=("device-idle",),
).selects_on
def host_device_copies(loop: Loop, device: LoopDevice) -> Answer:
    """The line whose copies between host and device cost most."""
    copies = _between_host_and_device(loop, device)
    calls = loop.called_by(starters(loop.trace).call[copies].astype(np.int64))
    copies, calls = copies[calls >= 0], calls[calls >= 0]
    lines = loop.by_place(calls, loop.trace.column("spans", "duration_ns")[copies])
    of_line = [(line, rows, copies[np.isin(calls, rows)]) for line, _, rows in lines]
    costs = [_cost_ns(loop, device, copied) for _, _, copied in of_line]
    if not costs:
        return None
    cost_ns, (line, rows, copied) = max(zip(costs, of_line, strict=True), key=lambda pair: pair[0])
    words, module = {"copies": len(copied)}, loop.module_of(int(rows[0]))
    return Match(copied, cost_ns, words, place=line, module=module, time=_when(loop, device, copied))


@Rule(
    "pageable-copy",
    "Pageable memory is copied {copies:time}{most_at}: {share} of {time}",
    "Use pinned memory: DataLoader(..., pin_memory=True) or tensor.pin_memory(), and then .to(device, non_blocking=True).",
    finds=(
        "copies from or to memory that is not pinned; a wait of more than twice what their bytes take at 2 GB/s is `synchronizing-call`"
    ),
    source="nsys (any copy of pageable memory)",
    least=2.0,
    explains=("device-idle", "host-device-copies"),
).selects_on
def pageable_copy(loop: Loop, device: LoopDevice) -> Answer:
    """Copies of pageable memory, which the driver first copies to pinned memory while the program waits."""
    copies = _between_host_and_device(loop, device, pageable=True)
    if len(copies) == 0:
        return None
    longest = copies[[np.argmax(loop.trace.column("spans", "duration_ns")[copies])]]
    line = loop.place_of(int(loop.called_by(starters(loop.trace).call[longest].astype(np.int64))[0]))
    cost_ns, when = _cost_ns(loop, device, copies), _when(loop, device, copies)
    return Match(copies, cost_ns, {"copies": len(copies)}, place=line, module="", time=when)


def _when(loop: Loop, device: LoopDevice, copies: Rows) -> Intervals:
    """When some copies run, and when the device is idle after the host had waited for them."""
    idle, opened = device.idle, _opened(loop, device, copies)
    return loop.when(copies) | Intervals.of(idle.start_ns[opened], idle.end_ns[opened])


def _opened(loop: Loop, device: LoopDevice, copies: Rows) -> Rows:
    """The gaps of the loop's device that began when the host waited for some copies: a wait for a copy lies in the operator that copies."""
    waits = device.gaps.wait
    calls = np.unique(loop.called_by(starters(loop.trace).call[copies].astype(np.int64)))
    opened = np.flatnonzero(np.isin(waits, copying_calls(loop, device)))
    return opened[np.isin(loop.called_by(waits[opened]), calls[calls >= 0])]


def copying_calls(loop: Loop, device: LoopDevice) -> Rows:
    """The waits before the gaps of the loop's device in which the program waits for a copy of a tensor: not for a value, nor for what ran before.

    A copy to the host waits for all work that was launched before it. It is blamed for no more than what its bytes may take.
    """
    spans = loop.trace.columns("spans")
    waits = np.unique(device.gaps.wait)
    waits = waits[waits >= 0]
    copying = np.array([text in COPYING for text in loop.trace.strings], dtype=bool)
    calls = loop.called_by(waits)
    waits, calls = waits[copying[spans["name"][calls]]], calls[copying[spans["name"][calls]]]
    copies = device.copies[0]
    owner = loop.called_by(starters(loop.trace).call[copies].astype(np.int64))
    by_owner = Groups(np.where(owner < 0, len(spans), owner), len(spans) + 1)
    most_ns = by_owner.sums(most_copy_ns(loop.trace, copies))
    return np.asarray(waits[spans["duration_ns"][waits] <= TIMES_COPY * most_ns[calls]])


def _between_host_and_device(loop: Loop, device: LoopDevice, *, pageable: bool = False) -> Rows:
    """The copies of the loop's device from or to the host's memory, or to pageable memory only, that an operator copying tensors started."""
    rows, directions = device.copies
    chosen = [
        direction.name in ("HtoD", "DtoH")
        and (not pageable or "pageable" in (direction.source, direction.target))
        for direction in directions
    ]
    rows = rows[np.array(chosen, dtype=bool)]
    calls = loop.called_by(starters(loop.trace).call[rows].astype(np.int64))
    copying = np.array([*(text in COPYING for text in loop.trace.strings), True], dtype=bool)
    names = loop.trace.column("spans", "name")
    return np.asarray(rows[copying[np.where(calls >= 0, names[calls], -1)]])


def _cost_ns(loop: Loop, device: LoopDevice, copies: Rows) -> int:
    """What some copies cost: the time in which the device only copied, and its idle time after the host had waited for them."""
    activity, gaps = device.activity, device.gaps
    only = ran_within(loop.trace, copies, activity.copies - activity.compute - activity.communication)
    opened = _opened(loop, device, copies)
    rows = np.concatenate((copies, gaps.wait[opened]))
    return loop.typical_sum(rows, np.concatenate((only, gaps.length_ns[opened])))
