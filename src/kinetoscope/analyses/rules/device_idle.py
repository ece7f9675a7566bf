"""The device does nothing while the program runs: because it waits for launches, or because the host waited for it before.

A gap belongs to the call that waited for the device when the gap began: nothing was queued behind it. Every other gap is the host's:
it did not launch in time. Where work is queued, the device waits for neither: for another stream or rank, or for work that the trace
lacks. Thresholds: 15 % of step time (TraceLens; 10 % in XProf), 2 % for what one line does; nsys reports any synchronization that
takes 1 ms in total.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.analyses.rules.device_copies import copying_calls
from kinetoscope.display.sentence import sentence
from kinetoscope.model.kinds import is_runtime_call
from kinetoscope.tables.device.launches import starters, waiting_calls
from kinetoscope.tables.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.analyses.loop_device import LoopDevice

LEAST_IDLE_PERCENT = 15.0
LEAST_STALLED_PERCENT = 10.0
LEAST_START_UP_PERCENT = 10.0
LEAST_START_UP_NS = 5_000_000
"""Calls of the runtime that take longer than this while the device has nothing to do start something up."""
# Calls of CUDA, HIP, Level Zero and Unified Runtime; what other sources call runtime may be the work of a whole function.
_OF_DRIVER = re.compile(r"(cuda|cu|hip|ze|ur)[A-Z]")
LEAST_LAUNCH_PERCENT = 10.0
LEAST_SYNC_PERCENT = 2.0
LEAST_LAUNCHES = 50
"""Fewer launches a step are not what keeps the host busy."""
LEAST_AT_PLACE = 0.5
"""A line that the host is at for so much of the idle time is named."""
_NOT_IN_TIME = "the program does not launch work in time"
LONGEST_LAUNCH_NS = 100_000
"""Calling an operator and launching its kernel takes less; what takes longer is other work of the program."""


def device_idle(loop: Loop) -> Finding | None:
    """Find a device that is idle for much of the step, and the cause of most of it."""
    device = loop.device
    if device is None:
        return _hardly_used(loop)
    if device.captures:
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
        _NOT_IN_TIME: (
            np.where(gaps.wait < 0, gaps.length_ns, 0),
            "Do less on the host: torch.compile, larger batches, fewer and fused operators, CUDA graphs.",
        ),
        "the program waits for copies and only then launches more": (
            np.where(copies, gaps.length_ns, 0),
            "Copy from pinned memory with non_blocking=True, and create tensors on the device.",
        ),
        "the program waits for the device and only then launches more": (
            np.where((gaps.wait >= 0) & ~copies, gaps.length_ns, 0),
            "Read values later and seldom, and use events instead of synchronization.",
        ),
    }
    cause = max(causes, key=lambda one: int(causes[one][0].sum()))
    value, advice = causes[cause]
    place, place_ns, operator = (
        _busiest_meanwhile(loop, device) if cause == _NOT_IN_TIME else (Place(), 0, "")
    )
    here = ""
    if place_ns >= LEAST_AT_PLACE * idle_ns:
        mostly = f", mostly in {operator}" if operator else ""
        here = f"; for {{}} of {loop.unit.time} the host is meanwhile at {place}{mostly}"
    return Finding(
        "device-idle",
        sentence(
            f"{device.name} is idle for {{}} of {loop.unit.time}, mostly because {cause} ({{}}){here}",
            (share, "%"),
            (loop.share(loop.typical_at(device.idle.start_ns, value)), "%"),
            *([(loop.share(place_ns), "%")] if here else []),
        ),
        advice,
        share,
        idle_ns,
        place if here else Place(),
        spans=_next_work(loop, device, np.argsort(-value, kind="stable")[:MOST_ROWS]),
        time=device.idle,
    )


def _busiest_meanwhile(loop: Loop, device: LoopDevice) -> tuple[Place, int, str]:
    """The line at which the host spends most of the time in which the device is idle, how long, and the operator that has most of that, if one has."""
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(loop.inside & loop.outermost)
    start = spans["start_ns"][rows].astype(np.int64)
    idle_ns = device.idle.within(start, start + spans["duration_ns"][rows])
    found = {gap.place: gap.time_ns for gap in loop.gaps}
    rows_at: dict[Place, NDArray[np.int64]] = {}
    for place, time_ns, mine in loop.by_place(rows, idle_ns):
        found[place], rows_at[place] = found.get(place, 0) + time_ns, mine
    place = max((one for one in found if one), key=lambda one: found[one], default=Place())
    here = np.isin(rows, rows_at.get(place, rows[:0]))
    names = np.bincount(spans["name"][rows[here]], weights=idle_ns[here], minlength=1)
    most = int(np.argmax(names))
    has_most = names[most] >= LEAST_AT_PLACE * max(found.get(place, 0), 1)
    return place, found.get(place, 0), loop.trace.strings[most] if has_most else ""


def _hardly_used(loop: Loop) -> Finding | None:
    """Find a device that did something, but hardly anything."""
    device = loop.hardly_used
    if device is None or device.captures or len(device.rows) == 0:
        return None
    busy_ns = loop.time.working_ns if loop.time else 0
    return Finding(
        "device-idle",
        sentence(f"{device.name} works for {{}} of {loop.unit.time}", (loop.share(busy_ns), "%")),
        "Check that the model and its inputs are on the device, and that the recording holds the work that you want to look at.",
        100.0 - loop.share(busy_ns),
        None,
        spans=tuple(device.rows[:MOST_ROWS].tolist()),
    )


def stalled_queue(loop: Loop) -> Finding | None:
    """Find a device that does nothing although work was launched long ago, and what that work waits for."""
    device = loop.device
    if device is None:
        return None
    length = device.stalled.end_ns - device.stalled.start_ns
    time_ns = loop.typical_at(device.stalled.start_ns, length)
    share = loop.share(time_ns)
    if share < LEAST_STALLED_PERCENT:
        return None
    spans, after = loop.trace.columns("spans"), device.after_stalls
    call = starters(loop.trace).call
    in_graph = np.array([*("GraphLaunch" in text for text in loop.trace.strings), False], dtype=bool)
    first = np.isin(after, device.first_of_streams) & (device.stalled.start_ns < loop.end_ns[0])
    graph = ~first & in_graph[np.append(spans["name"], -1)[call[after]]]
    causes = {
        "it waits for work that was launched before the recording began, and that the trace lacks": (
            first,
            "Nothing can be said of this time. Wait for the device before the recording begins (torch.cuda.synchronize()), or record longer.",
        ),
        "the work of CUDA graphs waits, or the trace lacks kernels of them": (
            graph,
            "Look at what the graph waits for: events and other streams that were captured, collectives. Record without graphs to see all of its kernels.",
        ),
        "it waits for another stream, another rank, or work that the trace lacks": (
            ~first & ~graph,
            "Look at what its streams wait for: events (Event.wait, Stream.wait_stream), other ranks, and launches before the recording began.",
        ),
    }
    cause = max(causes, key=lambda one: int(length[causes[one][0]].sum()))
    chosen, advice = causes[cause]
    longest = np.flatnonzero(chosen)[np.argsort(-length[chosen], kind="stable")][:MOST_ROWS]
    return Finding(
        "stalled-queue",
        sentence(
            f"Nothing that was recorded runs on {device.name} for {{}} of {loop.unit.time} although work is queued: {cause}",
            (share, "%"),
        ),
        advice,
        share,
        None,
        spans=tuple(dict.fromkeys(after[longest][after[longest] >= 0].tolist())),
    )


def device_start_up(loop: Loop) -> Finding | None:
    """Find calls of the runtime that create the context of a device, load kernels or allocate for long, while the device has nothing to do."""
    device = loop.device or loop.hardly_used
    spans, strings = loop.trace.columns("spans"), loop.trace.strings
    rows = np.flatnonzero(is_runtime_call(spans["kind"]) & (spans["duration_ns"] >= LEAST_START_UP_NS))
    rows = rows[
        np.array(
            [_OF_DRIVER.match(strings[one]) is not None for one in spans["name"][rows].tolist()], dtype=bool
        )
    ]
    rows = rows[loop.in_steps(rows) & loop.of_process(rows) & ~np.isin(rows, waiting_calls(loop.trace))]
    start, idle_ns = spans["start_ns"][rows], spans["duration_ns"][rows].astype(np.int64)
    if device is not None:
        rows = rows[~np.isin(rows, device.waits_besides_frees)]
        start = spans["start_ns"][rows]
        idle_ns = device.idle.within(start, start + spans["duration_ns"][rows])
    rows, idle_ns = rows[idle_ns >= LEAST_START_UP_NS], idle_ns[idle_ns >= LEAST_START_UP_NS]
    share = loop.share(int(idle_ns.sum()))
    if share < LEAST_START_UP_PERCENT:
        return None
    names = [strings[one] for one in spans["name"][rows].tolist()]
    each = Counter[str]()
    for name, time_ns in zip(names, idle_ns.tolist(), strict=True):
        each[name] += time_ns
    longest = each.most_common(3)
    return Finding(
        "device-start-up",
        sentence(
            f"Calls of the runtime start up {device.name if device else 'the device'} for {{}} of {loop.unit.time}: {', '.join(f'{name} ({{}})' for name, _ in longest)}",
            (share, "%"),
            *((time_ns, "ns") for _, time_ns in longest),
        ),
        "These create the context of the device, load its kernels and allocate memory. They come once: use the device before the recording begins, and leave out "
        "the first steps (kinetoscope.schedule(warmup=...)).",
        share,
        int(idle_ns.sum()),
        loop.place_of(int(loop.called_by(rows[[np.argmax(idle_ns)]])[0])),
        spans=tuple(rows[np.argsort(-idle_ns, kind="stable")][:MOST_ROWS].tolist()),
    )


def _moments(device: LoopDevice, chosen: NDArray[Any]) -> Intervals:
    """Some of the gaps of a device, by a mask or by their places."""
    return Intervals.of(device.idle.start_ns[chosen], device.idle.end_ns[chosen])


def launch_bound(loop: Loop) -> Finding | None:
    """Find a device that again and again waits a moment for its next kernel, because kernels are short and many."""
    device = loop.device
    if device is None or device.captures:
        return None
    gaps, kernels = device.gaps, device.kernels
    by_host = np.where(gaps.wait < 0, gaps.length_ns, 0)
    short = np.where(by_host <= LONGEST_LAUNCH_NS, by_host, 0)
    short_ns = loop.typical_at(device.idle.start_ns, short)
    share, each = loop.share(short_ns), loop.per_step(loop.launched_kernels)
    if share < LEAST_LAUNCH_PERCENT or each < LEAST_LAUNCHES or 2 * short.sum() < by_host.sum():
        return None
    duration = loop.trace.column("spans", "duration_ns")[kernels]
    return Finding(
        "launch-bound",
        sentence(
            f"{device.name} waits for launches for {{}} of {loop.unit.time}: {{}} kernels{loop.unit.each}, {{}} each on average",
            (share, "%"),
            round(each),
            (float(duration.mean()), "ns"),
        ),
        'Launch less: torch.compile(mode="reduce-overhead") or CUDA graphs, larger batches, fused optimizers and layers.',
        share,
        short_ns,
        spans=_next_work(loop, device, np.argsort(-short, kind="stable")[:MOST_ROWS]),
        # What small kernels and this say is of the same launches.
        time=_moments(device, short > 0) | loop.when(kernels),
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
                f"idle for {{}} of {loop.unit.time}",
                (share, "%"),
            ),
            "Keep values on the device and read them seldom, and use events or streams instead of "
            "synchronize().",
            share,
            idle_ns,
            place,
            loop.module_of(int(rows[0])),
            tuple(waits[:MOST_ROWS].tolist()),
            time=_moments(device, mine),
        )
    return None


def _next_work(loop: Loop, device: LoopDevice, gaps: NDArray[np.int64]) -> tuple[int, ...]:
    """The work of the device that ended some gaps."""
    start = loop.trace.column("spans", "start_ns")[device.rows]
    order = np.argsort(start, kind="stable")
    after = np.searchsorted(start[order], device.idle.end_ns[gaps], side="left")
    found = device.rows[order[after[after < len(order)]]]
    return tuple(dict.fromkeys(found.tolist()))
