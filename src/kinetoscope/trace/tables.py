"""Which tables a trace has, and what makes each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError, ArgumentTypeError
from kinetoscope._import_aside import import_aside
from kinetoscope.model.arrow import array_of_any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow

    from kinetoscope.model.schema import Table

    Make = Callable[..., pyarrow.Table]


@dataclass(frozen=True)
class TableDefinition:
    """One table of a trace.

    Attributes:
        make: Makes it: a function of the trace and the table's own options.
        schema: Its columns, with their units and meanings.
    """

    make: Make
    schema: Table


def checked_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Check that the table `name` has some options.

    Raises:
        ArgumentTypeError: It does not have one of them.
    """
    _, *known = inspect.signature(definition(name).make).parameters
    for option in options:
        if option not in known:
            what = f"its options are {', '.join([*known, 'where'])}" if known else "its only option is where"
            raise ArgumentTypeError(f"the table {name!r} has no option {option[:50]!r}: {what}")
    return options


def rows_where(table: pyarrow.Table, where: Mapping[str, object]) -> pyarrow.Table:
    """Return the rows of a table that have some values.

    Args:
        table: The table.
        where: For each column a value, or several of which it may have any; None is null.

    Raises:
        ArgumentError: There is no such column, or a value that it cannot have.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(where, Mapping):
        raise ArgumentTypeError(f"where={where!r} is not valid: use a mapping such as {{'name': 'aten::mm'}}")
    for name, value in where.items():
        if name not in table.column_names:
            listed = ", ".join(table.column_names)
            raise ArgumentError(
                f"where={{{name!r}: ...}} is not valid: the columns of the table are {listed}"
            )
        column = table[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
        try:
            wanted = array_of_any(values, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ArgumentError(
                f"where={{{name!r}: {value!r}}} is not valid: the column has values of type {column.type}"
            ) from error
        table = table.filter(pc.is_in(column, value_set=wanted))
    return table


def definition(name: str) -> TableDefinition:
    """Return what makes the table `name`, and its schema.

    Raises:
        KeyError: There is no such table.
    """
    return _load(TABLES[name])[name]


@functools.cache
def _load(group: Callable[[], tuple[tuple[Make, Table], ...]]) -> dict[str, TableDefinition]:
    """Import the tables of one group, which happens when one of them is first used."""
    return {schema.name: TableDefinition(make, schema) for make, schema in group()}


# Alone, because it is the table that programs use most, and the others import several times as much.
def _operators() -> tuple[tuple[Make, Table], ...]:
    import_aside()
    from kinetoscope.tables.host import ops

    return ((ops.ops, ops.OPS_SCHEMA),)


def _host() -> tuple[tuple[Make, Table], ...]:
    import_aside()
    from kinetoscope.tables import breakdown, step_kinds
    from kinetoscope.tables.host import compiling, data_loading, lines, modules, places, samples, steps

    return (
        (modules.modules, modules.MODULES_SCHEMA),
        (steps.steps, steps.STEPS_SCHEMA),
        (step_kinds.step_kinds, step_kinds.STEP_KINDS_SCHEMA),
        (places.histogram, places.HISTOGRAM_SCHEMA),
        (lines.lines, lines.LINES_SCHEMA),
        (lines.stacks, lines.STACKS_SCHEMA),
        (samples.samples, samples.SAMPLES_SCHEMA),
        (compiling.compiles, compiling.COMPILES_SCHEMA),
        (compiling.graph_breaks, compiling.GRAPH_BREAKS_SCHEMA),
        (data_loading.data_loading, data_loading.DATA_LOADING_SCHEMA),
        (breakdown.breakdown, breakdown.BREAKDOWN_SCHEMA),
        (breakdown.overlap, breakdown.OVERLAP_SCHEMA),
    )


def _costs() -> tuple[tuple[Make, Table], ...]:
    import_aside()
    from kinetoscope.tables.costs import flops

    return (flops.flops, flops.FLOPS_SCHEMA), (flops.flops_coverage, flops.FLOPS_COVERAGE_SCHEMA)


def _memory() -> tuple[tuple[Make, Table], ...]:
    import_aside()
    from kinetoscope.tables.memory import peak, timeline

    return (
        (peak.memory, peak.MEMORY_SCHEMA),
        (peak.memory_peak, peak.MEMORY_PEAK_SCHEMA),
        (timeline.memory_timeline, timeline.MEMORY_TIMELINE_SCHEMA),
    )


def _device() -> tuple[tuple[Make, Table], ...]:
    import_aside()
    from kinetoscope.tables.device import collectives, copies, kernels, launches, streams

    return (
        (kernels.kernels, kernels.KERNELS_SCHEMA),
        (launches.launches, launches.LAUNCHES_SCHEMA),
        (copies.copies, copies.COPIES_SCHEMA),
        (streams.streams, streams.STREAMS_SCHEMA),
        (streams.devices, streams.DEVICES_SCHEMA),
        (collectives.collectives, collectives.COLLECTIVES_SCHEMA),
    )


def _execution() -> tuple[tuple[Make, Table], ...]:
    import_aside()
    from kinetoscope.formats.execution_trace import read

    return (read.execution, read.EXECUTION_SCHEMA), (read.execution_tensors, read.EXECUTION_TENSORS_SCHEMA)


def _stored() -> tuple[tuple[Make, Table], ...]:
    import_aside()
    from kinetoscope.model import processes
    from kinetoscope.tables import stored

    return (
        (stored.spans, stored.SPANS_SCHEMA),
        (stored.cycles, stored.CYCLES_SCHEMA),
        (processes.processes, processes.PROCESSES_SCHEMA),
        (stored.threads, stored.THREADS_SCHEMA),
        (stored.allocations, stored.ALLOCATIONS_SCHEMA),
        (stored.origins, stored.ORIGINS_SCHEMA),
        (stored.frames, stored.FRAMES_SCHEMA),
        (stored.shapes, stored.SHAPES_SCHEMA),
        (stored.counters, stored.COUNTERS_SCHEMA),
        (stored.losses, stored.LOSSES_SCHEMA),
        (stored.info, stored.INFO_SCHEMA),
        (stored.strings, stored.STRINGS_SCHEMA),
    )


def _analyses() -> tuple[tuple[Make, Table], ...]:
    import_aside()
    from kinetoscope.analyses import account, findings, step_difference

    return (
        (account.account, account.ACCOUNT_SCHEMA),
        (findings.findings, findings.FINDINGS_SCHEMA),
        (step_difference.step_difference, step_difference.STEP_DIFFERENCE_SCHEMA),
    )


# Table name -> what imports the group of tables it belongs to. The order is that of the documentation.
TABLES: dict[str, Callable[[], tuple[tuple[Make, Table], ...]]] = {
    "ops": _operators,
    "modules": _host,
    "histogram": _host,
    "steps": _host,
    "step_kinds": _host,
    "flops": _costs,
    "flops_coverage": _costs,
    "lines": _host,
    "stacks": _host,
    "samples": _host,
    "memory": _memory,
    "memory_peak": _memory,
    "memory_timeline": _memory,
    "findings": _analyses,
    "account": _analyses,
    "step_difference": _analyses,
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
    "origins": _stored,
    "frames": _stored,
    "shapes": _stored,
    "counters": _stored,
    "collectives": _device,
    "data_loading": _host,
    "compiles": _host,
    "graph_breaks": _host,
    "breakdown": _host,
    "overlap": _host,
    "execution": _execution,
    "execution_tensors": _execution,
    "losses": _stored,
    "info": _stored,
    "strings": _stored,
}
