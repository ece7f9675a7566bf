"""What takes how long in a step, estimated from a recording of some of the steps, as `kinetoscope.leave_on` makes it.

The flight recorder notes (`kinetoscope.model.step_plan`) which share of the steps it records from which step on: a recorded step stands for as many
as its share says. The variance of a mean is that of the differences between successive recorded steps, which a slow drift of the program does
not enlarge. Steps of different kinds are never in one mean, and neither are steps that were recorded by a capture.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.hierarchy import operator_spans
from kinetoscope.model.schema import Column, Table
from kinetoscope.model.step_plan import StepSampling
from kinetoscope.tables.step_extents import step_extents
from kinetoscope.tables.step_kinds import kinds_of_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

FEWEST_STEPS = 30
"""With fewer effective steps there is no estimate."""

ESTIMATES_SCHEMA = Table(
    "estimates",
    "An estimate of the time in a step on average, over recorded and unrecorded steps, from those that were recorded. Most time first within each kind of step.",
    (
        Column("step_kind", "int64", "", "The kind of the steps, as in `step_kinds`: each is estimated on its own."),
        Column("captured", "bool", "", "Whether these steps were recorded by a capture, such as `kinetoscope capture`; they represent only themselves."),
        Column("name", "category", "", "The operator, or the path of the module; null for the whole step."),
        Column("steps", "int64", "", "How many recorded steps there are."),
        Column("effective_steps", "float64", "", "How many equally weighted steps would give the same precision: fewer if the recorded share changed."),
        Column("of_steps", "float64", "", "About how many steps they represent."),
        Column("per_step_ns", "float64", "ns", "The mean in a step: self time of operators, also of a module, and the duration of the whole step. Null: with fewer than "
                                               f"{FEWEST_STEPS} effective steps, there are too few, unless they represent only themselves."),
        Column("low_ns", "float64", "ns", "The lower limit of its 95 % interval; null where there is no estimate."),
        Column("high_ns", "float64", "ns", "The upper limit."),
    ),
)  # fmt: skip

_BY = ("operator", "module")
# Of the normal distribution, for an interval of 95 %.
_WIDTH = 1.96


class Estimate(NamedTuple):
    """An estimate of a mean over steps.

    Attributes:
        mean: The mean.
        low: The lower limit of its 95 % interval.
        high: The upper limit.
    """

    mean: float
    low: float
    high: float


def estimate_of_mean(values: NDArray[np.float64], shares: NDArray[np.float64]) -> Estimate:
    """Estimate a mean over all steps from those that were recorded.

    The weight of a step is 1 / share. The variance of a single value is sum((y[i + 1] - y[i])^2) / (2 (n - 1)), and a step that stands for
    no others adds none. The interval is that of Student's distribution, approximated, with 2/3 of n - 1 degrees of freedom.

    Args:
        values: A value of each recorded step, in order of the steps.
        shares: The share of the steps that was recorded there, above 0 and at most 1.
    """
    weights = 1 / shares
    total = weights.sum()
    mean = float((weights * values).sum() / total)
    if len(values) < 2:
        error = 0.0 if (shares == 1).all() else math.inf
        return Estimate(mean, mean - error, mean + error)
    single = float((np.diff(values) ** 2).sum()) / (2 * (len(values) - 1))
    variance = float((weights**2 * (1 - shares)).sum()) / float(total) ** 2 * single
    freedom = 2 * (len(values) - 1) / 3
    width = (_WIDTH + (_WIDTH**3 + _WIDTH) / (4 * freedom)) * math.sqrt(variance)
    return Estimate(mean, mean - width, mean + width)


def effective_steps(shares: NDArray[np.float64]) -> float:
    """How many steps with equal weights would tell as much as those that were recorded with these shares."""
    weights = 1 / shares
    return float(weights.sum() ** 2 / (weights**2).sum())


def shares_of_steps(
    info: Mapping[str, Any], numbers: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Which share of the steps was recorded around each of these, and which of them are from a capture; 1 without a plan."""
    shares, captured = np.ones(len(numbers)), np.zeros(len(numbers), bool)
    sampling = StepSampling.of(info)
    for first, share in sampling.stretches:
        shares[numbers >= first] = share
    for first, last in sampling.captures:
        captured |= (numbers >= first) & (numbers <= last)
    shares[captured] = 1
    return shares, captured


def estimates(trace: TraceData, by: str = "operator") -> pyarrow.Table:
    """Return the `estimates` table.

    Args:
        trace: The trace.
        by: `operator` or `module`.

    Returns:
        The table, empty without steps, start-up left out; the meaning of its columns is in `ESTIMATES_SCHEMA`.

    Raises:
        ArgumentError: Another value of `by`.
    """
    if by not in _BY:
        raise ArgumentError(f"by={by!r} is not valid: choose from {', '.join(_BY)}")
    steps, kinds = trace.columns("steps"), kinds_of_steps(trace)
    shares, captured = shares_of_steps(trace.info, steps["number"])
    spans = trace.columns("spans")
    inside = operator_spans(trace).mask & (spans["step"] >= 0)
    if by == "module":
        inside &= spans["module"] >= 0
    own = np.flatnonzero(inside)
    work = _Work(
        spans["step"][own], spans["module" if by == "module" else "name"][own], spans["self_ns"][own]
    )
    texts = trace.column("modules", "path") if by == "module" else trace.strings
    rows = []
    for kind in range(int(kinds.max(initial=-1)) + 1):
        for from_capture in (False, True):
            chosen = np.flatnonzero((kinds == kind) & (captured == from_capture))
            if len(chosen):
                duration_ns = step_extents(trace).duration_ns[chosen].astype(np.float64)
                rows += [
                    (kind, from_capture, name, *row)
                    for name, row in _rows(work, chosen, duration_ns, shares[chosen], len(steps))
                ]
    values = [np.array(column) for column in zip(*rows, strict=True)] or [np.zeros(0, np.int64)] * len(
        ESTIMATES_SCHEMA.columns
    )
    columns: dict[str, Any] = dict(zip(ESTIMATES_SCHEMA.column_names, values, strict=True))
    columns["name"] = [None if name < 0 else str(texts[name]) for name in columns["name"].tolist()]
    return to_arrow(ESTIMATES_SCHEMA, columns)


class _Work(NamedTuple):
    """What ran in steps, with a row for each time that something ran: the row of its step, what ran, as a number, and for how long."""

    step: NDArray[np.int64]
    key: NDArray[np.int64]
    self_ns: NDArray[np.int64]


def _rows(
    work: _Work,
    steps: NDArray[np.int64],
    duration_ns: NDArray[np.float64],
    shares: NDArray[np.float64],
    all_steps: int,
) -> list[tuple[int, tuple[float, ...]]]:
    """For the whole step, as -1, and for everything that ran in some steps, the columns from `steps` on; most time first."""
    effective = effective_steps(shares)
    told = (len(steps), effective, float((1 / shares).sum()))
    # Of steps that stand for no others nothing is estimated.
    known = effective >= FEWEST_STEPS or bool((shares == 1).all())

    def row(values: NDArray[np.float64]) -> tuple[float, ...]:
        found = estimate_of_mean(values, shares) if known else Estimate(math.nan, math.nan, math.nan)
        return (*told, *found)

    place = np.full(all_steps, -1)
    place[steps] = np.arange(len(steps))
    mine = np.flatnonzero(place[work.step] >= 0)
    mine = mine[np.argsort(work.key[mine], kind="stable")]
    found = []
    for group in np.split(mine, np.flatnonzero(np.diff(work.key[mine])) + 1) if len(mine) else []:
        values = np.bincount(
            place[work.step[group]], weights=work.self_ns[group], minlength=len(steps)
        ).astype(np.float64)
        found.append((float(values.sum()), int(work.key[group[0]]), row(values)))
    found.sort(key=lambda one: (-one[0], one[1]))
    return [(-1, row(duration_ns)), *((key, columns) for _, key, columns in found)]
