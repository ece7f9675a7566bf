"""Memory: what grows, what is most of it at the peak, and how the allocator of a device gets it."""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Signal
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.loop_device import LoopDevice
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_runtime_call
from kinetoscope.model.names import device_name
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.tables.costs.peaks import CUDA
from kinetoscope.tables.memory.blocks import blocks_of
from kinetoscope.tables.memory.peak import DevicePeak, device_peaks, live_at
from kinetoscope.tables.memory.peak import memory_peak as table_of_owners
from kinetoscope.tables.memory.timeline import AllocatorPeak, allocator_peak

LEAST_STEPS = 6
FIRST_STEPS = 3
LEAST_OF_FIRST = 0.01
LEAST_OF_FIRST_IN_ALL = 0.5
LEAST_RISING = 0.8
"""Memory grows in so many of the steps."""
LEAST_PEAK_PERCENT = 50.0
LEAST_BYTES = 16 << 20
MOST_BLOCKS = 4
"""Many small blocks at one line are a model that one line calls."""
LEAST_OF_DEVICE = 0.5
LOWERED_BY = {
    "temporary": "Compute it in pieces, in place, or with an operator that does not need it, such as a fused one.",
    "activation": "Recompute it in backward with torch.utils.checkpoint, compute it in pieces, or use a smaller type.",
}
"""What lowers the peak, for each category of blocks that a program can do without: parameters and the state of an optimizer are as large as the model."""
LEAST_CHURN_STEPS = 4
LEAST_CHURN = 0.5
"""Steps without a warm-up of their own allocate at first; steady allocations come in this part of the others."""
FRAGMENTED = 2.0
LEAST_FRAGMENTED = 0.1
"""Unused reserved memory counts from this part of the device's memory on."""
NEAR_LIMIT_PERCENT = 90.0
_CALLS = frozenset(
    (
        "cudaMalloc",
        "cudaFree",
        "hipMalloc",
        "hipFree",
        "cuMemCreate",
        "cuMemRelease",
        "cuMemMap",
        "cuMemUnmap",
    )
)


@Rule(
    "memory-growth",
    "Memory grows by {growth:bytes}{in_each}; what stays is allocated{at}",
    "Find who keeps these tensors: a list of losses or outputs keeps their whole graph; append loss.detach() or loss.item().",
    finds="memory in use grows with every step",
    source="TraceML reports 1 GiB over 50 steps; here against what the first steps needed, since the peak of a long recording holds what has leaked",
    also=f"a step keeps {LEAST_OF_FIRST:.0%} of what the first steps needed, or all steps half of it",
    needs=Signal.MEMORY,
).selects
def memory_growth(loop: Loop) -> Answer:
    """What is allocated in each step, and still held at the end of the recording."""
    blocks = loop.trace.columns("allocations")
    if loop.step_count < LEAST_STEPS:
        return None
    if len(blocks) == 0:
        return Signal.MEMORY
    is_kept = (blocks["bytes"] > 0) & (blocks["match"] < 0)
    is_kept &= (blocks["time_ns"] < loop.mark_end_ns[-1]) & (blocks["time_ns"] >= loop.mark_start_ns[0])
    rows = np.flatnonzero(is_kept)
    step = np.searchsorted(loop.mark_start_ns, blocks["time_ns"][rows], side="right") - 1
    # Each device has memory of its own, and what is much for one is little for another.
    device = blocks["device_type"].astype(np.int64) * 256 + blocks["device_index"]
    growths = {key: _growth(loop, rows, step, device == key) for key in np.unique(device[rows]).tolist()}
    growing = max(growths, key=growths.__getitem__, default=-1)
    if growths.get(growing, 0) <= 0:
        return None
    rows = rows[device[rows] == growing]
    span, size = blocks["span"][rows].astype(np.int64), blocks["bytes"][rows]
    largest = np.array([*dict.fromkeys(span[np.argsort(-size, kind="stable")].tolist())], np.int64)
    largest = largest[largest >= 0]
    line = loop.by_place(span[span >= 0], size[span >= 0])[0][0] if len(largest) else SourceLine()
    module = loop.module_of(int(largest[0]) if len(largest) else -1)
    words = {"growth": growths[growing]}
    return Match(largest, 0, words, gain_ns=None, place=line, module=module, spans=largest)


def _growth(loop: Loop, rows: Rows, step: Rows, chosen: Mask) -> float:
    """What a usual step keeps of a device's blocks, if enough of the steps do; else 0.

    The last step still holds what the next would release, and is left out.
    """
    blocks = loop.trace.columns("allocations")
    growth = Groups(step, len(loop.start_ns)).sums(blocks["bytes"][rows], chosen[rows])[:-1]
    first = chosen & (blocks["time_ns"] < loop.mark_end_ns[FIRST_STEPS - 1])
    needed = int(blocks["total_bytes"][first].max(initial=0))
    least = needed * min(LEAST_OF_FIRST, LEAST_OF_FIRST_IN_ALL / len(growth))
    return float(np.median(growth)) if (growth >= max(1.0, least)).mean() >= LEAST_RISING else 0.0


@Rule(
    "memory-peak",
    "{operator}{at} holds {part:%} ({size:bytes}) of the memory at the peak: {category}",
    LOWERED_BY["temporary"],
    finds="one line's temporaries or activations are most of the memory at the peak",
    source="no public threshold; how much lower the peak could be is not known",
    also=f"{LEAST_PEAK_PERCENT:g}% of the peak, {LEAST_BYTES >> 20} MiB in at most {MOST_BLOCKS} blocks, half of a device's memory",
    needs=Signal.MEMORY,
    of_kinds=False,
).selects
def memory_peak(loop: Loop) -> Answer:
    """The line whose temporaries or activations are most of the memory at the peak."""
    # What the allocator counts includes what was allocated before the recording.
    peak = next(iter(device_peaks(loop.trace)), None)
    if peak is None or not _few_blocks_hold(loop, peak):
        return None
    sizes = {device_name(CUDA, gpu.index): gpu.total_bytes for gpu in loop.trace.run_info.device_properties}
    owners = table_of_owners(loop.trace, device=peak.device, rows=1).to_pylist()
    if peak.bytes < LEAST_OF_DEVICE * (sizes.get(peak.device) or 0) or not owners:
        return None
    (owner,) = owners
    percent = 100.0 * owner["bytes"] / peak.bytes
    is_large = percent >= LEAST_PEAK_PERCENT and owner["bytes"] >= LEAST_BYTES
    if not is_large or owner["blocks"] > MOST_BLOCKS or owner["category"] not in LOWERED_BY:
        return None
    words = {
        "operator": owner["operator"] or "One operator",
        "part": percent,
        "size": owner["bytes"],
        "category": owner["category"],
    }
    advice, line = LOWERED_BY[owner["category"]], _place(owner["line"] or "")
    return Match(values=words, gain_ns=None, place=line, module=owner["module"] or "", advice=advice)


def _few_blocks_hold(loop: Loop, peak: DevicePeak) -> bool:
    """Whether the largest blocks at a peak are large enough, before it takes time to find out what all of them are."""
    sizes = np.sort(blocks_of(loop.trace).bytes[live_at(loop.trace, peak.top)])[-MOST_BLOCKS:]
    return int(sizes.sum()) >= max(LEAST_BYTES, 0.01 * LEAST_PEAK_PERCENT * peak.bytes)


def _place(line: str) -> SourceLine:
    where, _, function = line.partition("): ")
    file, _, number = where.rpartition("(")
    return SourceLine(file, int(number), function, int(number)) if number.isdigit() else SourceLine()


@Rule(
    "allocator-churn",
    "The allocator calls the driver {calls:time}{most_at}, and {device} is idle meanwhile for {share} of {time}",
    "Set PYTORCH_ALLOC_CONF=expandable_segments:True, keep sizes of batches equal, and do not call torch.cuda.empty_cache().",
    finds="the allocator calls the driver in every step",
    source="torchtitan warns of any retry of an allocation",
    also="half of the steps",
    least=1.0,
    explains=("synchronizing-call",),
).selects_on
def allocator_churn(loop: Loop, device: LoopDevice) -> Answer:
    """Steps that allocate memory from the driver after the first, which waits for all of the device's work."""
    if loop.step_count < LEAST_CHURN_STEPS:
        return None
    spans, strings = loop.trace.columns("spans"), loop.trace.strings
    rows = np.flatnonzero(is_runtime_call(spans["kind"]) & (spans["stream"] < 0))
    names = [name for name in np.unique(spans["name"][rows]).tolist() if strings[name] in _CALLS]
    rows = rows[np.isin(spans["name"][rows], names)]
    step = loop.step_of(rows)
    rows, step = rows[step > 0], step[step > 0]
    if len(rows) == 0 or len(np.unique(step)) < LEAST_CHURN * (loop.step_count - 1):
        return None
    line = loop.by_place(loop.called_by(rows))[0][0]
    return Match(rows, loop.cost_ns(rows, with_device=False), {"calls": len(rows)}, place=line, module="")


@Rule(
    "fragmentation",
    "{device} has {reserved:bytes} reserved and uses at most {used:bytes} of it",
    "Set PYTORCH_ALLOC_CONF=expandable_segments:True, and keep the sizes of batches equal.",
    finds="reserved memory is twice the used memory",
    source="TraceML",
    also=f"{LEAST_FRAGMENTED:.0%} of the device's memory",
    needs=Signal.MEMORY,
).selects_on
def fragmentation(loop: Loop, device: LoopDevice) -> Answer:
    """Reserved memory that the program does not use, because no free piece of it is large enough."""
    peak, size = _peak(loop, device), _device_bytes(device)
    if peak is None:
        return Signal.MEMORY
    unused = peak.reserved_bytes - peak.allocated_bytes
    is_much = 0 < LEAST_FRAGMENTED * size <= unused
    if not is_much or peak.reserved_bytes < FRAGMENTED * peak.allocated_bytes:
        return None
    return Match(values={"reserved": peak.reserved_bytes, "used": peak.allocated_bytes}, gain_ns=None)


@Rule(
    "memory-near-limit",
    "{device} uses {used:bytes} of its {size:bytes}: {part:%}",
    "Lower the peak: activation checkpointing, smaller types, gradient accumulation with smaller batches; see the table memory_peak.",
    finds="the device's memory is nearly used up, so that a slightly larger batch fails",
    source="PyTorch's former TensorBoard plugin",
    also=f"{NEAR_LIMIT_PERCENT:g}%",
    needs=Signal.MEMORY,
).selects_on
def memory_near_limit(loop: Loop, device: LoopDevice) -> Answer:
    """A device whose memory is nearly used up."""
    peak, size = _peak(loop, device), _device_bytes(device)
    if peak is None:
        return Signal.MEMORY
    percent = 100.0 * peak.allocated_bytes / size if size > 0 else 0.0
    if percent < NEAR_LIMIT_PERCENT:
        return None
    return Match(values={"used": peak.allocated_bytes, "size": size, "part": percent}, gain_ns=None)


def _peak(loop: Loop, device: LoopDevice) -> AllocatorPeak | None:
    """What the allocator of the loop's device counted at its peak; None if that was not recorded."""
    processes = None if loop.process < 0 else np.array([loop.process])
    peak = allocator_peak(loop.trace, device.identity.type, device.identity.index, processes)
    return peak if peak.allocated_bytes >= 0 and peak.reserved_bytes >= 0 else None


def _device_bytes(device: LoopDevice) -> int:
    return (device.properties and device.properties.total_bytes) or 0
