"""The device does nothing while the program runs: because it waits for launches, or because the host waited for it before.

A gap belongs to the call that waited for the device when the gap began: nothing was queued behind it. Every other gap is the host's:
it did not launch in time. Thresholds: 15 % of step time (TraceLens; 10 % in XProf), 2 % for what one line does; nsys reports any
synchronization that takes 1 ms in total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.analyses.rules.device_copies import copying_calls
from kinetoscope.display.sentence import sentence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.analyses.loop_device import LoopDevice

LEAST_IDLE_PERCENT = 15.0
LEAST_LAUNCH_PERCENT = 10.0
LEAST_SYNC_PERCENT = 2.0
LEAST_LAUNCHES = 50
"""Fewer launches a step are not what keeps the host busy."""
LONGEST_LAUNCH_NS = 100_000
"""Calling an operator and launching its kernel takes less; what takes longer is other work of the program."""


def device_idle(loop: Loop) -> Finding | None:
    """Find a device that is idle for much of the step, and the cause of most of it."""
    device = loop.device
    if device is None or device.captures:
        return None
    idle_ns = loop.typical_at(device.idle.start_ns, device.idle.end_ns - device.idle.start_ns)
    share = loop.share(idle_ns)
    if share < LEAST_IDLE_PERCENT:
        return None
    gaps = device.gaps
    loading_ns = device.idle.end_ns - device.idle.start_ns - gaps.length_ns
    copies = np.isin(gaps.wait, copying_calls(loop))
    causes = {
        "the program waits for its data loader": (
            loading_ns,
            "Load data in workers: DataLoader(..., num_workers=4, persistent_workers=True).",
        ),
        "the program does not launch work in time": (
            np.where(gaps.wait < 0, gaps.length_ns, 0),
            "Do less on the host in each step: torch.compile, larger batches, fewer and fused operators, CUDA graphs.",
        ),
        "the program waits for copies and only then launches more": (
            np.where(copies, gaps.length_ns, 0),
            "Copy from pinned memory with non_blocking=True, and create tensors on the device.",
        ),
        "the program waits for the device and only then launches more": (
            np.where((gaps.wait >= 0) & ~copies, gaps.length_ns, 0),
            "Do not wait in the step: read values later and seldom, and use events instead of synchronization.",
        ),
    }
    cause = max(causes, key=lambda one: int(causes[one][0].sum()))
    value, advice = causes[cause]
    return Finding(
        "device-idle",
        sentence(
            f"{device.name} is idle for {{}} of step time, mostly because {cause} ({{}})",
            (share, "%"),
            (loop.share(loop.typical_at(device.idle.start_ns, value)), "%"),
        ),
        advice,
        share,
        idle_ns,
        spans=_next_work(loop, device, np.argsort(-value, kind="stable")[:MOST_ROWS]),
    )


def launch_bound(loop: Loop) -> Finding | None:
    """Find a device that again and again waits a moment for its next kernel, because kernels are short and many."""
    device = loop.device
    if device is None or device.captures:
        return None
    gaps, kernels = device.gaps, device.kernels
    by_host = np.where(gaps.wait < 0, gaps.length_ns, 0)
    short = np.where(by_host <= LONGEST_LAUNCH_NS, by_host, 0)
    short_ns = loop.typical_at(device.idle.start_ns, short)
    share, each = loop.share(short_ns), loop.per_step(len(kernels))
    if share < LEAST_LAUNCH_PERCENT or each < LEAST_LAUNCHES or 2 * short.sum() < by_host.sum():
        return None
    duration = loop.trace.column("spans", "duration_ns")[kernels]
    return Finding(
        "launch-bound",
        sentence(
            f"{device.name} waits for launches for {{}} of step time: {{}} kernels a step, {{}} each on average",
            (share, "%"),
            round(each),
            (float(duration.mean()), "ns"),
        ),
        'Launch less: torch.compile(mode="reduce-overhead") or CUDA graphs, larger batches, fused optimizers and layers.',
        share,
        short_ns,
        spans=_next_work(loop, device, np.argsort(-short, kind="stable")[:MOST_ROWS]),
    )


def synchronizing_call(loop: Loop) -> Finding | None:
    """Find the line that waits for the device, so that nothing is queued when it goes on."""
    device = loop.device
    if device is None:
        return None
    gaps, spans = device.gaps, loop.trace.columns("spans")
    caused = np.flatnonzero((gaps.wait >= 0) & ~np.isin(gaps.wait, copying_calls(loop)))
    if len(caused) == 0:
        return None
    calls = loop.called_by(gaps.wait[caused])
    for place, _, rows in loop.by_place(calls, gaps.length_ns[caused])[:1]:
        mine = caused[np.isin(calls, rows)]
        idle_ns = loop.typical_at(device.idle.start_ns[mine], gaps.length_ns[mine])
        share = loop.share(idle_ns)
        if share < LEAST_SYNC_PERCENT:
            return None
        name = loop.trace.strings[int(spans["name"][rows[0]])]
        waits = np.unique(gaps.wait[mine])
        return Finding(
            "synchronizing-call",
            sentence(
                f"{name}{f' at {place}' if place else ''} waits for {device.name} {loop.counted(len(waits), 'time')}; the device is then "
                "idle for {} of step time",
                (share, "%"),
            ),
            "Do not wait in the step: keep values on the device and read them every N steps, and use events or streams instead of "
            "synchronize().",
            share,
            idle_ns,
            place,
            loop.module_of(int(rows[0])),
            tuple(waits[:MOST_ROWS].tolist()),
        )
    return None


def _next_work(loop: Loop, device: LoopDevice, gaps: NDArray[np.int64]) -> tuple[int, ...]:
    """The work of the device that ended some gaps."""
    start = loop.trace.column("spans", "start_ns")[device.rows]
    order = np.argsort(start, kind="stable")
    after = np.searchsorted(start[order], device.idle.end_ns[gaps], side="left")
    found = device.rows[order[after[after < len(order)]]]
    return tuple(dict.fromkeys(found.tolist()))
