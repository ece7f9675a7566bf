"""The facts of a summary, taken from a trace's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.cli._overhead import spacing_of
from kinetoscope.tables._loading import in_waits
from kinetoscope.tables._visible import host_spans
from kinetoscope.tables._windows import start_up_steps
from kinetoscope.tables.breakdown import HostShares, StepTime, busiest_places, host_shares, step_time
from kinetoscope.tables.flops import Counted, counted_flops
from kinetoscope.tables.lines import lines_in
from kinetoscope.tables.memory_peak import DevicePeak, device_peaks
from kinetoscope.tables.modules import modules_in
from kinetoscope.tables.of_processes import process_tree, steps_of_one
from kinetoscope.tables.ops import operators_in, ranges_in
from kinetoscope.trace import Phase, SpanKind

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

Row = dict[str, Any]


@dataclass(frozen=True)
class Elsewhere:
    """What ran in the busiest process of those that have no steps while others do, such as a worker of a `DataLoader`.

    Attributes:
        name: What it is called.
        whole_ns: How long it was recorded: what shares are of.
        by_operator: Its first rows of operators.
        by_line: Its first rows of source lines.
    """

    name: str
    whole_ns: int
    by_operator: tuple[Row, ...]
    by_line: tuple[Row, ...]


@dataclass(frozen=True)
class Records:
    """How much was recorded of one process in its steps or, without any, in all.

    Attributes:
        process: What it is called, empty in a trace of one process.
        count: How many spans were recorded in them, start-up left out.
        whole_ns: How long they took.
        in_steps: Whether they are steps.
        spacing_ns: How far apart the spans lie, as `spacing_of` says.
    """

    process: str
    count: int
    whole_ns: int
    in_steps: bool
    spacing_ns: float


@dataclass(frozen=True)
class Facts:
    """What a summary tells. Times are those in the steps, start-up left out; without steps, of the whole recording.

    Attributes:
        operators: How many operators and backward functions ran in the whole trace.
        threads: How many threads ran anything.
        whole_ns: The step time of all processes that have steps: the whole of shares.
        in_steps: Whether there are steps.
        places: Where the step time of each process and device went.
        phases_ns: Self time by phase, on all threads: forward and other, backward, optimizer; waits for data left out.
        steps_ns: The time of each step.
        start_up: Whether the first step holds what came before the training loop, because its start is not marked.
        by_operator: The operators with most time.
        by_range: The ranges with most time, loading of data left out.
        by_module: The modules with most time.
        outside_ns: The part of `phases_ns` in no module.
        by_line: The source lines with most time.
        work: The operations counted; None where no inputs were recorded to count them from.
        by_process: The processes of a trace of several, as `process_tree` has them, with `operators` and the `place` in which each
            worked most, if it did in any.
        steps_of: Whose steps they are, where the trace is of several processes.
        elsewhere: What ran in the busiest process without steps, where others have steps.
        records: How much was recorded of each process, by its share of the process's time; those with steps come first.
        by_kernel: The first rows of the table `kernels`.
        devices: The table `devices`, those that ran something.
        peaks: The peaks of the memory of each device, the largest first; empty when that was not recorded.
    """

    operators: int
    threads: int
    whole_ns: int
    in_steps: bool
    places: tuple[StepTime, ...]
    phases_ns: tuple[int, ...]
    steps_ns: tuple[int, ...]
    start_up: bool
    by_operator: tuple[Row, ...]
    by_range: tuple[Row, ...]
    by_module: tuple[Row, ...]
    outside_ns: tuple[int, ...]
    by_line: tuple[Row, ...]
    work: Counted | None
    peaks: tuple[DevicePeak, ...]
    by_kernel: tuple[Row, ...] = ()
    devices: tuple[Row, ...] = ()
    by_process: tuple[Row, ...] = ()
    steps_of: str = ""
    elsewhere: Elsewhere | None = None
    records: tuple[Records, ...] = ()

    def largest_modules(self, most: int) -> list[Row]:
        """The largest modules in the order of the tree; none is left out before what it holds."""
        largest = sorted(
            range(len(self.by_module)),
            key=lambda row: (-self.by_module[row]["total_ns"], self.by_module[row]["depth"]),
        )
        return [self.by_module[row] for row in sorted(largest[:most]) if self.by_module[row]["total_ns"] > 0]


def gather(trace: Trace, rows: int) -> Facts:
    """Gather the facts of a trace, with at most `rows` operators and lines."""
    spans, shares = trace.columns("spans"), host_shares(trace)
    outside = spans["module"] < 0
    is_operator = np.isin(spans["kind"], (SpanKind.OPERATOR, SpanKind.BACKWARD))
    phases_ns = np.where(in_waits(trace), 0, shares.own_ns)
    stepping, of_first = steps_of_one(trace)
    return Facts(
        operators=int(is_operator.sum()),
        threads=len(np.unique(spans["thread"][host_spans(trace)])),
        whole_ns=shares.whole_ns,
        in_steps=shares.in_steps,
        places=tuple(step_time(trace)),
        phases_ns=_sums(spans["phase"], phases_ns, len(Phase)),
        steps_ns=tuple(trace.column("steps", "duration_ns")[of_first].tolist()),
        start_up=bool(start_up_steps(trace)[of_first].any()),
        by_operator=tuple(operators_in(trace, shares)[:rows]),
        by_range=tuple(ranges_in(trace, shares)[:rows]),
        by_module=tuple(modules_in(trace, shares)),
        outside_ns=_sums(spans["phase"], np.where(outside, phases_ns, 0), len(Phase)),
        by_line=tuple(lines_in(trace, shares)[:rows]),
        work=counted_flops(trace) if len(trace.columns("shapes")) else None,
        peaks=tuple(device_peaks(trace)),
        by_kernel=_first(trace, "kernels", rows, ["name", "total_ns", "kernel_percent", "calls", "mean_ns"]),
        devices=tuple(row for row in _first(trace, "devices", None, ["model", "work_ns"]) if row["work_ns"]),
        by_process=_processes(trace, is_operator),
        steps_of=stepping,
        records=_records(trace),
        elsewhere=_elsewhere(trace, rows) if shares.in_steps else None,
    )


def _processes(trace: Trace, is_operator: Any) -> tuple[Row, ...]:
    """The processes as a tree, with what each did."""
    tree = process_tree(trace)
    if not tree:
        return ()
    whose = trace.column("threads", "process_row")[trace.column("spans", "thread")]
    operators = _sums(whose[is_operator], None, len(tree))
    places = busiest_places(trace)
    return tuple(row | {"operators": operators[row["row"]], "place": places.get(row["row"])} for row in tree)


def _records(trace: Trace) -> tuple[Records, ...]:
    """How much was recorded of each process."""
    table, found = trace.columns("processes"), []
    rows: list[int | None] = [*range(len(table))]
    for row in rows or [None]:
        shares = host_shares(trace, row)
        name = "" if row is None else table["name"][row]
        spacing_ns = spacing_of(trace, shares.counts)
        found.append(Records(name, int(shares.counts.sum()), shares.whole_ns, shares.in_steps, spacing_ns))
    return tuple(sorted(found, key=lambda one: (not one.in_steps, -one.count / max(1, one.whole_ns))))


def _elsewhere(trace: Trace, rows: int) -> Elsewhere | None:
    """The process without steps that worked most."""
    idle = [
        place for place in step_time(trace) if place.process >= 0 and place.steps == 0 and place.working_ns
    ]
    if not idle:
        return None
    process = max(idle, key=lambda place: place.working_ns).process
    shares: HostShares = host_shares(trace, process)
    return Elsewhere(
        trace.columns("processes")["name"][process],
        shares.whole_ns,
        tuple(operators_in(trace, shares)[:rows]),
        tuple(lines_in(trace, shares)[:rows]),
    )


def _first(trace: Trace, name: str, rows: int | None, columns: list[str]) -> tuple[Row, ...]:
    """The first rows of a table."""
    table = trace.table(name).select(columns)
    return tuple((table if rows is None else table.slice(0, rows)).to_pylist())


def _sums(keys: Any, values: Any, length: int) -> tuple[int, ...]:
    """Add up values by key; exact as long as a sum of ns stays below 2 to the 53, which is a hundred days."""
    return tuple(np.bincount(keys, weights=values, minlength=length).astype(np.int64).tolist())
