"""Communication between ranks: it is not hidden, it is slow, or it happens more often than needed."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from kinetoscope.analyses.finding import Signal
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.loop_device import LoopDevice
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.ledger.ledger import communication_moments
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import PHASE_NAMES, Phase, SpanKind
from kinetoscope.tables.device.collective_facts import UNKNOWN_CALL
from kinetoscope.tables.device.work import WorkCategory
from kinetoscope.tables.intervals import Intervals, ran_within
from kinetoscope.tables.stacks import stacks_with

LEAST_PERCENT = 5.0
HIDDEN_PERCENT = 70.0
SMALL_BYTES = 1 << 20
LEAST_SMALL = 20
SLOWEST_BYTES_PER_NS = 0.125
"""A network of 1 Gbit/s; small messages show their latency, not its rate."""
FASTEST = 0.1
"""So many of some equal messages are the fastest, which wait for no other rank."""
LEAST_SMALL_PERCENT = 2.0
LARGE_BYTES = 4 << 20
"""Messages of this size take as long as their bytes do."""
LEAST_LARGE = 3
SLOW_GB_PER_S = 5.0
USUAL_GB_PER_S = 10.0
"""What a bus without links between devices, or a network of 100 Gbit/s, moves."""
LEAST_AGAIN_BYTES = 1 << 16
_BACKWARD = PHASE_NAMES[Phase.BACKWARD]
_DDP, _SYNC_BUFFERS = "torch/nn/parallel/distributed.py", "DistributedDataParallel._sync_buffers"
_WITHOUT_BUFFERS = "Pass broadcast_buffers=False to DistributedDataParallel where no buffer changes, or keep large constants out of buffers, as plain attributes."
_FEW_LARGE = "Send few large messages in place of many small ones: wrap the model in DistributedDataParallel, which puts gradients together, or flatten what is sent into one tensor."
_SYMPTOMS = ("exposed-communication", "poor-overlap")


@Rule(
    "exposed-communication",
    "{subject} waits for communication between ranks for {share} of {time}{most}; the device computes for {computed:of_time}",
    "Communicate less: more work for each step and rank, gradient accumulation, smaller types; and check whether a rank is late.",
    finds="communication that takes longer than the computation that could hide it",
    source="TraceLens",
    least=LEAST_PERCENT,
).selects_on
def exposed_communication(loop: Loop, device: LoopDevice) -> Answer:
    """Steps that wait for communication which takes longer than the computation that could hide it."""
    return _exposed(loop, device, could_overlap=False)


@Rule(
    "poor-overlap",
    (
        "Communication takes {share} of {time} alone{most}; {hidden:%} of it overlaps with the computation, which is long enough to "
        "hide it"
    ),
    "Start collectives earlier and wait later: gradient buckets during backward, prefetch of sharded parameters, async_op=True.",
    finds=f"communication that the computation could hide, and less than {HIDDEN_PERCENT:g}% of it is hidden",
    source="TraceLens",
    least=LEAST_PERCENT,
).selects_on
def poor_overlap(loop: Loop, device: LoopDevice) -> Answer:
    """Communication that the computation of the step could hide, and does not."""
    return _exposed(loop, device, could_overlap=True)


def _exposed(loop: Loop, device: LoopDevice, *, could_overlap: bool) -> Match | None:
    """Exposed communication, if the computation of the steps is long enough to hide it (`could_overlap`), or if it is not."""
    start, end, time_ns = loop.start_ns, loop.end_ns, exposed_ns(loop)
    moved_ns = int(device.activity.communication.within(start, end).sum())
    computed_ns = int(device.activity.compute.within(start, end).sum())
    percent = 100.0 * (moved_ns - time_ns) / max(1, moved_ns)
    if could_overlap != (moved_ns <= computed_ns and percent < HIDDEN_PERCENT):
        return None
    rows, name = _largest(loop, device)
    calls = device.operators(rows)
    words = {
        "most": f", mostly {name}" if name and name != UNKNOWN_CALL else "",
        "hidden": percent,
        "computed": computed_ns,
    }
    line = loop.place_of(int(calls[0]) if len(calls) else -1)
    kind_ns = loop.sums_by_kind(_alone(device).within(start, end))
    return Match(rows, time_ns, words, place=line, time=_alone(device), kind_ns=kind_ns).as_given()


@Rule(
    "communication-wait",
    "{place} waits for {collective} between ranks for {share} of {time}, {calls:time}{of_each}{buffers}",
    "Communicate less often, or less: gradient accumulation, larger batches for each rank, smaller types; see with `kinetoscope ranks` whether a rank is late.",
    finds="processes without a device wait for collectives; what DistributedDataParallel sends of buffers before each forward pass can be left out, and many small messages can be one: these have a gain",
    source="a share of the time; ranks of equal work wait for the transfer alone",
    least=10.0,
).selects
def communication_wait(loop: Loop) -> Answer:
    """The collectives of one line and kind for which the loop waits longest."""
    if loop.device is not None or loop.ledger is None:
        return None
    waits = communication_moments(loop.ledger)
    calls, syncs = calls_of_loop(loop), stacks_with(loop.trace, _DDP, functions=(_SYNC_BUFFERS,))
    are_buffers = np.append(syncs, False)[loop.trace.column("spans", "stack")[_rows(calls)]]
    alike: dict[tuple[SourceLine, str, bool], list[dict[str, Any]]] = defaultdict(list)
    for call, is_buffers in zip(calls, are_buffers.tolist(), strict=True):
        alike[loop.place_of(call["span"]), call["name"], is_buffers].append(call)
    matches = [
        _waited(loop, waits, line, calls, is_buffers) for (line, _, is_buffers), calls in alike.items()
    ]
    return max(matches, key=lambda match: match.time_ns, default=None)


def _waited(
    loop: Loop, waits: Intervals, line: SourceLine, calls: list[dict[str, Any]], are_buffers: bool
) -> Match:
    """The match of some collectives of one line: the waits from their calls to the ends of their transfers."""
    rows, spans = _rows(calls), loop.trace.columns("spans")
    transfer_ns = [(call["transfer_start_ns"] or 0) + (call["transfer_ns"] or 0) for call in calls]
    end_ns = np.maximum(spans["start_ns"][rows] + spans["duration_ns"][rows], transfer_ns)
    waited = waits & Intervals.of(spans["start_ns"][rows], end_ns)
    moved_bytes = [call["bytes"] for call in calls if call["bytes"]]
    words = {
        "collective": calls[0]["name"],
        "calls": len(calls),
        "of_each": f" of {units.size(float(np.mean(moved_bytes)))}" if moved_bytes else "",
        "buffers": "; DistributedDataParallel sends all buffers of the model before each forward pass" if are_buffers else "",
    }  # fmt: skip
    time_ns = waited.total_ns
    gain_ns: float | None = time_ns if are_buffers else None
    advice = _WITHOUT_BUFFERS if are_buffers else ""
    is_small = bool(moved_bytes) and float(np.mean(moved_bytes)) < SMALL_BYTES
    if not are_buffers and is_small and loop.per_step(len(calls)) >= LEAST_SMALL:
        gain_ns = _of_one_message_ns(loop, calls, end_ns - spans["start_ns"][rows], time_ns)
        advice = _FEW_LARGE
        words["collective"] = f"small {words['collective']} calls"
    return Match(rows, time_ns, words, gain_ns=gain_ns, place=line, time=waited, advice=advice).as_given()


def _of_one_message_ns(loop: Loop, calls: list[dict[str, Any]], lasts_ns: Rows, time_ns: int) -> float:
    """What one message a step would gain in place of many: all but what the fastest takes, and the bytes at the best rate of any, or that of a slow network."""
    moved = np.array([call["bytes"] or 0 for call in calls])
    rate = max(SLOWEST_BYTES_PER_NS, float((moved / np.maximum(lasts_ns, 1)).max()))
    steps, moved_bytes = len(calls) / loop.per_step(len(calls)), len(calls) * float(moved[moved > 0].mean())
    return max(0.0, time_ns - steps * float(np.quantile(lasts_ns, FASTEST)) - moved_bytes / rate)


@Rule(
    "small-collectives",
    "{calls:each} collectives{a_step} move less than {limit:bytes} each, {mean:bytes} on average: {share} of {time}",
    "Put them together: larger buckets (DistributedDataParallel(bucket_cap_mb=...)), coalesced collectives, fewer sharded modules.",
    finds=f"many collectives of less than {SMALL_BYTES >> 20} MiB",
    source="NCCL's bandwidth tests: a smaller collective shows its latency, not its bandwidth",
    also=f"{LEAST_SMALL} a step",
    least=LEAST_SMALL_PERCENT,
    needs=Signal.SHAPES,
    explains=_SYMPTOMS,
).selects_on
def small_collectives(loop: Loop, device: LoopDevice) -> Answer:
    """Many small collectives, of which each costs its latency."""
    if loop.share(exposed_ns(loop)) < LEAST_SMALL_PERCENT:
        return None
    called = calls_of_loop(loop)
    if all(call["bytes"] is None for call in called):
        return Signal.SHAPES if called else None
    small = [call for call in called if 0 < (call["bytes"] or 0) < SMALL_BYTES]
    if loop.per_step(len(small)) < LEAST_SMALL:
        return None
    mean = float(np.mean([call["bytes"] for call in small]))
    words = {"calls": len(small), "limit": SMALL_BYTES, "mean": mean}
    return Match(_rows(small), _exposed_ns(loop, small), words, time=_alone(device)).as_given()


@Rule(
    "slow-collectives",
    "Collectives never exceed {rate}: {worst} of {bytes:bytes} takes {transfer:ns}; waiting for them takes {share} of {time}",
    (
        "Check what connects the ranks (NCCL_DEBUG=INFO shows the transport: links between devices, network cards, or the host's memory), and whether all ranks "
        "arrive in time: merge their traces."
    ),
    finds=f"no message of {LARGE_BYTES >> 20} MiB or more in a group moves at {SLOW_GB_PER_S:g} GB/s",
    source=f"a bus without links between devices, or a network of 100 Gbit/s, moves {USUAL_GB_PER_S:g} GB/s",
    also=f"against {USUAL_GB_PER_S:g} GB/s, {LEAST_LARGE} messages",
    least_gain=LEAST_PERCENT,
    explains=_SYMPTOMS,
).selects_on
def slow_collectives(loop: Loop, device: LoopDevice) -> Answer:
    """A process group in which no large message gets anywhere near what a network, or a bus, moves."""
    large: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for call in calls_of_loop(loop):
        if (call["bytes"] or 0) >= LARGE_BYTES and call["transfer_ns"]:
            large[call["group"]].append(call)
    return [match for called in large.values() if (match := _slow(loop, device, called))]


def _slow(loop: Loop, device: LoopDevice, called: list[dict[str, Any]]) -> Match | None:
    # Of many, the fastest waited for nobody.
    rate = max(call["bus_gb_per_s"] or call["gb_per_s"] or 0.0 for call in called)
    if rate >= SLOW_GB_PER_S or len(called) < LEAST_LARGE:
        return None
    lost_ns = [max(0, int((call["exposed_ns"] or 0) - call["bytes"] / USUAL_GB_PER_S)) for call in called]
    worst, rows = max(called, key=lambda call: call["transfer_ns"]), _rows(called)
    words = {"rate": f"{rate:.1f} GB/s", "worst": worst["name"]}
    words |= {"bytes": worst["bytes"], "transfer": worst["transfer_ns"]}
    # What runs after the last step is no part of it.
    most_ns = exposed_ns(loop)
    time_ns = min(_exposed_ns(loop, called), most_ns)
    gain_ns = min(loop.typical_sum(rows, np.array(lost_ns, np.int64)), most_ns)
    line = loop.place_of(int(worst["span"]))
    return Match(rows, time_ns, words, gain_ns=gain_ns, place=line, time=_alone(device)).as_given()


@Rule(
    "repeated-all-reduce",
    (
        "The ranks sum the same gradients {times} times for each step of the optimizer, after each backward{at}: {moved:each_bytes} a step "
        "beyond a single time, {share} of {time}"
    ),
    (
        "Accumulate on each rank and communicate once: run all but the last backward, with their forward, in `with model.no_sync():` (Accelerate: "
        "accelerator.accumulate(model); Lightning and Transformers: their gradient accumulation does it)."
    ),
    finds="the ranks sum the same gradients several times for one step of the optimizer, as without `no_sync()`",
    source="torch's documentation of `DistributedDataParallel.no_sync`; counts and bytes are the same on any machine",
    also=f"twice, {LEAST_AGAIN_BYTES >> 10} KiB a step",
    explains=_SYMPTOMS,
    of_kinds=False,
).selects
def repeated_all_reduce(loop: Loop) -> Answer:
    """Buckets of gradients that several backward passes before one step of the optimizer reduce."""
    called = [
        call for call in calls_of_loop(loop) if call["name"] == "all_reduce" and call["phase"] == _BACKWARD
    ]
    called = [call for call in called if (call["bytes"] or 0) > 0]
    if not called or len(loop.optimizer_ranges) == 0:
        return None
    usual, again = _again(loop, called)
    moved = sum(call["bytes"] for call in again)
    if usual < 2 or loop.per_step(moved) < LEAST_AGAIN_BYTES:
        return None
    first = int(again[0]["span"])
    line = loop.place_of_stack(int(loop.trace.column("spans", "own_stack")[first]))
    words, module = {"times": usual, "moved": moved}, loop.module_of(first)
    return Match(_rows(again), _waited_ns(loop, again), words, place=line, module=module)


def _again(loop: Loop, called: list[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """How often a bucket is usually reduced for one step of the optimizer, and the calls that reduce one again."""
    spans, rows = loop.trace.columns("spans"), _rows(called)
    ends = np.sort(spans["start_ns"][loop.optimizer_ranges] + spans["duration_ns"][loop.optimizer_ranges])
    bucket = [(call["group"], call["bytes"], call["rank"]) for call in called]
    names = {key: number for number, key in enumerate(dict.fromkeys(bucket))}
    start = spans["start_ns"][rows]
    update, number = np.searchsorted(ends, start), np.array([names[key] for key in bucket])
    passes, first = np.unique(
        np.stack((update, number, _passes(loop, start)), axis=1), axis=0, return_index=True
    )
    same, needed, times = np.unique(passes[:, :2], axis=0, return_index=True, return_counts=True)
    # What comes after the last step of an optimizer is not complete.
    most = np.zeros(len(ends), dtype=np.int64)
    complete = same[:, 0] < len(ends)
    np.maximum.at(most, same[complete, 0], times[complete])
    usual = int(np.median(most[most > 0])) if (most > 0).any() else 0
    # The first pass of each bucket is needed.
    again = [called[index] for index in np.setdiff1d(first, first[needed]).tolist()]
    return usual, again


def _passes(loop: Loop, time_ns: Rows) -> Rows:
    """The number of the backward pass at each moment: a new one begins with the first backward function after forward."""
    spans = loop.trace.columns("spans")
    forward = loop.outermost & (spans["phase"] == Phase.FORWARD) & (spans["sequence"] >= 0) & ~loop.of_torch
    of_process = loop.trace.column("threads", "process_row").take(spans["thread"]) == loop.process
    forward_ns = np.sort(spans["start_ns"][forward & of_process])
    backward_ns = np.sort(spans["start_ns"][(spans["kind"] == SpanKind.BACKWARD) & of_process])
    before = np.append(np.searchsorted(forward_ns, backward_ns), -1)
    return np.asarray(before[np.searchsorted(backward_ns, time_ns, side="right") - 1], dtype=np.int64)


def _waited_ns(loop: Loop, called: list[dict[str, Any]]) -> int:
    """How long the steps wait for some calls: where no computation of a device hides them, or no operator of the host."""
    if loop.device is not None:
        return _exposed_ns(loop, called)
    moved, all_moved = (sum(call["bytes"] or 0 for call in calls) for calls in (called, calls_of_loop(loop)))
    return round(exposed_ns(loop) * moved / max(all_moved, 1))


def calls_of_loop(loop: Loop) -> list[dict[str, Any]]:
    """The rows of `collectives` in the steps of the loop's process."""
    called, rows = loop.collectives, _rows(loop.collectives)
    is_inside = loop.in_steps(rows) & loop.of_process(rows)
    return [call for call, inside in zip(called, is_inside.tolist(), strict=True) if inside]


def exposed_ns(loop: Loop) -> int:
    """How long the loop's device communicated and did not compute; on the host, how long its backends did."""
    return 0 if loop.time is None else loop.time.parts_ns[PARTS.index("communication_ns")]


def _rows(called: list[dict[str, Any]]) -> Rows:
    return np.array([call["span"] for call in called], dtype=np.int64)


def _exposed_ns(loop: Loop, called: list[dict[str, Any]]) -> int:
    each_ns = np.array([call["exposed_ns"] or 0 for call in called], dtype=np.int64)
    return loop.typical_sum(_rows(called), each_ns)


def _alone(device: LoopDevice) -> Intervals:
    return device.activity.communication - device.activity.compute


def _largest(loop: Loop, device: LoopDevice) -> tuple[Rows, str]:
    """The communication kernels that ran alone for longest, and the collective that most of this time belongs to."""
    spans = loop.trace.columns("spans")
    is_kernel = spans["kind"][device.rows] == SpanKind.KERNEL
    rows = device.rows[(device.category == WorkCategory.COMMUNICATION) & is_kernel]
    alone_ns = ran_within(loop.trace, rows, _alone(device))
    rows, called = rows[np.argsort(-alone_ns, kind="stable")], calls_of_loop(loop)
    names = sorted({call["name"] for call in called})
    if not names:
        return rows, ""
    of_name = Groups(np.array([names.index(call["name"]) for call in called]), len(names))
    each_ns = np.array([call["exposed_ns"] or 0 for call in called], dtype=np.int64)
    return rows, names[of_name.largest(each_ns)]
