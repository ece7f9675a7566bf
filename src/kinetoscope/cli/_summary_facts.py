"""The facts of a summary, taken from a trace's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._visible import host_spans
from kinetoscope.tables.flops import Counted, counted_flops
from kinetoscope.tables.memory_peak import DevicePeak, device_peaks
from kinetoscope.tables.of_processes import modules_together, process_tree, steps_of_one
from kinetoscope.trace import Phase, SpanKind
from kinetoscope.trace._steps import OPTIMIZER

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

Row = dict[str, Any]


@dataclass(frozen=True)
class Facts:
    """What a summary tells.

    Attributes:
        operators: How many operators and backward functions ran.
        all_ns: The time of everything recorded on the host, on all threads, inner parts counted once: the whole of shares.
        busiest_ns: The part of it on the thread that ran most.
        threads: How many threads ran anything.
        phases_ns: `all_ns` by phase: forward and other, backward, optimizer.
        steps_ns: The time of each step.
        set_up: Whether the first step holds what came before the training loop, because its start is not marked.
        by_operator: The first rows of the table `ops`.
        by_module: The table `modules`.
        outside_ns: What ran in no module, by phase.
        by_line: The first rows of the table `lines`.
        work: The operations counted; None where no inputs were recorded to count them from.
        by_process: The processes of a trace of several, as `process_tree` has them, with `operators` and `self_ns`, the part
            of `all_ns` that is theirs.
        steps_of: Whose steps they are, where the trace is of several processes.
        by_kernel: The first rows of the table `kernels`.
        devices: The table `devices`, those that ran something.
        peaks: The peaks of the memory of each device, the largest first; empty when that was not recorded.
    """

    operators: int
    all_ns: int
    busiest_ns: int
    threads: int
    phases_ns: tuple[int, ...]
    steps_ns: tuple[int, ...]
    set_up: bool
    by_operator: tuple[Row, ...]
    by_module: tuple[Row, ...]
    outside_ns: tuple[int, ...]
    by_line: tuple[Row, ...]
    work: Counted | None
    peaks: tuple[DevicePeak, ...]
    by_kernel: tuple[Row, ...] = ()
    devices: tuple[Row, ...] = ()
    by_process: tuple[Row, ...] = ()
    steps_of: str = ""

    def largest_modules(self, most: int) -> list[Row]:
        """The largest modules in the order of the tree; none is left out before what it holds."""
        largest = sorted(
            range(len(self.by_module)),
            key=lambda row: (-self.by_module[row]["total_ns"], self.by_module[row]["depth"]),
        )
        return [self.by_module[row] for row in sorted(largest[:most]) if self.by_module[row]["total_ns"] > 0]


def gather(trace: Trace, rows: int) -> Facts:
    """Gather the facts of a trace, with at most `rows` operators and lines."""
    spans = trace.columns("spans")
    # Spans on a device run beside those of the host, and have tables of their own; calls enclose work and are none.
    own_ns = np.where(host_spans(trace), spans["self_ns"], 0)
    by_thread = _sums(spans["thread"], own_ns, len(trace.columns("threads")))
    outside = spans["module"] < 0
    is_operator = np.isin(spans["kind"], (SpanKind.OPERATOR, SpanKind.BACKWARD))
    by_process = _computed(trace, is_operator, own_ns)
    stepping, of_first = steps_of_one(trace)
    return Facts(
        operators=int(is_operator.sum()),
        all_ns=int(own_ns.sum()),
        busiest_ns=max(by_thread, default=0),
        threads=sum(1 for total_ns in by_thread if total_ns),
        phases_ns=_sums(spans["phase"], own_ns, len(Phase)),
        steps_ns=tuple(trace.column("steps", "duration_ns")[of_first].tolist()),
        set_up=bool((trace.column("steps", "source")[of_first][:1] == OPTIMIZER).any()),
        by_operator=_first(trace, "ops", rows, ["name", "self_ns", "count"]),
        by_module=tuple(modules_together(trace)),
        outside_ns=_sums(spans["phase"], np.where(outside, own_ns, 0), len(Phase)),
        by_line=_first(trace, "lines", rows, ["file", "line", "function", "self_ns"]),
        work=counted_flops(trace) if len(trace.columns("shapes")) else None,
        peaks=tuple(device_peaks(trace)),
        by_kernel=_first(trace, "kernels", rows, ["name", "total_ns", "kernel_percent", "calls", "mean_ns"]),
        devices=tuple(
            row
            for row in _first(trace, "devices", None, ["device", "model", "busy_percent", "work_ns"])
            if row["work_ns"]
        ),
        by_process=by_process,
        steps_of=stepping,
    )


def _computed(trace: Trace, is_operator: Any, own_ns: Any) -> tuple[Row, ...]:
    """The processes as a tree, with what each computed."""
    tree = process_tree(trace)
    if not tree:
        return ()
    whose = trace.column("threads", "process_row")[trace.column("spans", "thread")]
    operators = _sums(whose[is_operator], None, len(tree))
    self_ns = _sums(whose, own_ns, len(tree))
    return tuple(row | {"operators": operators[row["row"]], "self_ns": self_ns[row["row"]]} for row in tree)


def _first(trace: Trace, name: str, rows: int | None, columns: list[str]) -> tuple[Row, ...]:
    """The first rows of a table."""
    table = trace.table(name).select(columns)
    return tuple((table if rows is None else table.slice(0, rows)).to_pylist())


def _sums(keys: Any, values: Any, length: int) -> tuple[int, ...]:
    """Add up values by key; exact as long as a sum of ns stays below 2 to the 53, which is a hundred days."""
    return tuple(np.bincount(keys, weights=values, minlength=length).astype(np.int64).tolist())
