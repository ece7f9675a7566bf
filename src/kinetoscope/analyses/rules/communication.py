"""The step waits for communication between ranks that no computation hides.

Sources and thresholds: TraceLens (exposed communication above 5 % of the time, less than 70 % of it overlapped), PyTorch's former
TensorBoard plugin (10 %). A collective is small below 1 MiB, where NCCL's bandwidth tests show its latency and not its bandwidth.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.analyses.finding import CannotTell, Finding, Signal
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.display.sentence import sentence
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.device.collective_facts import UNKNOWN_CALL
from kinetoscope.tables.device.work import WorkCategory

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_PERCENT = 5.0
HIDDEN_PERCENT = 70.0
SMALL_BYTES = 1 << 20
LEAST_SMALL = 20
LEAST_SMALL_PERCENT = 2.0
LARGE_BYTES = 4 << 20
"""Messages of this size take as long as their bytes do."""
LEAST_LARGE = 3
SLOW_GB_PER_S = 5.0
USUAL_GB_PER_S = 10.0
"""What a bus without links between devices, or a network of 100 Gbit/s, moves."""


def exposed_communication(loop: Loop) -> Finding | None:
    """Find steps that wait for communication which takes longer than the computation that could hide it."""
    return _exposed(loop, could_overlap=False)


def poor_overlap(loop: Loop) -> Finding | None:
    """Find communication that the computation of the step could hide, and does not."""
    return _exposed(loop, could_overlap=True)


def small_collectives(loop: Loop) -> Finding | CannotTell | None:
    """Find many small collectives, of which each costs its latency."""
    if loop.device is None or exposed_ns(loop) < 0.01 * LEAST_SMALL_PERCENT * loop.whole_ns:
        return None
    called = calls_of_loop(loop)
    if all(one["bytes"] is None for one in called):
        return CannotTell("small-collectives", Signal.SHAPES) if called else None
    small = [one for one in called if one["bytes"] is not None and 0 < one["bytes"] < SMALL_BYTES]
    rows = np.array([one["span"] for one in small], dtype=np.int64)
    time_ns = loop.typical_sum(rows, np.array([one["exposed_ns"] or 0 for one in small], dtype=np.int64))
    share = loop.share(time_ns)
    if loop.per_step(len(small)) < LEAST_SMALL or share < LEAST_SMALL_PERCENT:
        return None
    place = loop.by_place(rows)[0][0]
    return Finding(
        "small-collectives",
        sentence(
            f"{{}} collectives{loop.unit.each} move less than {{}} each, {{}} on average: {{}} of {loop.unit.time}",
            round(loop.per_step(len(small))),
            (SMALL_BYTES, "bytes"),
            (float(np.mean([one["bytes"] for one in small])), "bytes"),
            (share, "%"),
        ),
        "Put them together: larger buckets (DistributedDataParallel(bucket_cap_mb=...)), coalesced collectives, fewer sharded modules.",
        share,
        time_ns,
        place,
        spans=tuple(rows[:MOST_ROWS].tolist()),
        time=loop.device.activity.communication - loop.device.activity.compute,
    )


def slow_collectives(loop: Loop) -> Finding | None:
    """Find a process group in which no large message gets anywhere near what a network, or a bus, moves."""
    if loop.device is None:
        return None
    large: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for one in calls_of_loop(loop):
        if (one["bytes"] or 0) >= LARGE_BYTES and one["transfer_ns"]:
            large[one["group"]].append(one)
    best: tuple[int, float, list[dict[str, Any]]] | None = None
    for called in large.values():
        # Of many, the fastest waited for nobody.
        rate = max(one["bus_gb_per_s"] or one["gb_per_s"] or 0.0 for one in called)
        rows = np.array([one["span"] for one in called], dtype=np.int64)
        moved_ns = np.array([one["bytes"] / USUAL_GB_PER_S for one in called])
        lost = np.array(
            [max(0.0, (one["exposed_ns"] or 0) - ns) for one, ns in zip(called, moved_ns, strict=True)]
        )
        gain_ns = loop.typical_sum(rows, lost.astype(np.int64))
        if rate < SLOW_GB_PER_S and len(called) >= LEAST_LARGE and (best is None or gain_ns > best[0]):
            best = gain_ns, rate, called
    if best is None or loop.share(best[0]) < LEAST_PERCENT:
        return None
    gain_ns, rate, called = best
    longest = max(called, key=lambda one: one["transfer_ns"])
    rows = np.array([one["span"] for one in called], dtype=np.int64)
    # What runs after the last step is no part of it.
    whole_ns = exposed_ns(loop)
    each_ns = np.array([one["exposed_ns"] or 0 for one in called], dtype=np.int64)
    time_ns, gain_ns = min(loop.typical_sum(rows, each_ns), whole_ns), min(gain_ns, whole_ns)
    return Finding(
        "slow-collectives",
        sentence(
            f"No large message of a collective moves at more than {rate:.1f} GB/s: {longest['name']} of {{}} takes {{}}; waiting for these takes {{}} of {loop.unit.time}",
            (longest["bytes"], "bytes"),
            (longest["transfer_ns"], "ns"),
            (loop.share(time_ns), "%"),
        ),
        "Check what connects the ranks (NCCL_DEBUG=INFO shows the transport: links between devices, network cards, or the host's memory), and whether all ranks "
        "arrive in time: merge their traces.",
        loop.share(time_ns),
        gain_ns,
        loop.place_of(int(longest["span"])),
        spans=tuple(rows[:MOST_ROWS].tolist()),
        time=loop.device.activity.communication - loop.device.activity.compute,
    )


def calls_of_loop(loop: Loop) -> list[dict[str, Any]]:
    """The rows of `collectives` in the steps of the loop's process."""
    rows = loop.collectives
    owner = loop.trace.column("threads", "process_row")[loop.trace.column("spans", "thread")]
    inside = loop.in_steps(np.array([one["span"] for one in rows], dtype=np.int64))
    mine = [owner[one["span"]] == loop.process for one in rows]
    return [one for one, is_inside, is_mine in zip(rows, inside, mine, strict=True) if is_inside and is_mine]


def exposed_ns(loop: Loop) -> int:
    """How long the loop's device communicated and did not compute; on the host, how long its backends did."""
    return 0 if loop.time is None else loop.time.parts_ns[PARTS.index("communication_ns")]


def _exposed(loop: Loop, *, could_overlap: bool) -> Finding | None:
    """Find exposed communication, where the computation of the steps is long enough to hide it or where it is not."""
    device = loop.device
    if device is None:
        return None
    time_ns = exposed_ns(loop)
    share = loop.share(time_ns)
    start, end = loop.start_ns, loop.end_ns
    moved = device.activity.communication.within(start, end)
    hidden = int(moved.sum()) - time_ns
    computed = int(device.activity.compute.within(start, end).sum())
    percent = 100.0 * hidden / max(1, int(moved.sum()))
    if share < LEAST_PERCENT or could_overlap != (moved.sum() <= computed and percent < HIDDEN_PERCENT):
        return None
    rows, name = _largest(loop)
    most = f", mostly {name}" if name and name != UNKNOWN_CALL else ""
    calls = device.operators(rows)
    place, spans = loop.place_of(int(calls[0]) if len(calls) else -1), tuple(rows[:MOST_ROWS].tolist())
    time = device.activity.communication - device.activity.compute
    if not could_overlap:
        name = "" if name == UNKNOWN_CALL else name
        return replace(
            exposed_finding(share, name, (), loop.share(computed), time_ns, place, spans), time=time
        )
    return Finding(
        "poor-overlap",
        sentence(
            f"Communication takes {{}} of {loop.unit.time} alone{most}; {{}} of it overlaps with the computation, which is long enough to hide it",
            (share, "%"),
            (percent, "%"),
        ),
        "Start collectives earlier and wait later: gradient buckets during backward, prefetch of sharded parameters, async_op=True.",
        share,
        time_ns,
        place,
        spans=spans,
        time=time,
    )


def exposed_finding(
    share: float,
    most: str,
    values: tuple[tuple[float, str], ...],
    computed: float,
    time_ns: int,
    place: Place | None = None,
    spans: tuple[int, ...] = (),
) -> Finding:
    """The finding that steps wait for communication; `most` names what most of it is, if that is known, with `values` in its places."""
    mostly = f", mostly {most}" if most else ""
    return Finding(
        "exposed-communication",
        sentence(
            f"The loop waits for communication between ranks for {{}} of step time{mostly}; the device computes for {{}}",
            (share, "%"),
            *values,
            (computed, "%"),
        ),
        "Communicate less: more work for each step and rank, gradient accumulation, smaller types; and check whether a rank is late.",
        share,
        time_ns,
        place or Place(),
        spans=spans,
    )


def _largest(loop: Loop) -> tuple[NDArray[np.int64], str]:
    """The communication kernels that ran alone for longest, and the collective that most of this time belongs to."""
    device, spans = loop.device, loop.trace.columns("spans")
    if device is None:
        return np.zeros(0, dtype=np.int64), ""
    rows = device.rows[
        (device.category == WorkCategory.COMMUNICATION) & (spans["kind"][device.rows] == SpanKind.KERNEL)
    ]
    start = spans["start_ns"][rows]
    alone = (device.activity.communication - device.activity.compute).within(
        start, start + spans["duration_ns"][rows]
    )
    called = calls_of_loop(loop)
    names = sorted({one["name"] for one in called})
    if not names:
        return rows[np.argsort(-alone, kind="stable")], ""
    sums = _core.group_sums(
        np.array([names.index(one["name"]) for one in called], dtype=np.int32),
        len(names),
        np.array([one["exposed_ns"] or 0 for one in called], dtype=np.int64),
    )
    return rows[np.argsort(-alone, kind="stable")], names[int(np.argmax(sums))]
