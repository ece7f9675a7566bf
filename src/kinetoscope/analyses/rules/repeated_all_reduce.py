"""The gradients of the same parameters are summed over the ranks several times for one step of the optimizer.

Source: torch's documentation of `DistributedDataParallel.no_sync`: with gradient accumulation, only the last backward needs to communicate.
No public threshold: twice in most steps of the optimizer, and 64 KiB, since counts and bytes are the same on any machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.analyses.rules.communication import calls_of_loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.schema import PHASE_NAMES, Phase, SpanKind
from kinetoscope.tables.intervals import Intervals

if TYPE_CHECKING:
    from kinetoscope.analyses.loop import Rows

LEAST_BYTES = 1 << 16
_BACKWARD = PHASE_NAMES[Phase.BACKWARD]


def repeated_all_reduce(loop: Loop) -> Finding | None:
    """Find buckets of gradients that several backward passes before one step of the optimizer reduce."""
    called = [
        one
        for one in calls_of_loop(loop)
        if one["name"] == "all_reduce" and one["phase"] == _BACKWARD and (one["bytes"] or 0) > 0
    ]
    if not called or len(loop.optimizer_ranges) == 0:
        return None
    spans = loop.trace.columns("spans")
    rows = np.array([one["span"] for one in called], dtype=np.int64)
    ends = np.sort(spans["start_ns"][loop.optimizer_ranges] + spans["duration_ns"][loop.optimizer_ranges])
    start = spans["start_ns"][rows]
    # What comes after the last step of an optimizer is not complete.
    update = np.searchsorted(ends, start)
    bucket = [(one["group"], one["bytes"], one["rank"]) for one in called]
    names = {key: number for number, key in enumerate(dict.fromkeys(bucket))}
    keys = np.stack((update, np.array([names[key] for key in bucket]), _passes(loop, start)), axis=1)
    each, first = np.unique(keys, axis=0, return_index=True)
    same, times = np.unique(each[:, :2], axis=0, return_counts=True)
    counts = same[:, 0] < len(ends)
    most = np.zeros(len(ends), dtype=np.int64)
    np.maximum.at(most, same[counts, 0], times[counts])
    usual = int(np.median(most[most > 0])) if (most > 0).any() else 0
    if usual < 2:
        return None
    # The first pass of each bucket is needed.
    _, needed = np.unique(each[:, :2], axis=0, return_index=True)
    again = np.setdiff1d(first, first[needed])
    moved = sum(called[one]["bytes"] for one in again.tolist())
    if loop.per_step(moved) < LEAST_BYTES:
        return None
    time_ns = _waited_ns(loop, [called[one] for one in again.tolist()])
    share = loop.share(time_ns)
    place = loop.place_of_stack(int(spans["own_stack"][rows[again[0]]]))
    return Finding(
        "repeated-all-reduce",
        sentence(
            f"The ranks sum the same gradients {{}} times for each step of the optimizer, after each backward{f' at {place}' if place else ''}: "
            f"{{}} a step more than once would move, {{}} of {loop.unit.time}",
            usual,
            (loop.per_step(moved), "bytes"),
            (share, "%"),
        ),
        "Accumulate on each rank and communicate once: run all but the last backward, with their forward, in `with model.no_sync():` "
        "(Accelerate: accelerator.accumulate(model); Lightning and Transformers: their gradient accumulation does it).",
        share,
        time_ns,
        place,
        loop.module_of(int(rows[again[0]])),
        tuple(rows[again][:MOST_ROWS].tolist()),
    )


def _passes(loop: Loop, time_ns: Rows) -> Rows:
    """A number of the backward pass at each of some moments: a new one begins with the first backward function after forward."""
    spans = loop.trace.columns("spans")
    forward = loop.outermost & (spans["phase"] == Phase.FORWARD) & (spans["sequence"] >= 0) & ~loop.of_torch
    of_process = loop.trace.column("threads", "process_row")[spans["thread"]] == loop.process
    forward_ns = np.sort(spans["start_ns"][forward & of_process])
    backward_ns = np.sort(spans["start_ns"][(spans["kind"] == SpanKind.BACKWARD) & of_process])
    before = np.append(np.searchsorted(forward_ns, backward_ns), -1)
    return np.asarray(before[np.searchsorted(backward_ns, time_ns, side="right") - 1], dtype=np.int64)


def _waited_ns(loop: Loop, called: list[dict[str, int | None]]) -> int:
    """How long the steps wait for some calls: where no computation of a device hides them, or no operator of the host."""
    if loop.device is not None:
        rows = np.array([one["span"] for one in called], dtype=np.int64)
        return loop.typical_sum(rows, np.array([one["exposed_ns"] or 0 for one in called], dtype=np.int64))
    known = [one for one in called if one["transfer_start_ns"] is not None and one["transfer_ns"] is not None]
    start = np.array([one["transfer_start_ns"] for one in known], dtype=np.int64)
    end = start + np.array([one["transfer_ns"] for one in known], dtype=np.int64)
    spans = loop.trace.columns("spans")
    work = loop.outermost_rows[spans["thread"][loop.outermost_rows] == loop.thread]
    begin = spans["start_ns"][work]
    moments = Intervals.of(start, end) - Intervals.of(begin, begin + spans["duration_ns"][work])
    return loop.typical_at(loop.start_ns, moments.within(loop.start_ns, loop.end_ns))
