"""Which tables a trace has, and what makes each."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow

    from kinetoscope.model.schema import Table

    Definitions = dict[str, "TableDefinition"]


@dataclass(frozen=True)
class TableDefinition:
    """One table of a trace.

    Attributes:
        make: Makes it: a function of the trace and the table's own options.
        schema: Its columns, with their units and meanings.
    """

    make: Callable[..., pyarrow.Table]
    schema: Table


def definition(name: str) -> TableDefinition:
    """Return what makes the table `name`, and its schema.

    Raises:
        KeyError: There is no such table.
    """
    return TABLES[name]()[name]


# Tables that belong together are imported together, when one of them is first used.


@functools.cache
def _host() -> Definitions:
    from kinetoscope.tables.host import breakdown, data_loading, lines, modules, ops, stacks, steps

    return {
        "ops": TableDefinition(ops.ops, ops.OPS_SCHEMA),
        "modules": TableDefinition(modules.modules, modules.MODULES_SCHEMA),
        "steps": TableDefinition(steps.steps, steps.STEPS_SCHEMA),
        "lines": TableDefinition(lines.lines, lines.LINES_SCHEMA),
        "stacks": TableDefinition(stacks.stacks, stacks.STACKS_SCHEMA),
        "data_loading": TableDefinition(data_loading.data_loading, data_loading.DATA_LOADING_SCHEMA),
        "breakdown": TableDefinition(breakdown.breakdown, breakdown.BREAKDOWN_SCHEMA),
    }


@functools.cache
def _costs() -> Definitions:
    from kinetoscope.tables.costs import flops

    return {
        "flops": TableDefinition(flops.flops, flops.FLOPS_SCHEMA),
        "flops_coverage": TableDefinition(flops.flops_coverage, flops.FLOPS_COVERAGE_SCHEMA),
    }


@functools.cache
def _memory() -> Definitions:
    from kinetoscope.tables.memory import holders, peak, timeline

    return {
        "memory": TableDefinition(holders.memory, holders.MEMORY_SCHEMA),
        "memory_peak": TableDefinition(peak.memory_peak, peak.MEMORY_PEAK_SCHEMA),
        "memory_timeline": TableDefinition(timeline.memory_timeline, timeline.MEMORY_TIMELINE_SCHEMA),
    }


@functools.cache
def _device() -> Definitions:
    from kinetoscope.tables.device import collectives, copies, kernels, launches, overlap, streams

    return {
        "kernels": TableDefinition(kernels.kernels, kernels.KERNELS_SCHEMA),
        "launches": TableDefinition(launches.launches, launches.LAUNCHES_SCHEMA),
        "copies": TableDefinition(copies.copies, copies.COPIES_SCHEMA),
        "streams": TableDefinition(streams.streams, streams.STREAMS_SCHEMA),
        "devices": TableDefinition(streams.devices, streams.DEVICES_SCHEMA),
        "collectives": TableDefinition(collectives.collectives, collectives.COLLECTIVES_SCHEMA),
        "overlap": TableDefinition(overlap.overlap, overlap.OVERLAP_SCHEMA),
    }


@functools.cache
def _execution() -> Definitions:
    from kinetoscope.formats.execution_trace import read

    return {
        "execution": TableDefinition(read.execution, read.EXECUTION_SCHEMA),
        "execution_tensors": TableDefinition(read.execution_tensors, read.EXECUTION_TENSORS_SCHEMA),
    }


@functools.cache
def _stored() -> Definitions:
    from kinetoscope.model import processes
    from kinetoscope.tables import stored

    return {
        "spans": TableDefinition(stored.spans, stored.SPANS_SCHEMA),
        "cycles": TableDefinition(stored.cycles, stored.CYCLES_SCHEMA),
        "processes": TableDefinition(processes.processes, processes.PROCESSES_SCHEMA),
        "threads": TableDefinition(stored.threads, stored.THREADS_SCHEMA),
        "allocations": TableDefinition(stored.allocations, stored.ALLOCATIONS_SCHEMA),
        "frames": TableDefinition(stored.frames, stored.FRAMES_SCHEMA),
        "shapes": TableDefinition(stored.shapes, stored.SHAPES_SCHEMA),
        "counters": TableDefinition(stored.counters, stored.COUNTERS_SCHEMA),
        "losses": TableDefinition(stored.losses, stored.LOSSES_SCHEMA),
        "info": TableDefinition(stored.info, stored.INFO_SCHEMA),
        "strings": TableDefinition(stored.strings, stored.STRINGS_SCHEMA),
    }


# Table name -> what imports its definition. The order is that of the documentation.
TABLES: dict[str, Callable[[], Definitions]] = {
    "ops": _host,
    "modules": _host,
    "steps": _host,
    "flops": _costs,
    "flops_coverage": _costs,
    "lines": _host,
    "stacks": _host,
    "memory": _memory,
    "memory_peak": _memory,
    "memory_timeline": _memory,
    "spans": _stored,
    "cycles": _stored,
    "processes": _stored,
    "threads": _stored,
    "kernels": _device,
    "launches": _device,
    "copies": _device,
    "streams": _device,
    "devices": _device,
    "allocations": _stored,
    "frames": _stored,
    "shapes": _stored,
    "counters": _stored,
    "collectives": _device,
    "data_loading": _host,
    "breakdown": _host,
    "overlap": _device,
    "execution": _execution,
    "execution_tensors": _execution,
    "losses": _stored,
    "info": _stored,
    "strings": _stored,
}
