"""One line holds most of the memory at the peak.

No public threshold: half of the peak, and 16 MiB, of temporaries or activations, in at most four blocks: many small
ones at one line are a model that one line calls. Parameters and the state of an optimizer are as large as the model; how much lower the
peak could be is not known, so no gain is stated. On a device only a peak of half of its memory matters.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop, Place
from kinetoscope.display.sentence import sentence
from kinetoscope.model.names import device_name
from kinetoscope.tables.costs.peaks import CUDA
from kinetoscope.tables.memory.blocks import blocks_of
from kinetoscope.tables.memory.peak import DevicePeak, device_peaks, live_at
from kinetoscope.tables.memory.peak import memory_peak as table_of_owners

LEAST_PERCENT = 50.0
LEAST_BYTES = 16 << 20
MOST_BLOCKS = 4
LEAST_OF_DEVICE = 0.5
LOWERED_BY = {
    "temporary": "Compute it in pieces, in place, or with an operator that does not need it, such as a fused one.",
    "activation": "Recompute it in backward with torch.utils.checkpoint, compute it in pieces, or use a smaller type.",
}
"""What lowers the peak, for each category of blocks that a program can do without."""


def memory_peak(loop: Loop) -> Finding | None:
    """Find the line whose temporaries or activations are most of the memory at the peak."""
    # What the allocator counts includes what was allocated before the recording.
    peak = next(iter(device_peaks(loop.trace)), None)
    if peak is None or not _few_blocks_hold(loop, peak):
        return None
    sizes = {device_name(CUDA, one.index): one.total_bytes for one in loop.trace.run_info.device_properties}
    if peak.bytes < LEAST_OF_DEVICE * (sizes.get(peak.device) or 0):
        return None
    for row in table_of_owners(loop.trace, device=peak.device, rows=1).to_pylist():
        percent = 100.0 * row["bytes"] / peak.bytes
        if percent < LEAST_PERCENT or row["bytes"] < LEAST_BYTES:
            return None
        if row["blocks"] > MOST_BLOCKS or row["category"] not in LOWERED_BY:
            return None
        place = _place(row["line"] or "")
        return Finding(
            "memory-peak",
            sentence(
                f"{row['operator'] or 'One operator'}{f' at {place}' if place else ''} holds {{}} ({{}}) of the memory at the peak: "
                f"{row['category']}",
                (percent, "%"),
                (row["bytes"], "bytes"),
            ),
            LOWERED_BY[row["category"]],
            0.0,
            None,
            place,
            row["module"] or "",
        )
    return None


def _few_blocks_hold(loop: Loop, peak: DevicePeak) -> bool:
    """Whether the largest blocks at a peak are large enough, before it takes time to find out what all of them are."""
    sizes = np.sort(blocks_of(loop.trace).bytes[live_at(loop.trace, peak.top)])[-MOST_BLOCKS:]
    return int(sizes.sum()) >= max(LEAST_BYTES, 0.01 * LEAST_PERCENT * peak.bytes)


def _place(line: str) -> Place:
    """The place that a text such as `file(line): function` names."""
    where, _, function = line.partition("): ")
    file, _, number = where.rpartition("(")
    return Place(file, int(number), function, int(number)) if number.isdigit() else Place()
