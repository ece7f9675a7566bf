"""Kernels: they are too short, too few or too uneven, or move data that fused kernels would not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.loop_device import LoopDevice
from kinetoscope.analyses.rule import NOWHERE, Answer, Match, Rule
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import short_kernel_name
from kinetoscope.model.rows import Rows
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.device.launches import launch_rows

SHORT_NS = 10_000
LEAST_SHORT = 50
FEW_BLOCKS = 0.5
"""Fewer blocks than this for each multiprocessor leave half of the device without work."""
MOST_VARIATION = 1.0
LEAST_RUNS = 10
LEAST_VARIANCE_PERCENT = 5.0
ELEMENTWISE = frozenset({"pointwise", "copying"})


@Rule(
    "dominant-kernel",
    "One kernel takes {share} of {time}: {kernel}, {times:time}, {mean:ns} each on average",
    "Look at this kernel first: its inputs, its type, and whether a fused or a library version of it exists.",
    finds="one kernel takes much of the step; matrix products are left out",
    source="nsys-llm-explainer (one kernel of 25 %)",
    least=20.0,
    every=True,
).selects_on
def dominant_kernel(loop: Loop, device: LoopDevice) -> Answer:
    """Each kernel that takes much of the step; matrix products are meant to, and `below_roofline` looks at them."""
    rows, spans = device.kernels[~device.is_product], loop.trace.columns("spans")
    groups = Groups.by([spans["name"][rows]])
    totals = groups.sums(spans["duration_ns"][rows])
    matches = []
    for kernel in np.flatnonzero(totals >= 0.01 * dominant_kernel.least * loop.whole_ns).tolist():
        runs = rows[groups.of_row == kernel]
        words = _words(loop, device, runs, times=len(runs), mean=float(spans["duration_ns"][runs].mean()))
        matches.append(Match(runs, loop.typical_ns(runs), words, time=loop.when(runs)))
    return matches


@Rule(
    "small-kernels",
    "{kernels} kernels{a_step} take {mean:ns} each on average; those shorter than {limit:ns} take {share} of {time}",
    "Fuse them: torch.compile, fused optimizers and layers; larger batches make each kernel longer.",
    finds=f"kernels take less than {SHORT_NS // 1000} µs on average",
    source="TraceLens",
    least=10.0,
    explains=("dominant-kernel",),
).selects_on
def small_kernels(loop: Loop, device: LoopDevice) -> Answer:
    """A device whose kernels are so short that starting and ending them is much of their time."""
    # Those that a step launches, whenever they run.
    kernels = loop.per_step(loop.launched_kernels)
    if kernels < LEAST_SHORT or len(device.kernels) == 0:
        return None
    duration = loop.trace.column("spans", "duration_ns")[device.kernels]
    mean_ns, short = float(duration.mean()), device.kernels[duration < SHORT_NS]
    if mean_ns >= SHORT_NS:
        return None
    words = {"kernels": round(kernels), "mean": mean_ns, "limit": SHORT_NS}
    return Match(short, loop.typical_ns(short), words, place=NOWHERE, time=loop.when(short))


@Rule(
    "low-occupancy",
    "Kernels with fewer than one block for every two multiprocessors take {share} of {time}, mostly {kernel}",
    "Give each kernel more work: a larger batch, or several small operators as one.",
    finds=f"kernels with fewer than {FEW_BLOCKS} blocks for each multiprocessor",
    source="NVIDIA's tuning guides: a grid that leaves multiprocessors without a block",
    least_gain=5.0,
    explains=("below-roofline", "dominant-kernel"),
).selects_on
def low_occupancy(loop: Loop, device: LoopDevice) -> Answer:
    """Kernels with so few blocks that most of the device has nothing to do while they run."""
    blocks = np.append(loop.trace.column("kernels", "blocks_per_sm"), -1.0)[
        launch_rows(loop.trace)[device.kernels]
    ]
    is_few = (blocks >= 0) & (blocks < FEW_BLOCKS)
    rows, spans = device.kernels[is_few], loop.trace.columns("spans")
    if len(rows) == 0:
        return None
    lost_ns = (spans["duration_ns"][rows] * (1.0 - np.clip(blocks[is_few], 0, 1))).astype(np.int64)
    groups = Groups.by([spans["name"][rows]])
    most = rows[groups.of_row == groups.largest(lost_ns)]
    gain_ns, time_ns = loop.typical_sum(rows, lost_ns), loop.typical_ns(rows)
    return Match(most, time_ns, _words(loop, device, most), gain_ns=gain_ns, time=loop.when(rows))


@Rule(
    "kernel-variance",
    "{kernel} takes between {shortest:ns} and {longest:ns} for equal inputs, {share} of {time} in all",
    "Look for what else uses the device at these times, for clocks that change, and for inputs whose values decide how much is done.",
    finds="a kernel takes different times for equal inputs",
    source="TraceLens",
    also=f"coefficient of variation above {MOST_VARIATION:g}, more than {LEAST_RUNS} runs",
    least_gain=LEAST_VARIANCE_PERCENT,
    explains=("dominant-kernel",),
).selects_on
def kernel_variance(loop: Loop, device: LoopDevice) -> Answer:
    """A kernel that takes very different times for the same launch and the same inputs."""
    spans, kernels, rows = loop.trace.columns("spans"), loop.trace.columns("kernels"), device.kernels
    launch = launch_rows(loop.trace)[rows]
    sizes = [np.append(kernels[f"grid_{axis}"], -1).astype(np.int32)[launch] for axis in "xyz"]
    shapes = np.append(shapes_of(loop.trace), -1).astype(np.int32)[device.operators(rows)]
    groups = Groups.by([spans["name"][rows], shapes, *sizes])
    duration = spans["duration_ns"][rows]
    count, total = groups.sizes(), groups.sums(duration)
    is_large = total >= 0.01 * LEAST_VARIANCE_PERCENT * loop.whole_ns
    matches = []
    for launched in np.flatnonzero((count > LEAST_RUNS) & is_large).tolist():
        runs, took_ns = rows[groups.of_row == launched], duration[groups.of_row == launched]
        above_ns = np.maximum(took_ns - np.median(took_ns), 0).astype(np.int64)
        if float(took_ns.std() / max(1.0, took_ns.mean())) > MOST_VARIATION:
            words = _words(loop, device, runs, shortest=int(took_ns.min()), longest=int(took_ns.max()))
            time_ns, gain_ns = int(took_ns.sum()), int(above_ns.sum())
            matches.append(Match(runs, time_ns, words, gain_ns=gain_ns, time=loop.when(runs)))
    return matches


@Rule(
    "memory-bound-elementwise",
    "{kernels:each} elementwise kernels{a_step} run one after another, in {chains:each} chains, for {share} of {time}",
    "Fuse them with torch.compile, or use a fused layer: each of these kernels reads and writes whole tensors.",
    finds="elementwise kernels in a row that could be fused",
    source="TraceLens (elementwise work)",
    least_gain=10.0,
    explains=("dominant-kernel",),
).selects_on
def memory_bound_elementwise(loop: Loop, device: LoopDevice) -> Answer:
    """Elementwise kernels that follow each other, each of which reads and writes what one fused kernel would not."""
    spans = loop.trace.columns("spans")
    rows = device.rows[np.lexsort((spans["start_ns"][device.rows], spans["stream"][device.rows]))]
    elementwise = device.of_families(rows, ELEMENTWISE) & np.isin(rows, device.kernels)
    if not elementwise.any():
        return None
    # A chain ends where another kernel, or another stream, comes.
    breaks = ~elementwise[1:] | ~elementwise[:-1] | (np.diff(spans["stream"][rows]) != 0)
    chain = np.concatenate(([0], np.cumsum(breaks))).astype(np.int32)
    rows, chain = rows[elementwise], chain[elementwise]
    chains = Groups.by([chain])
    is_chained = chains.sizes()[chains.of_row] > 1
    rows, chains = rows[is_chained], Groups.by([chain[is_chained]])
    # One fused kernel takes at least as long as the longest of its parts.
    spared_ns = spans["duration_ns"][rows].copy()
    spared_ns[chains.first] -= chains.maxima(spared_ns)
    words, gain_ns = {"kernels": len(rows), "chains": len(chains)}, loop.typical_sum(rows, spared_ns)
    return Match(rows, loop.typical_ns(rows), words, gain_ns=gain_ns, time=loop.when(rows))


def _words(loop: Loop, device: LoopDevice, rows: Rows, **more: float) -> Callable[[], dict[str, object]]:
    """The words of a kernel: its short name, with the operator and the line that launched most of its time."""

    def words() -> dict[str, object]:
        spans, strings = loop.trace.columns("spans"), loop.trace.strings
        kernel, operator = short_kernel_name(strings[int(spans["name"][rows[0]])]), device.operators(rows)
        has_operator = operator >= 0
        if has_operator.any():
            line, _, calls = loop.by_place(operator[has_operator], spans["duration_ns"][rows[has_operator]])[
                0
            ]
            kernel += f" of {strings[int(spans['name'][calls[0]])]}{f' at {line}' if line else ''}"
        return {"kernel": kernel, **more}

    return words
