"""Measure a recording step by step: time by part, module, operator, line, kernel and collective, and counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError
from kinetoscope.analyses.account import accounts
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.ran import RanInSteps
from kinetoscope.analyses.warm_up import LEAST_STEPS, leading_steps
from kinetoscope.ledger.ledger import ProcessLedger, ledger_of_process
from kinetoscope.model import units
from kinetoscope.model.device_time import counted_launches
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import requested_calls
from kinetoscope.model.kinds import is_copy, is_operator
from kinetoscope.model.losses import inexact
from kinetoscope.model.names import module_classes, source_line
from kinetoscope.model.rows import Mask, Rows, places_of
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.strings import parsed_json
from kinetoscope.model.time_spent import CAUSES, ENTRIES, PARTS, Cause, Entry, words_of
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.flops import counted_flops
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.device.collectives import collectives
from kinetoscope.tables.device.copies import copy_directions
from kinetoscope.tables.device.launches import starters, waiting_calls
from kinetoscope.tables.host.compiling import RESUMED
from kinetoscope.tables.host.lines import line_groups
from kinetoscope.tables.host.python_time import gaps
from kinetoscope.tables.host.source_lines import line_text
from kinetoscope.tables.host.units_of_work import Unit
from kinetoscope.tables.memory.peak import device_peaks, memory_peak, requesting_operators
from kinetoscope.tables.stacks import program_frames, user_stacks
from kinetoscope.tables.step_kinds import Operators, StepOperators, operators_of_kinds
from kinetoscope.tables.stored import memory_recorded

Numbers = NDArray[np.float64]
Key = tuple[Any, ...]
# `modules` or `operators`, and a path or a name.
Scope = tuple[str, str]

TIMED = ("part", "module", "operator", "line", "kernel", "collective")
"""The kinds of rows with times, in display order."""

# The plural noun for each count: first the counts of a step, then those of a run.
STEP_COUNTS = {
    "operators": "operators",
    "kernels": "kernels",
    "launches": "launches on devices",
    "synchronizing_calls": "calls that wait for a device",
    "values_read": "values of tensors read into Python",
    "copies_to_device": "copies from host to device",
    "copies_to_host": "copies from device to host",
    "tensor_copies": "copies of tensors",
    "allocations": "allocations",
    "allocated_bytes": "bytes allocated",
    "flops": "floating-point operations",
    "collectives": "collectives",
    "collective_bytes": "bytes in collectives",
    "python_calls": "calls of Python functions",
}
RUN_COUNTS = {
    "peak_bytes": "bytes of memory at the peak",
    "recompiles": "compilations after the first step",
    "graph_breaks": "graph breaks",
}
COUNTS = STEP_COUNTS | RUN_COUNTS
BYTE_COUNTS = frozenset({"allocated_bytes", "collective_bytes", "peak_bytes"})

# With more spans, only every second, third and so on is used.
_ENOUGH_SPANS = 200_000
# Of so long a time, samples say how much of it a thread waited for a CPU core.
_SAMPLED_NS = 300_000_000
_VALUE_READ = "aten::_local_scalar_dense"
_TENSOR_COPY = "aten::copy_"


@dataclass(frozen=True, eq=False)
class Population:
    """The times and counts of one kind of rows in the steps; a cell is a row in a step.

    Attributes:
        keys: The identity of each row, comparable between traces.
        row: The row of each cell, an index in `keys`.
        step: The step of each cell.
        time_ns: The time of the row in the step.
        count: The number of spans of the row in the step.
    """

    keys: list[Key]
    row: Rows
    step: Rows
    time_ns: Numbers
    count: Numbers

    def table(self, rows: Rows, steps: int, *, counts: bool = False) -> Numbers:
        """The times or counts of some rows, with one row per step and one column per row; 0 for row -1."""
        column = places_of(rows, len(self.keys))[self.row]
        cells = np.flatnonzero(column >= 0)
        table = np.zeros((steps, len(rows)))
        values = self.count if counts else self.time_ns
        table[self.step[cells], column[cells]] = values[cells]
        return table

    def means(self, weights: Numbers, *, counts: bool = False) -> Numbers:
        """The weighted mean time or count of each row over the steps; the weights add up to 1."""
        values = self.count if counts else self.time_ns
        return Groups(self.row, len(self.keys)).sums(values * weights[self.step])


@dataclass(eq=False)
class Run:
    """The measurements of one recording, by step.

    In a trace of several processes, the process with the longest total step time counts. Without steps, requests take their place;
    without requests, the whole recording is one step.

    Attributes:
        name: The file, or the caller's name for it.
        numbers: The numbers of the steps, or of the requests in the table `requests`.
        step_ns: The duration of each step.
        warm_up: The number of first steps that times and counts exclude.
        unit: Whether the trace has steps, requests, or neither.
        start_ns: When the recording started, by the clock of the machine.
        populations: The rows of each kind in `TIMED`, and `work`: operators by place and size. `account`, if requested and known, has the
            step time by place and cause, which adds up to each step.
        step_counts: For each recorded count of `STEP_COUNTS` the number in each step.
        run_counts: For each recorded count of `RUN_COUNTS` the number in the run.
        memory: The bytes of each holder at the peak.
        losses: Which numbers of the trace are not exact, and why; empty if all are exact.
        scopes: The counts in each step of the requested modules and operators.
        machine: Facts that times depend on besides the program: CPU, number of CPUs and threads, devices, torch version.
        reasons: For unknown counts, why they are unknown or how to record them.
        flops_covered_percent: The percentage of the operators' time with known FLOPs.
        undisturbed: The fraction of the operators' time that would remain without disturbance by other programs.
        step_kind: The kind of each step, as in the table `step_kinds`; -1 for none.
        kind_operators: For each kind the operators of a typical step: the number of calls, and the time of a call in ns.
    """

    name: str
    numbers: Rows
    step_ns: Numbers
    warm_up: int
    unit: Unit
    start_ns: int
    populations: dict[str, Population]
    step_counts: dict[str, Numbers]
    run_counts: dict[str, int]
    memory: dict[Key, int]
    losses: str
    scopes: dict[Scope, dict[str, Numbers]]
    machine: str
    reasons: dict[str, str] = field(default_factory=dict)
    undisturbed: float = 1.0
    flops_covered_percent: float = 100.0
    step_kind: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    kind_operators: list[Operators] = field(default_factory=list)

    @cached_property
    def with_core_ns(self) -> Numbers:
        """How long each step took while its thread had a CPU core: other programs take cores away, but a device works on meanwhile."""
        key, parts = (PARTS["processor_wait"],), self.populations["part"]
        if key not in parts.keys or self.unit.overlaps or self.populations["kernel"].keys:
            return self.step_ns
        waits_ns = parts.table(np.array([parts.keys.index(key)]), len(self.step_ns))[:, 0]
        # Samples say how long a thread waited between two of them, not in which of the short steps between.
        is_counted = (np.arange(len(self.step_ns)) >= self.warm_up).view(np.int8)
        stretches = Groups.by([np.cumsum(self.step_ns) // _SAMPLED_NS, self.step_kind, is_counted])
        mean_ns = stretches.sums(self.step_ns - waits_ns) / stretches.sizes()
        has_waits = stretches.sums(waits_ns) > 0
        return np.where(has_waits[stretches.of_row], mean_ns[stretches.of_row], self.step_ns)

    @property
    def doubt(self) -> str:
        """Why what was measured may be less than what ran; empty if nothing says so."""
        has_run = self.step_counts["operators"][self.counted].any()
        return self.losses if has_run else "no operator was recorded in its steps"

    @property
    def counted(self) -> Rows:
        """The steps that count."""
        return np.arange(self.warm_up, len(self.step_ns))

    def counts(self, name: str, scope: Scope | None = None) -> Numbers | None:
        """A count in each step that counts, or that of the run, in total or for one of `scopes`; None if not recorded."""
        if name in RUN_COUNTS:
            return np.array([self.run_counts[name]], np.float64) if name in self.run_counts else None
        by_count = self.step_counts if scope is None else self.scopes[scope]
        return by_count[name][self.counted] if name in by_count else None


def counts_of(runs: Sequence[Run], name: str, scope: Scope | None = None) -> Numbers | None:
    """The concatenated counts of some recordings, see `Run.counts`; None if any of them lacks it."""
    counts = [run.counts(name, scope) for run in runs]
    recorded = [column for column in counts if column is not None]
    return np.concatenate(recorded) if len(recorded) == len(counts) else None


def population_of(runs: Sequence[Run], kind: str) -> Population:
    """One of the `populations` over the concatenated steps of some recordings, without warm-up."""
    row_of: dict[Key, int] = {}
    columns, steps = [], 0
    for run in runs:
        ran = run.populations[kind]
        rows = np.array([row_of.setdefault(key, len(row_of)) for key in ran.keys], dtype=np.int64)
        cells = np.flatnonzero(ran.step >= run.warm_up)
        step = ran.step[cells] - run.warm_up + steps
        columns.append((rows[ran.row[cells]], step, ran.time_ns[cells], ran.count[cells]))
        steps += len(run.counted)
    return Population(list(row_of), *map(np.concatenate, zip(*columns, strict=True)))


def noun_of(*runs: Run) -> str:
    """The unit of a comparison: `request` if all recordings have requests, else `step`."""
    return (Unit.REQUEST if all(run.unit.overlaps for run in runs) else Unit.STEP).noun


def run_of(
    trace: TraceData,
    name: str = "",
    warm_up: int | None = None,
    scopes: Iterable[Scope] = (),
    *,
    with_account: bool = False,
) -> Run:
    """Measure one recording.

    Args:
        trace: The trace.
        name: Its name in the comparison.
        warm_up: The number of first steps to exclude; None: those that compile or are slow, and at least one of three or more.
        scopes: Modules and operators to count separately.
        with_account: Whether to add the account of the step time.

    Returns:
        The measurements; they do not refer to the trace, which may be closed.

    Raises:
        ArgumentError: No step is left.
    """
    loop = Loop(trace)
    steps = len(loop.start_ns)
    step_ns = (loop.end_ns - loop.start_ns).astype(np.float64)
    recording = _Recording(trace, loop)
    compiling = loop.compilations
    label = name or (str(trace.path) if trace.path is not None else "the trace")
    # With three or more steps, exclude at least one.
    slow = max(1, leading_steps(step_ns, compiling)) if steps >= LEAST_STEPS else 0
    left_out = slow if warm_up is None else warm_up
    if left_out >= steps:
        raise ArgumentError(
            f"{label}: {units.count(left_out, 'step')} left out, which leaves none of its {steps:,}: leave out fewer, or record more"
        )
    run = Run(
        label,
        loop.work.numbers,
        step_ns,
        left_out,
        loop.unit,
        trace.run_info.start_realtime_ns or 0,
        recording.populations(with_account=with_account),
        recording.step_counts(),
        recording.run_counts(loop.late_compilations),
        _memory_by_holder(trace),
        inexact(trace.losses),
        {scope: recording.scoped(scope) for scope in scopes},
        _machine(trace),
        undisturbed=recording.undisturbed(left_out),
        flops_covered_percent=counted_flops(trace).covered_percent or 100.0,
        step_kind=loop.work.kind,
        kind_operators=recording.kind_operators(),
    )
    if not memory_recorded(trace):
        counts = ("allocations", "allocated_bytes", "peak_bytes")
        run.reasons |= dict.fromkeys(counts, "record with profile_memory=True")
    if "flops" not in run.step_counts:
        run.reasons["flops"] = counted_flops(trace).why
    if "python_calls" not in run.step_counts:
        run.reasons["python_calls"] = "record with python_calls=True"
    return run


def _machine(trace: TraceData) -> str:
    """The facts that times depend on besides the program."""
    run = trace.run_info
    facts = [
        *dict.fromkeys(device.name for device in run.devices),
        run.machine,
        f"{run.cpu_count} processors" if run.cpu_count else "",
        units.count(run.torch_threads, "thread") if run.torch_threads else "",
        f"torch {run.torch_version}" if run.torch_version else "",
    ]
    return ", ".join(str(fact) for fact in facts if fact)


class _Recording:
    """The spans of a trace that count, with their steps."""

    def __init__(self, trace: TraceData, loop: Loop) -> None:
        self.trace, self.loop, self.ran = trace, loop, RanInSteps(loop)
        self.steps = len(loop.start_ns)
        spans = trace.columns("spans")
        self.step = loop.work.place_of(np.arange(len(spans)))
        process = np.append(trace.column("threads", "process_row"), -1)[spans["thread"]]
        self.ours = (process == loop.process) & (self.step >= 0)

    def populations(self, *, with_account: bool) -> dict[str, Population]:
        """All populations by kind; with the account, if requested and known."""
        populations = {
            "part": self._parts(),
            "module": self._modules(),
            "operator": self._operators(),
            "line": self._lines(),
            "work": self._work(),
            "kernel": self._kernels(),
            "collective": self._collectives(),
        }
        ledger = ledger_of_process(accounts(self.trace), self.loop.process) if with_account else None
        return populations if ledger is None else populations | {"account": self._account(ledger)}

    def _parts(self) -> Population:
        used = {name: time_ns for name, time_ns in self.loop.parts.items() if time_ns.any()}
        keys: list[Key] = [(name,) for name in used]
        row, step = np.repeat(np.arange(len(used)), self.steps), np.tile(np.arange(self.steps), len(used))
        time_ns = np.concatenate([np.zeros(0), *used.values()])
        return Population(keys, row, step, time_ns, np.zeros(len(row)))

    def kind_operators(self) -> list[Operators]:
        """For each kind the operators of a typical step: the number of calls, and the mean time of a call in ns."""
        if not self.loop.unit.overlaps:
            return operators_of_kinds(self.trace)
        step = np.where(self.ours, self.step, -1)
        operators = StepOperators(self.trace, step, self.steps)
        return operators.of_kinds(self.loop.work.kind, operators.mean_ns)

    def _operators(self) -> Population:
        trace, spans, ran = self.trace, self.trace.columns("spans"), self.ran.operators
        dims, paths = trace.column("shapes", "dims"), trace.column("modules", "path")
        columns = (spans["name"], shapes_of(trace), spans["module"])
        groups = Groups.by([column[ran.span] for column in columns])
        first = ran.span[groups.first]
        keys: list[Key] = [
            (
                trace.strings[name],
                _sizes(dims[shape]) if shape >= 0 else "",
                paths[module] if module >= 0 else "",
            )
            for name, shape, module in zip(*(column[first].tolist() for column in columns), strict=True)
        ]
        return self._population(keys, groups.of_row, ran.step, ran.time_ns)

    def undisturbed(self, warm_up: int) -> float:
        """The fraction of the operators' time that remains if each takes at most as long as the fastest quarter of its kind.

        On a busy machine, other programs interrupt every long step, but hardly ever a single operator.
        """
        rows = self.ran.operators.span[self.ran.operators.step >= warm_up]
        rows = rows[:: len(rows) // _ENOUGH_SPANS + 1]
        spans = self.trace.columns("spans")
        groups = Groups.by(
            [column[rows] for column in (spans["name"], shapes_of(self.trace), spans["module"])]
        )
        took = spans["self_ns"][rows].astype(np.float64)
        order = np.lexsort((took, groups.of_row))
        count = groups.sizes()
        usual = took[order][np.cumsum(count) - count + (count - 1) // 4]
        total_ns = float(took.sum())
        return float(np.minimum(took, usual[groups.of_row]).sum()) / total_ns if total_ns > 0 else 1.0

    def _modules(self) -> Population:
        trace = self.trace
        keys: list[Key] = [*zip(trace.column("modules", "path"), module_classes(trace), strict=True)]
        return self._with_python(keys, trace.column("spans", "module"), gaps(trace).shares.module)

    def _lines(self) -> Population:
        trace, of_stack = self.trace, self._line_of_stack
        of_span, of_share = of_stack[trace.column("spans", "stack")], of_stack[gaps(trace).shares.stack]
        return self._with_python(self._line_keys, of_span, of_share)

    @cached_property
    def _line_keys(self) -> list[Key]:
        return [self._line_key(frame) for frame in line_groups(self.trace)[1].tolist()]

    @cached_property
    def _line_of_stack(self) -> NDArray[np.int32]:
        """For each stack, and for -1, its line in the user's code, as a row of `line_groups`."""
        trace = self.trace
        frame = np.append(trace.column("stacks", "frame"), -1)[np.append(user_stacks(trace), -1)]
        return np.asarray(np.append(line_groups(trace)[0], -1)[frame], np.int32)

    def _work(self) -> Population:
        """Operators by line, name, module, and the floating-point operations and bytes of a call; 0 where unknown."""
        trace, spans, ran = self.trace, self.trace.columns("spans"), self.ran.operators
        calls, paths = costs_of(trace).calls, [*trace.column("modules", "path"), ""]
        names, lines = trace.strings, [*self._line_keys, ("", "", -1, "")]
        line = self._line_of_stack[spans["stack"][ran.span]]
        sizes = [np.maximum(size[calls.of_span[ran.span]], 0) for size in (calls.flops, calls.bytes)]
        columns = [spans["name"][ran.span], spans["module"][ran.span], line, *sizes]
        groups = Groups.by(columns)
        distinct = zip(*(column[groups.first].tolist() for column in columns), strict=True)
        keys = [(*lines[line], names[name], paths[module], *size) for name, module, line, *size in distinct]
        return self._population(keys, groups.of_row, ran.step, ran.time_ns)

    def _line_key(self, frame: int) -> Key:
        file, line, function = source_line(self.trace, frame)
        return file, function, line, line_text(self.trace, file, line)

    def _with_python(self, keys: Sequence[Key], of_span: NDArray[Any], of_share: NDArray[Any]) -> Population:
        """Operators and the Python between them, by the key of each span and each share of gaps; counts include only operators."""
        operators, python = self.ran.operators, self.ran.python
        return self._population(
            keys,
            np.concatenate((of_span[operators.span], of_share[python.key])),
            np.concatenate((operators.step, python.step)),
            np.concatenate((operators.time_ns, python.time_ns)),
            spans=len(operators.span),
        )

    def _account(self, ledger: ProcessLedger) -> Population:
        """The account of the step time; the rows of a step add up to it."""
        cells = ledger.cells
        step = ledger.counted_step[cells.step]
        rows = np.flatnonzero(step >= 0)
        line, first = line_groups(self.trace)
        frame = program_frames(self.trace)[cells.stack[rows]]
        entry, cause = cells.whole_parts(rows)
        is_operator_time = _of_operators(entry, cause)
        line = np.append(line, -1)[frame]
        groups = Groups.by([
            line,
            np.where(line >= 0, -1, cells.module[rows]),
            np.where(is_operator_time, cells.name[rows], -1),
            np.where(is_operator_time, 0, entry * len(Cause) + cause + 1),
        ])  # fmt: skip
        keys = self._account_keys(ledger, rows[groups.first], line[groups.first], first)
        return self._population(keys, groups.of_row, step[rows], cells.time_ns[rows])

    def _account_keys(
        self, ledger: ProcessLedger, rows: Rows, line: NDArray[np.int32], first: NDArray[np.int32]
    ) -> list[Key]:
        """The keys of some cells of the account: the kind of place, its identity, and the cause or entry."""
        cells, strings, paths = ledger.cells, self.trace.strings, self.trace.column("modules", "path")
        entries, causes = cells.whole_parts(rows)
        is_operator_time = _of_operators(entries, causes).tolist()
        keys: list[Key] = []
        for index, row in enumerate(rows.tolist()):
            entry, cause = ENTRIES[entries[index]], CAUSES[causes[index]]
            name = strings[cells.name[row]] if cells.name[row] >= 0 else ""
            words = name if is_operator_time[index] and name else words_of(entry, cause)
            if line[index] >= 0:
                keys.append(("line", *self._line_key(int(first[line[index]])), words))
            elif cells.module[row] >= 0:
                keys.append(("module", str(paths[cells.module[row]]), words))
            else:
                keys.append(("operator", words, words) if name else ("", words, words))
        return keys

    def _kernels(self) -> Population:
        ran, name = self.ran.kernels, self.trace.column("spans", "name")
        groups = Groups.by([name[ran.span]])
        keys: list[Key] = [(self.trace.strings[text],) for text in name[ran.span[groups.first]].tolist()]
        return self._population(keys, groups.of_row, ran.step, ran.time_ns)

    def _collectives(self) -> Population:
        calls = self._collective_calls
        return self._population(
            [(call["name"], call["group_size"] or 0, call["bytes"] or 0) for call in calls],
            np.arange(len(calls)),
            np.array([call["at"] for call in calls], dtype=np.int64),
            np.array([call["transfer_ns"] or call["call_ns"] or 0 for call in calls], dtype=np.float64),
        )

    @cached_property
    def _collective_calls(self) -> list[dict[str, Any]]:
        """The rows of `collectives` in the steps, with the step of each as `at`."""
        columns = ["span", "name", "group_size", "bytes", "transfer_ns", "call_ns"]
        calls: list[dict[str, Any]] = collectives(self.trace).select(columns).to_pylist()
        return [one | {"at": int(self.step[one["span"]])} for one in calls if self.ours[one["span"]]]

    def _population(
        self,
        keys: Sequence[Key],
        row: NDArray[Any],
        step: Rows,
        time_ns: NDArray[Any],
        spans: int | None = None,
    ) -> Population:
        """Sum by row and step; equal keys are one row, row -1 is skipped. Counts include only the first `spans` values; None for all."""
        row_of: dict[Key, int] = {}
        same = np.array([row_of.setdefault(key, len(row_of)) for key in keys] + [-1], dtype=np.int64)
        row = same[row]
        counted = np.zeros(len(row))
        counted[:spans] = 1
        cells = Groups.by([row * self.steps + step], (row >= 0) & (step >= 0))
        took, often = (cells.sums(values).astype(np.float64) for values in (time_ns, counted))
        return Population(list(row_of), row[cells.first], step[cells.first], took, often)

    # Counts.

    def step_counts(self) -> dict[str, Numbers]:
        """The recorded counts of each step."""
        trace, spans = self.trace, self.trace.columns("spans")
        kind = spans["kind"]
        device, launched = self.ran.kernels.span, self.ran.kernels.step
        operators = np.flatnonzero(is_operator(kind) & self.ours)
        by_count = self.scoped(None)
        for count, text in (("values_read", _VALUE_READ), ("tensor_copies", _TENSOR_COPY)):
            by_count[count] = self._per_step(self.step[operators[_is_named(trace, text)[operators]]])
        if len(trace.columns("streams")):
            starts = trace.column("launches", "host")[counted_launches(spans, trace.columns("launches"))]
            by_count["launches"] = self._per_step(self.step[starts[self.ours[starts]]])
            copied = is_copy(kind[device])
            directions = np.array(
                [direction.name for direction in copy_directions(trace, device[copied])], dtype=object
            )
            for count, direction in (("copies_to_device", "HtoD"), ("copies_to_host", "DtoH")):
                by_count[count] = self._per_step(launched[copied][directions == direction])
            waits = waiting_calls(trace)
            by_count["synchronizing_calls"] = self._per_step(self.step[waits[self.ours[waits]]])
        calls = self._collective_calls
        if calls:
            call_steps = np.array([call["at"] for call in calls])
            by_count["collectives"] = self._per_step(call_steps)
            call_bytes = np.array([call["bytes"] or 0 for call in calls])
            by_count["collective_bytes"] = self._per_step(call_steps, call_bytes)
        python = np.flatnonzero((kind == SpanKind.PYTHON) & requested_calls(trace) & self.ours)
        if len(python):
            by_count["python_calls"] = self._per_step(self.step[python])
        return by_count

    def scoped(self, scope: Scope | None) -> dict[str, Numbers]:
        """The recorded counts in each step of one module with its submodules, of one operator, or of everything."""
        trace, spans = self.trace, self.trace.columns("spans")
        chosen = self.ours if scope is None else in_scope(trace, scope) & self.ours
        counts = {"operators": self._per_step(self.step[chosen & is_operator(spans["kind"])])}
        if len(trace.columns("streams")):
            device, launched = self.ran.kernels.span, self.ran.kernels.step
            is_kernel = spans["kind"][device] == SpanKind.KERNEL
            if scope is not None:
                is_kernel &= np.append(chosen, False)[starters(trace).operator[device]]
            counts["kernels"] = self._per_step(launched[is_kernel])
        if memory_recorded(trace):
            blocks = trace.columns("allocations")
            rows = np.flatnonzero(blocks["bytes"] > 0)
            if scope is None:
                step = steps_of_blocks(self.loop, rows)
            else:
                of_chosen = np.append(chosen, False)[requesting_operators(trace)[blocks["span"][rows]]]
                step = np.where(of_chosen, self.step[blocks["span"][rows]], -1)
            counts["allocations"] = self._per_step(step)
            counts["allocated_bytes"] = self._per_step(step, blocks["bytes"][rows])
        if len(trace.columns("shapes")) and counted_flops(trace).flops is not None:
            rows = np.flatnonzero(chosen)
            counts["flops"] = self._per_step(self.step[rows], np.maximum(costs_of(trace).flops[rows], 0))
        return counts

    def _per_step(self, step: Rows, values: NDArray[Any] | None = None) -> Numbers:
        by_step = Groups(step, self.steps)
        return (by_step.sizes() if values is None else by_step.sums(values)).astype(np.float64)

    def run_counts(self, recompiles: int) -> dict[str, int]:
        """The recorded counts of the run."""
        counts = {"recompiles": recompiles}
        breaks = self._graph_breaks()
        if breaks is not None:
            counts["graph_breaks"] = breaks
        if memory_recorded(self.trace):
            counts["peak_bytes"] = max((peak.bytes for peak in device_peaks(self.trace)), default=0)
        return counts

    def _graph_breaks(self) -> int | None:
        """The number of places with graph breaks, from torch's metrics or, in other profilers' traces, by function names; None if unknown."""
        trace = self.trace
        breaks = trace.columns("graph_breaks")
        if len(breaks) or len(trace.columns("compiles")):
            ours = np.flatnonzero(breaks["process_row"] == self.loop.process).tolist()
            # A function that breaks graphs, such as a logger, may be called from several places.
            return len({breaks["stack"][row] for row in ours})
        functions = np.unique(trace.column("frames", "function")).tolist()
        resumed = [
            function for function in functions if RESUMED.match(trace.strings[function].rpartition(".")[2])
        ]
        return len(resumed) if functions else None


def steps_of_blocks(loop: Loop, rows: Rows) -> Rows:
    """The step of the loop in which each row of `allocations` was allocated; -1 outside of steps and in other processes."""
    blocks = loop.trace.columns("allocations")
    thread = blocks["thread"][rows]
    process = np.append(loop.trace.column("threads", "process_row"), -1)[thread]
    return np.where(process == loop.process, loop.step_at(blocks["time_ns"][rows], thread), -1)


def in_scope(trace: TraceData, scope: Scope) -> Mask:
    """Spans of a module with its submodules, or of an operator."""
    kind, name = scope
    if kind == "operators":
        return _is_named(trace, name)
    paths = trace.column("modules", "path")
    inside = [path == name or path.startswith(f"{name}.") for path in paths]
    return np.asarray(np.array([*inside, False], dtype=bool)[trace.column("spans", "module")])


def _is_named(trace: TraceData, name: str) -> Mask:
    row = trace.strings.index(name) if name in trace.strings else -1
    return np.asarray(trace.column("spans", "name") == row)


def _memory_by_holder(trace: TraceData) -> dict[Key, int]:
    bytes_of: dict[Key, int] = {}
    for peak in device_peaks(trace) if memory_recorded(trace) else ():
        columns = ["device", "category", "module", "operator", "line", "bytes"]
        for row in memory_peak(trace, device=peak.device).select(columns).to_pylist():
            key = tuple(row[name] or "" for name in columns[:-1])
            bytes_of[key] = bytes_of.get(key, 0) + row["bytes"]
    return bytes_of


def _sizes(dims: str) -> str:
    """The shapes of the tensor inputs as readable text."""
    sizes = parsed_json(dims)
    return ", ".join(str(size) for size in sizes if size) if isinstance(sizes, list) else dims


def _of_operators(entry: Rows, cause: Rows) -> Mask:
    """Cells of the account that have the operator's name: its needed time, and slow or unknown time without a cause."""
    is_plain = (entry == Entry.NEEDED) | ((entry == Entry.SLOW) & (cause == Cause.NONE))
    return np.asarray(is_plain | (cause == Cause.NO_INPUTS))
