"""Kinds of steps: steps that run about the same operators, such as training steps and the evaluation after every tenth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.arrow import ArrowTable, Labels, labels, to_arrow
from kinetoscope.model.dictionary import table_definition
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.hierarchy import operator_spans
from kinetoscope.model.marks import parse_step_mark
from kinetoscope.model.rows import Rows, hashed, places_of
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.flops import step_work
from kinetoscope.tables.step_extents import start_up_steps, step_extents

Counts = NDArray[np.float64]
Operators = Mapping[str, tuple[float, float]]
"""For each operator the number of calls in a step and the time of a call in ns."""


STEP_KINDS_SCHEMA = table_definition("step_kinds")


# Steps are of one kind if they share at least this fraction of their operators, weighted by the mean time of these.
_ALIKE = 0.75
LEAST_OF_KIND = 3
"""Fewer steps of a kind are single events, such as the first steps or a checkpoint."""
# After this many kinds, further steps join the most similar kind.
_MOST_KINDS = 64


@dataclass(frozen=True, eq=False)
class NamedSteps:
    """The names of steps.

    Attributes:
        names: The distinct names.
        name: For each row of `steps` an index in `names`; -1 for none.
        arguments: For each row of `steps` its arguments as JSON text; None without arguments.
    """

    names: list[str]
    name: NDArray[np.int32]
    arguments: list[str | None]


@derived
def named_steps(trace: TraceData) -> NamedSteps:
    """The names of the steps of a trace; if a step has several, the first counts."""
    spans, count = trace.columns("spans"), len(trace.columns("steps"))
    marks = {row: mark for row, text in enumerate(trace.strings) if (mark := parse_step_mark(text))}
    steps = NamedSteps([], np.full(count, -1, np.int32), [None] * count)
    if not marks or not count:
        return steps
    rows = np.flatnonzero(np.isin(spans["name"], list(marks)) & (spans["step"] >= 0))
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    name_ids: dict[str, int] = {}
    for step, name in zip(spans["step"][rows].tolist(), spans["name"][rows].tolist(), strict=True):
        if steps.name[step] < 0:
            mark = marks[name]
            steps.name[step] = name_ids.setdefault(mark.name, len(name_ids))
            steps.arguments[step] = mark.arguments or None
    steps.names.extend(name_ids)
    return steps


def step_kinds(trace: TraceData, peak_flops: Any = None) -> ArrowTable:
    """Return the `step_kinds` table.

    Args:
        trace: The trace.
        peak_flops: The peak FLOP/s of the devices, as for `steps`.

    Returns:
        The table, empty without steps; `STEP_KINDS_SCHEMA` describes its columns.

    Raises:
        ArgumentError: `peak_flops` is not a number above 0 or a mapping to such numbers.
    """
    return to_arrow(STEP_KINDS_SCHEMA, _times(trace) | work_of_kinds(trace, peak_flops))


def kinds_in(trace: TraceData) -> list[dict[str, Any]]:
    """The rows of the `step_kinds` table without the FLOPs columns, which take longer to compute."""
    computed = ("flops_per_s", "mfu")
    columns = tuple(column for column in STEP_KINDS_SCHEMA.columns if column.name not in computed)
    timed = replace(STEP_KINDS_SCHEMA, columns=columns)
    rows: list[dict[str, Any]] = to_arrow(timed, _times(trace)).to_pylist()
    return rows


def work_of_kinds(trace: TraceData, peak_flops: Any = None) -> dict[str, NDArray[np.float64]]:
    """The columns `flops_per_s` and `mfu`: medians over the steps of each kind; 0 if nothing was counted in most of them."""
    duration_ns = step_extents(trace).duration_ns
    work, kind = step_work(trace, duration_ns, peak_flops), kinds_of_steps(trace)
    kinds = range(int(kind.max(initial=-1)) + 1)
    flops, mfu = work["flops"], work["mfu"]
    rate = np.where(flops >= 0, flops * 1e9 / np.maximum(duration_ns, 1), np.nan)

    def medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
        samples = [values[(kind == number) & np.isfinite(values)] for number in kinds]
        return np.array([float(np.median(sample)) if len(sample) else np.nan for sample in samples])

    return {"flops_per_s": medians(rate), "mfu": medians(np.full(len(kind), np.nan) if mfu is None else mfu)}


def _times(trace: TraceData) -> dict[str, Any]:
    kind, called, operators = kinds_of_steps(trace), named_steps(trace), _operators(trace)
    by_kind = Groups(kind, int(kind.max(initial=-1)) + 1)
    duration, number = step_extents(trace).duration_ns, trace.column("steps", "number")
    total_ns = by_kind.sums(duration)
    return {
        "kind": np.arange(len(by_kind)),
        "name": Labels(called.name[by_kind.row_of_minimum(np.arange(len(kind)))], called.names),
        "count": by_kind.sizes(),
        "total_ns": total_ns,
        "share_percent": percent(total_ns, int(total_ns.sum())),
        "median_ns": by_kind.medians(duration),
        "min_ns": by_kind.minima(duration),
        "max_ns": by_kind.maxima(duration),
        "operators": by_kind.medians(operators.per_step),
        "most_of": labels(most_of(operators.of_kinds(kind, operators.mean_duration_ns))),
        "first_step": by_kind.minima(number),
        "last_step": by_kind.maxima(number),
    }


@derived
def kinds_of_steps(trace: TraceData) -> Rows:
    """For each row of `steps` the number of its kind, most total time first; -1 for start-up."""
    operators, rows = _operators(trace), np.flatnonzero(~start_up_steps(trace))
    # Most steps have the same counts as other steps.
    name = named_steps(trace).name
    mixed = operators.fingerprint[rows] + hashed(name[rows] + np.int32(1))
    _, first, same, often = np.unique(mixed, return_index=True, return_inverse=True, return_counts=True)
    kind, examples = np.zeros(len(first), np.int64), np.zeros((0, len(operators.names)))
    of_example: list[int] = []
    for group in np.lexsort((first, -often)).tolist():
        counts = operators.counts_in(int(rows[first[group]]))
        called = int(name[rows[first[group]]])
        alike = _alike(counts, examples, operators.mean_duration_ns)
        alike[np.array(of_example, int) != called] = -1.0
        nearest = int(np.argmax(alike)) if len(examples) else -1
        is_far = nearest < 0 or alike[nearest] < 0
        if is_far or (alike[nearest] < _ALIKE and len(examples) < _MOST_KINDS):
            nearest = len(examples)
            of_example.append(called)
            examples = np.vstack((examples, counts))
        kind[group] = nearest
    time_ns = Groups(kind[same], len(examples)).sums(step_extents(trace).duration_ns[rows])
    rank = np.empty(len(examples), np.int64)
    rank[np.argsort(-time_ns, kind="stable")] = np.arange(len(examples))
    kinds = np.full(len(name), -1, np.int64)
    kinds[rows] = rank[kind[same]]
    return kinds


@derived
def main_kind(trace: TraceData) -> int:
    """The kind that represents the program where only one can be shown; -1 without steps.

    It is the kind with the most time among those with at least `LEAST_OF_KIND` steps, or else the kind with the most steps.
    """
    kind, number = kinds_of_steps(trace), trace.column("steps", "number")
    often = np.array([len(np.unique(number[kind == one])) for one in range(int(kind.max(initial=-1)) + 1)])
    several = np.flatnonzero(often >= LEAST_OF_KIND)
    return int(several[0]) if len(several) else int(often.argmax()) if len(often) else -1


@derived
def operators_of_kinds(trace: TraceData) -> list[Operators]:
    """For each kind of steps the operators of a typical step: the number of calls, and the mean self time of a call in ns."""
    operators = _operators(trace)
    return operators.of_kinds(kinds_of_steps(trace), operators.mean_ns)


class StepOperators:
    """The operators and backward functions in steps or requests, by name."""

    def __init__(self, trace: TraceData, step: NDArray[Any], steps: int) -> None:
        """Count the operators that began in each of `steps` steps; `step` has each span's step index, -1 for none."""
        spans = trace.columns("spans")
        is_counted = operator_spans(trace).mask & (step >= 0)
        # Count instead of sorting, which for the names of a million spans would dominate.
        counts = Groups(np.where(is_counted, spans["name"], -1), len(trace.strings)).sizes()
        self.names = np.flatnonzero(counts).astype(np.int32)
        name = np.where(is_counted, places_of(self.names, len(trace.strings))[spans["name"]], np.int32(-1))
        self._trace, self._strings, self._by_name = trace, trace.strings, Groups(name, len(self.names))
        # Operators without any time still distinguish steps. Inclusive times: self times of many spans take long to compute.
        time_ns = self._by_name.sums(spans["duration_ns"])
        self.mean_duration_ns = np.maximum(time_ns, 1) / counts[self.names]
        by_step = Groups(np.where(is_counted, step, -1), steps)
        self.per_step = by_step.sizes()
        # A hash of the counts: the sum of a random number per name over all calls.
        numbers = np.append(hashed(self.names), np.uint64(0)).view(np.int64)
        self.fingerprint = by_step.sums(numbers[name]).view(np.uint64)
        # The number of calls of each name in each step, step by step.
        pairs = Groups.by([by_step.of_row, name], is_counted)
        order, self._begin = Groups(by_step.of_row[pairs.first], steps).rows()
        self._name, self._calls = name[pairs.first][order], pairs.sizes()[order]

    @cached_property
    def mean_ns(self) -> NDArray[np.float64]:
        """The mean self time of a call of each name."""
        time_ns = self._by_name.sums(self._trace.column("spans", "self_ns"))
        return np.asarray(np.maximum(time_ns, 1) / self._by_name.sizes())

    def of_kinds(self, kind: NDArray[Any], call_ns: NDArray[np.float64]) -> list[Operators]:
        """For each kind the operators of its middle step: the number of calls, and the time of a call in ns.

        Args:
            kind: The kind of each step, from 0; -1 for none.
            call_ns: The time of a call of each of `names`.
        """
        names = [self._strings[name] for name in self.names.tolist()]
        order, begins = Groups(kind, int(kind.max(initial=-1)) + 1).rows()
        listed: list[Operators] = []
        for begin, end in pairwise(begins.tolist()):
            # A kind that only another process has is empty here.
            counts = self.counts_in(int(order[(begin + end) // 2])) if begin < end else np.zeros(len(names))
            columns = zip(names, counts.tolist(), call_ns.tolist(), strict=True)
            listed.append({name: (count, mean_ns) for name, count, mean_ns in columns if count})
        return listed

    def counts_in(self, step: int) -> Counts:
        """The number of calls of each name in a step."""
        of_step = slice(self._begin[step], self._begin[step + 1])
        counts = np.zeros(len(self.names))
        counts[self._name[of_step]] = self._calls[of_step]
        return counts


@derived
def _operators(trace: TraceData) -> StepOperators:
    return StepOperators(trace, trace.column("spans", "step"), len(trace.columns("steps")))


def _alike(one: Counts, others: Counts, mean_ns: Counts) -> NDArray[np.float64]:
    """The weighted Jaccard similarity of one step's operators with those of others: 1 for equal counts, 0 for nothing in common."""
    most = np.maximum(one, others) @ mean_ns
    return np.divide(np.minimum(one, others) @ mean_ns, most, out=np.ones(len(others)), where=most > 0)


def most_of(kinds: Sequence[Operators]) -> list[str | None]:
    """For each kind the operator that it has most of: its calls beyond those of any other kind take the most time; None if there is none."""
    names: list[str | None] = []
    for index, operators in enumerate(kinds if len(kinds) > 1 else ()):
        other_kinds = [kind for other_index, kind in enumerate(kinds) if other_index != index]
        more = {
            name: (count - max(kind.get(name, (0.0, 0.0))[0] for kind in other_kinds)) * mean_ns
            for name, (count, mean_ns) in operators.items()
        }
        name = max(more, key=more.__getitem__, default=None)
        names.append(name if name is not None and more[name] > 0 else None)
    return names or [None] * len(kinds)
