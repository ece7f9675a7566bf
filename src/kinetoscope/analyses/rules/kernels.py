"""Kernels that are too short, too few, too uneven, or that move data which fused kernels would not.

Sources and thresholds: TraceLens (kernels of less than 10 us on average; the coefficient of variation of a kernel above 1 with more
than 10 runs and 5 % of the time; elementwise work), nsys-llm-explainer (one kernel of 25 % and more), NVIDIA's tuning guides (a grid
that leaves multiprocessors without a block).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import kinetoscope._core as _core
from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.display.sentence import sentence
from kinetoscope.model.names import short_kernel_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

DOMINANT_PERCENT = 20.0
SHORT_NS = 10_000
LEAST_SHORT = 50
LEAST_SHORT_PERCENT = 10.0
FEW_BLOCKS = 0.5
"""Fewer blocks than this for each multiprocessor leave half of the device without work."""
LEAST_FEW_PERCENT = 5.0
MOST_VARIATION = 1.0
LEAST_RUNS = 10
LEAST_VARIANCE_PERCENT = 5.0
LEAST_ELEMENTWISE_PERCENT = 10.0
ELEMENTWISE = frozenset({"pointwise", "copying"})


def dominant_kernel(loop: Loop) -> list[Finding]:
    """Find each kernel that takes much of the step; matrix products are meant to, and `below_roofline` looks at them."""
    rows, spans = _kernels(loop), loop.trace.columns("spans")
    if loop.device is not None:
        rows = rows[~loop.device.is_product]
    group, first = _core.group([spans["name"][rows]])
    totals = _core.group_sums(group, len(first), spans["duration_ns"][rows])
    most = np.flatnonzero(totals >= 0.01 * DOMINANT_PERCENT * loop.whole_ns)
    found = [_dominant(loop, rows[group == one]) for one in most.tolist()]
    return [one for one in found if one.share_percent >= DOMINANT_PERCENT]


def _dominant(loop: Loop, mine: NDArray[np.int64]) -> Finding:
    """What a kernel takes that ran at some rows."""
    time_ns = loop.typical_ns(mine)
    share = loop.share(time_ns)
    name, started, place, module = _started(loop, mine)
    return Finding(
        "dominant-kernel",
        sentence(
            f"One kernel takes {{}} of {loop.unit.time}: {name}{started}, {loop.counted(len(mine), 'time')}, {{}} each on average",
            (share, "%"),
            (float(loop.trace.column("spans", "duration_ns")[mine].mean()), "ns"),
        ),
        "Look at this kernel first: its inputs, its type, and whether a fused or a library version of it exists.",
        share,
        time_ns,
        place,
        module,
        _longest(loop, mine),
        time=loop.when(mine),
    )


def small_kernels(loop: Loop) -> Finding | None:
    """Find a device whose kernels are so short that starting and ending them is much of their time."""
    rows = _kernels(loop)
    # Those that a step launches, whenever they run.
    each = loop.per_step(loop.launched_kernels)
    if each < LEAST_SHORT or len(rows) == 0:
        return None
    duration = loop.trace.column("spans", "duration_ns")[rows]
    short = rows[duration < SHORT_NS]
    time_ns = loop.typical_ns(short)
    share = loop.share(time_ns)
    if float(duration.mean()) >= SHORT_NS or share < LEAST_SHORT_PERCENT:
        return None
    return Finding(
        "small-kernels",
        sentence(
            f"{{}} kernels{loop.unit.each} take {{}} each on average; those shorter than {{}} take {{}} of {loop.unit.time}",
            round(each),
            (float(duration.mean()), "ns"),
            (SHORT_NS, "ns"),
            (share, "%"),
        ),
        "Fuse them: torch.compile, fused optimizers and layers; larger batches make each kernel longer.",
        share,
        time_ns,
        spans=_longest(loop, short),
        time=loop.when(short),
    )


def low_occupancy(loop: Loop) -> Finding | None:
    """Find kernels with so few blocks that most of the device has nothing to do while they run."""
    rows = _kernels(loop)
    blocks = _blocks_per_sm(loop, rows)
    few = np.flatnonzero((blocks >= 0) & (blocks < FEW_BLOCKS))
    duration = loop.trace.column("spans", "duration_ns")[rows]
    lost = (duration * (1.0 - np.clip(blocks, 0, 1))).astype(np.int64)
    gain_ns = loop.typical_sum(rows[few], lost[few])
    if loop.share(gain_ns) < LEAST_FEW_PERCENT:
        return None
    mine = rows[few]
    group, first = _core.group([loop.trace.column("spans", "name")[mine]])
    most = mine[group == int(np.argmax(_core.group_sums(group, len(first), lost[few])))]
    name, started, place, module = _started(loop, most)
    share = loop.share(loop.typical_ns(mine))
    return Finding(
        "low-occupancy",
        sentence(
            f"Kernels with fewer than one block for every two multiprocessors take {{}} of {loop.unit.time}, mostly {name}{started}",
            (share, "%"),
        ),
        "Give each kernel more work: a larger batch, or several small operators as one.",
        share,
        gain_ns,
        place,
        module,
        _longest(loop, most),
        time=loop.when(rows[few]),
    )


def kernel_variance(loop: Loop) -> Finding | None:
    """Find a kernel that takes very different times for the same launch and the same inputs."""
    device, spans = loop.device, loop.trace.columns("spans")
    if device is None or len(device.kernels) == 0:
        return None
    rows = device.kernels
    launch = _launch_rows(loop, rows)
    own = loop.trace.columns("kernels")
    sizes = [np.append(own[f"grid_{axis}"], -1).astype(np.int32)[launch] for axis in "xyz"]
    shapes = np.append(spans["shapes"], -1).astype(np.int32)[device.operators(rows)]
    group, first = _core.group([spans["name"][rows], shapes, *sizes])
    duration, best = spans["duration_ns"][rows], None
    count = _core.group_counts(group, len(first))
    total = _core.group_sums(group, len(first), duration)
    for one in np.flatnonzero((count > LEAST_RUNS) & (total >= 0.05 * loop.whole_ns)).tolist():
        mine = np.flatnonzero(group == one)
        variation = float(duration[mine].std() / max(1.0, duration[mine].mean()))
        above = np.maximum(duration[mine] - np.median(duration[mine]), 0).astype(np.int64)
        if variation > MOST_VARIATION and (best is None or above.sum() > best[0]):
            best = int(above.sum()), variation, rows[mine]
    if best is None or loop.share(best[0]) < LEAST_VARIANCE_PERCENT:
        return None
    above_ns, variation, mine = best
    share = loop.share(int(spans["duration_ns"][mine].sum()))
    name, started, place, module = _started(loop, mine)
    return Finding(
        "kernel-variance",
        sentence(
            f"{name}{started} takes between {{}} and {{}} for equal inputs, {{}} of {loop.unit.time} in all",
            (int(spans["duration_ns"][mine].min()), "ns"),
            (int(spans["duration_ns"][mine].max()), "ns"),
            (share, "%"),
        ),
        "Look for what else uses the device at these times, for clocks that change, and for inputs whose values decide how much is done.",
        share,
        above_ns,
        place,
        module,
        _longest(loop, mine),
        time=loop.when(mine),
    )


def memory_bound_elementwise(loop: Loop) -> Finding | None:
    """Find elementwise kernels that follow each other, each of which reads and writes what one fused kernel would not."""
    device, spans = loop.device, loop.trace.columns("spans")
    if device is None or len(device.rows) == 0:
        return None
    rows = device.rows[np.lexsort((spans["start_ns"][device.rows], spans["stream"][device.rows]))]
    elementwise = device.of_families(rows, ELEMENTWISE) & np.isin(rows, device.kernels)
    # A chain ends where another kernel, or another stream, comes.
    breaks = ~elementwise[1:] | ~elementwise[:-1] | (np.diff(spans["stream"][rows]) != 0)
    chain = np.concatenate(([0], np.cumsum(breaks))).astype(np.int32)
    member = np.flatnonzero(elementwise)
    chains = int(chain[-1]) + 1
    mine, of_chain = rows[member], chain[member]
    length = _core.group_counts(of_chain, chains)
    fused = length[of_chain] > 1
    mine, of_chain = mine[fused], of_chain[fused]
    duration = spans["duration_ns"][mine]
    longest = _core.group_max(of_chain, chains, duration)
    # One fused kernel takes at least as long as the longest of its parts.
    spared = duration.copy()
    first = np.unique(of_chain, return_index=True)[1]
    spared[first] -= longest[of_chain[first]]
    gain_ns = loop.typical_sum(mine, spared)
    share = loop.share(loop.typical_ns(mine))
    if loop.share(gain_ns) < LEAST_ELEMENTWISE_PERCENT:
        return None
    _, _, place, module = _started(loop, mine)
    return Finding(
        "memory-bound-elementwise",
        sentence(
            f"{{}} elementwise kernels{loop.unit.each} run one after another, in {{}} chains, for {{}} of {loop.unit.time}",
            max(1, round(loop.per_step(len(mine)))),
            max(1, round(loop.per_step(len(first)))),
            (share, "%"),
        ),
        "Fuse them with torch.compile, or use a fused layer: each of these kernels reads and writes whole tensors.",
        share,
        gain_ns,
        place,
        module,
        _longest(loop, mine),
        time=loop.when(mine),
    )


def _kernels(loop: Loop) -> NDArray[np.int64]:
    """The computing kernels of the loop's device; none without a device."""
    return np.zeros(0, dtype=np.int64) if loop.device is None else loop.device.kernels


def _launch_rows(loop: Loop, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of `kernels`, which has the size of its grid, for each of some kernels; -1 without."""
    own = loop.trace.columns("kernels")
    found = np.full(len(loop.trace.columns("spans")), -1, dtype=np.int64)
    found[own["span"][own["span"] >= 0]] = np.flatnonzero(own["span"] >= 0)
    return np.asarray(found[rows])


def _blocks_per_sm(loop: Loop, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many blocks each of some kernels has for each multiprocessor; -1 where it is unknown."""
    blocks = np.append(loop.trace.column("kernels", "blocks_per_sm"), -1.0)
    return np.asarray(blocks[_launch_rows(loop, rows)], dtype=np.float64)


def _longest(loop: Loop, rows: NDArray[np.int64]) -> tuple[int, ...]:
    """The longest of some spans."""
    duration = loop.trace.column("spans", "duration_ns")[rows]
    return tuple(rows[np.argsort(-duration, kind="stable")][:MOST_ROWS].tolist())


def _started(loop: Loop, rows: NDArray[np.int64]) -> tuple[str, str, Place, str]:
    """The short name of some kernels, the operator and line that launched most of their time, that line, and its module."""
    spans = loop.trace.columns("spans")
    name = short_kernel_name(loop.trace.strings[int(spans["name"][rows[0]])])
    operator = np.full(len(rows), -1) if loop.device is None else loop.device.operators(rows)
    known = operator >= 0
    if not known.any():
        return name, "", Place(), ""
    place, _, calls = loop.by_place(operator[known], spans["duration_ns"][rows[known]])[0]
    started = loop.trace.strings[int(spans["name"][calls[0]])]
    return name, f" of {started}{f' at {place}' if place else ''}", place, loop.module_of(int(calls[0]))
