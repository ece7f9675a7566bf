"""Idle devices: they wait for the host, for copies, for other streams, or for what the trace lacks.

A gap belongs to the call that waited for the device when the gap began: nothing was queued behind it. Every other gap is the host's: it did not launch in
time. Where work is queued, the device waits for neither: for another stream or rank, or for work that the trace lacks.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.analyses.loop import MOST_ROWS, Loop, SourceLine, busiest
from kinetoscope.analyses.loop_device import LoopDevice
from kinetoscope.analyses.rule import NOWHERE, Answer, Match, Rule
from kinetoscope.analyses.rules.device_copies import copying_calls
from kinetoscope.analyses.rules.input_wait import workers_for
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_runtime_call
from kinetoscope.model.rows import Rows
from kinetoscope.tables.device.launches import starters, waiting_calls
from kinetoscope.tables.intervals import Intervals, ran_within

LEAST_START_UP_NS = 5_000_000
"""Calls of the runtime that take longer than this while the device has nothing to do start something up."""
# Calls of CUDA, HIP, Level Zero and Unified Runtime; what other sources call runtime may be the work of a whole function.
_OF_DRIVER = re.compile(r"(cuda|cu|hip|ze|ur)[A-Z]")
LEAST_LAUNCHES = 50
"""Fewer launches a step are not what keeps the host busy."""
LEAST_AT_PLACE = 0.5
"""A line that the host is at for so much of the idle time is named."""
_NOT_IN_TIME = "the program does not launch work in time"
LONGEST_LAUNCH_NS = 100_000
"""Calling an operator and launching its kernel takes less; what takes longer is other work of the program."""
_IDLE_ADVICE = {
    "the program waits for its data loader": "Load data in workers: DataLoader(..., num_workers={workers}, persistent_workers=True).",
    _NOT_IN_TIME: "Do less on the host: torch.compile, larger batches, fewer and fused operators, CUDA graphs.",
    "the program waits for copies and only then launches more": "Copy from pinned memory with non_blocking=True, and create tensors on the device.",
    "the program waits for the device and only then launches more": "Read values later and seldom, and use events instead of synchronization.",
}
_STALL_ADVICE = {
    "it waits for work that was launched before the recording began, and that the trace lacks": (
        "Nothing can be said of this time. Wait for the device before the recording begins (torch.cuda.synchronize()), or record longer."
    ),
    "the work of CUDA graphs waits, or the trace lacks kernels of them": (
        "Look at what the graph waits for: events and other streams that were captured, collectives. Record without graphs to see all of its kernels."
    ),
    "it waits for another stream, another rank, or work that the trace lacks": (
        "Look at what its streams wait for: events (Event.wait, Stream.wait_stream), other ranks, and launches before the recording began."
    ),
}


@Rule(
    "device-idle",
    "{device} is idle for {share} of {time}, mostly because {cause} ({part:of_time}){meanwhile}",
    _IDLE_ADVICE[_NOT_IN_TIME],
    finds="the device has nothing to do, and why: data loading, launches, copies, or waits of the host; or it did hardly anything",
    source="TraceLens (10 % in XProf)",
    also="or busy for less than 1%",
    least=15.0,
).selects
def device_idle(loop: Loop) -> Answer:
    """A device that is idle for much of the step, and the cause of most of it."""
    device = loop.device
    if device is None:
        return _hardly_used(loop)
    if device.captures:
        return None
    start_ns = device.idle.start_ns
    idle_ns, kind_ns = loop.by_kind_at(start_ns, device.idle.end_ns - start_ns)
    values = _idle_by_cause(loop, device)
    cause = max(values, key=lambda cause: int(values[cause].sum()))
    line, meanwhile = _meanwhile(loop, device, idle_ns) if cause == _NOT_IN_TIME else (NOWHERE, "")
    words = {
        "cause": cause,
        "part": loop.typical_at(start_ns, values[cause]),
        "meanwhile": meanwhile,
    }
    rows = _next_work(loop, device, np.argsort(-values[cause], kind="stable")[:MOST_ROWS])
    advice = _IDLE_ADVICE[cause].format(workers=workers_for(loop))
    return Match(
        rows, idle_ns, words, place=line, advice=advice, time=device.idle, kind_ns=kind_ns
    ).as_given()


def _meanwhile(loop: Loop, device: LoopDevice, idle_ns: int) -> tuple[SourceLine, str]:
    """The line where the host spends most of the device's idle time, and what to say about it; nowhere if no line has enough of it."""
    line, place_ns, operator = _busiest_meanwhile(loop, device)
    if not line or place_ns < LEAST_AT_PLACE * idle_ns:
        return NOWHERE, ""
    share, mostly = units.percent(loop.share(place_ns)), f", mostly in {operator}" if operator else ""
    return line, f"; for {share} of {loop.unit.time} the host is meanwhile at {line}{mostly}"


def _idle_by_cause(loop: Loop, device: LoopDevice) -> dict[str, Rows]:
    """How much of each gap of a device has each cause."""
    gaps, is_copy = device.gaps, np.isin(device.gaps.wait, copying_calls(loop, device))
    of_cause = (
        device.idle.end_ns - device.idle.start_ns - gaps.length_ns,
        np.where(gaps.wait < 0, gaps.length_ns, 0),
        np.where(is_copy, gaps.length_ns, 0),
        np.where((gaps.wait >= 0) & ~is_copy, gaps.length_ns, 0),
    )
    return dict(zip(_IDLE_ADVICE, of_cause, strict=True))


def _busiest_meanwhile(loop: Loop, device: LoopDevice) -> tuple[SourceLine, int, str]:
    """The line at which the host spends most of the time in which the device is idle, how long, and the operator that has most of that, if one has."""
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(loop.inside & loop.outermost)
    idle_ns = ran_within(loop.trace, rows, device.idle)
    time_at = {gap.place: gap.time_ns for gap in loop.gaps}
    rows_at: dict[SourceLine, Rows] = {}
    for line, time_ns, rows_there in loop.by_place(rows, idle_ns):
        time_at[line], rows_at[line] = time_at.get(line, 0) + time_ns, rows_there
    line = busiest(time_at)
    here = np.isin(rows, rows_at.get(line, rows[:0]))
    names = Groups(spans["name"][rows], len(loop.trace.strings)).sums(idle_ns, here)
    most = int(np.argmax(names))
    has_most = names[most] >= LEAST_AT_PLACE * max(time_at.get(line, 0), 1)
    return line, time_at.get(line, 0), loop.trace.strings[most] if has_most else ""


def _hardly_used(loop: Loop) -> Match | None:
    device = loop.hardly_used
    if device is None or device.captures or len(device.rows) == 0:
        return None
    busy = loop.share(loop.time.working_ns if loop.time else 0)
    return Match(
        device.rows,
        values={"device": device.name, "busy": busy},
        gain_ns=None,
        place=NOWHERE,
        share_percent=100.0 - busy,
        text="{device} works for {busy:%} of {time}",
        advice="Check that the model and its inputs are on the device, and that the recording holds the work that you want to look at.",
        kind_ns=loop.sums_by_kind(loop.work.duration_ns),
    ).as_given()


@Rule(
    "stalled-queue",
    "Nothing that was recorded runs on {device} for {share} of {time} although work is queued: {cause}",
    [*_STALL_ADVICE.values()][-1],
    finds="the device does nothing although work was launched long ago: it waits for a stream, a rank, or work that the trace lacks",
    source="no public threshold",
    least=10.0,
).selects_on
def stalled_queue(loop: Loop, device: LoopDevice) -> Answer:
    """A device that does nothing although work was launched long ago, and what that work waits for."""
    length = device.stalled.end_ns - device.stalled.start_ns
    spans, after = loop.trace.columns("spans"), device.after_stalls
    in_graph = np.array([*("GraphLaunch" in text for text in loop.trace.strings), False], dtype=bool)
    is_first = np.isin(after, device.first_of_streams) & (device.stalled.start_ns < loop.end_ns[0])
    is_graph = ~is_first & in_graph[np.append(spans["name"], -1)[starters(loop.trace).call[after]]]
    masks = dict(zip(_STALL_ADVICE, (is_first, is_graph, ~is_first & ~is_graph), strict=True))
    cause = max(masks, key=lambda cause: int(length[masks[cause]].sum()))
    longest = after[masks[cause]][np.argsort(-length[masks[cause]], kind="stable")]
    rows = np.array([*dict.fromkeys(longest[:MOST_ROWS][longest[:MOST_ROWS] >= 0].tolist())], np.int64)
    time_ns, kind_ns = loop.by_kind_at(device.stalled.start_ns, length)
    words, advice = {"cause": cause}, _STALL_ADVICE[cause]
    return Match(rows, time_ns, words, gain_ns=None, place=NOWHERE, advice=advice, kind_ns=kind_ns).as_given()


@Rule(
    "device-start-up",
    "Calls of the runtime start up {device} for {share} of {time}: {calls}",
    (
        "These create the context of the device, load its kernels and allocate memory. They come once: use the device before the recording begins, and leave out "
        "the first steps (kinetoscope.schedule(warmup=...))."
    ),
    finds="single calls create the context of a device, load kernels, or allocate",
    source="no public threshold",
    also=f"calls of {LEAST_START_UP_NS // 1_000_000} ms",
    least=10.0,
    explains=("device-idle", "first-step"),
    of_kinds=False,
).selects
def device_start_up(loop: Loop) -> Answer:
    """Calls of the runtime that take long while the device has nothing to do."""
    device = loop.device or loop.hardly_used
    spans, strings = loop.trace.columns("spans"), loop.trace.strings
    rows = np.flatnonzero(is_runtime_call(spans["kind"]) & (spans["duration_ns"] >= LEAST_START_UP_NS))
    rows = rows[[_OF_DRIVER.match(strings[name]) is not None for name in spans["name"][rows].tolist()]]
    rows = rows[loop.in_steps(rows) & loop.of_process(rows) & ~np.isin(rows, waiting_calls(loop.trace))]
    if device is not None:
        rows = rows[~np.isin(rows, device.waits(frees=False))]
    idle_ns = spans["duration_ns"][rows].astype(np.int64)
    if device is not None:
        idle_ns = ran_within(loop.trace, rows, device.idle)
    rows, idle_ns = rows[idle_ns >= LEAST_START_UP_NS], idle_ns[idle_ns >= LEAST_START_UP_NS]
    if len(rows) == 0:
        return None
    largest = loop.called_by(rows[[np.argmax(idle_ns)]])
    words = {"calls": _longest_calls(loop, rows, idle_ns), "device": device.name if device else "the device"}
    line, order = loop.place_of(int(largest[0])), np.argsort(-idle_ns, kind="stable")
    return Match(rows, int(idle_ns.sum()), words, place=line, module="", spans=rows[order])


def _longest_calls(loop: Loop, rows: Rows, time_ns: Rows) -> str:
    time_of = Counter[str]()
    for name, call_ns in zip(
        loop.trace.column("spans", "name")[rows].tolist(), time_ns.tolist(), strict=True
    ):
        time_of[loop.trace.strings[name]] += call_ns
    return ", ".join(f"{name} ({units.duration(call_ns)})" for name, call_ns in time_of.most_common(3))


def _moments(device: LoopDevice, chosen: NDArray[Any]) -> Intervals:
    return Intervals.of(device.idle.start_ns[chosen], device.idle.end_ns[chosen])


@Rule(
    "launch-bound",
    "{device} waits for launches for {share} of {time}: {kernels:each} kernels{a_step}, {mean:ns} each on average",
    'Launch less: torch.compile(mode="reduce-overhead") or CUDA graphs, larger batches, fused optimizers and layers.',
    finds="the device waits for launches again and again, because kernels are short and many",
    source="no public threshold",
    also=f"in gaps up to {LONGEST_LAUNCH_NS // 1000} µs, {LEAST_LAUNCHES} kernels a step",
    least=10.0,
    explains=("device-idle", "low-occupancy", "small-kernels"),
).selects_on
def launch_bound(loop: Loop, device: LoopDevice) -> Answer:
    """A device that again and again waits a moment for its next kernel."""
    gaps, kernels = device.gaps, loop.per_step(loop.launched_kernels)
    by_host = np.where(gaps.wait < 0, gaps.length_ns, 0)
    short = np.where(by_host <= LONGEST_LAUNCH_NS, by_host, 0)
    if device.captures or kernels < LEAST_LAUNCHES or 2 * short.sum() < by_host.sum():
        return None
    mean_ns = float(loop.trace.column("spans", "duration_ns")[device.kernels].mean())
    rows = _next_work(loop, device, np.argsort(-short, kind="stable")[:MOST_ROWS])
    # What small kernels and this say is of the same launches.
    when = _moments(device, short > 0) | loop.when(device.kernels)
    words = {"kernels": loop.launched_kernels, "mean": mean_ns}
    time_ns, kind_ns = loop.by_kind_at(device.idle.start_ns, short)
    return Match(rows, time_ns, words, place=NOWHERE, time=when, kind_ns=kind_ns).as_given()


@Rule(
    "synchronizing-call",
    "{operator}{at} waits for {device} {waits:time}; the device is then idle for {share} of {time}",
    "Keep values on the device and read them seldom, and use events or streams instead of synchronize().",
    finds="a line waits for the device, which is then idle",
    source="nsys reports any synchronization that takes 1 ms in total",
    least=2.0,
    explains=("device-idle",),
).selects_on
def synchronizing_call(loop: Loop, device: LoopDevice) -> Answer:
    """The line that waits for the device, so that nothing is queued when it goes on."""
    gaps = device.gaps
    caused = np.flatnonzero((gaps.wait >= 0) & ~np.isin(gaps.wait, copying_calls(loop, device)))
    if len(caused) == 0:
        return None
    calls = loop.called_by(gaps.wait[caused])
    line, _, rows = loop.by_place(calls, gaps.length_ns[caused])[0]
    caused = caused[np.isin(calls, rows)]
    waits = np.unique(gaps.wait[caused])
    operator = loop.trace.strings[int(loop.trace.column("spans", "name")[rows[0]])]
    idle_ns = loop.typical_at(device.idle.start_ns[caused], gaps.length_ns[caused])
    words, module = {"operator": operator, "waits": len(waits)}, loop.module_of(int(rows[0]))
    return Match(waits, idle_ns, words, place=line, module=module, time=_moments(device, caused))


def _next_work(loop: Loop, device: LoopDevice, gaps: Rows) -> Rows:
    start = loop.trace.column("spans", "start_ns")[device.rows]
    order = np.argsort(start, kind="stable")
    after = np.searchsorted(start[order], device.idle.end_ns[gaps], side="left")
    rows = device.rows[order[after[after < len(order)]]]
    return np.array([*dict.fromkeys(rows.tolist())], np.int64)
