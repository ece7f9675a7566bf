"""The least time that operators need on this machine, by family, operations and bytes.

A rate is what the best available implementation reaches at a size, not the peak of the CPU. Rates come from a calibration of the machine that recorded the
trace (`kinetoscope calibrate`). Without one, or for families that it lacks, they are the best rates in the trace itself: slow calls are then compared only
with faster calls of the same trace.

A curve gives the least time for work of a size, without the fixed cost of a call. It never falls with size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import operator_spans
from kinetoscope.model.rows import Rows, mask_of
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.peaks import MATRIX

Floats = NDArray[np.float64]


CALL, STREAM, RANDOM = "call", "stream", "random"
"""Curves that belong to no family: an empty operator, reading and writing memory, random numbers."""

# The curves of families that memory limits, by bytes moved. All other families go by operations.
_BY_BYTES = {
    "copying": STREAM,
    "optimizer": STREAM,
    "pointwise": STREAM,
    "reduction": "reduction",
    "loss": STREAM,
    "softmax": "softmax",
    "normalisation": "normalization",
    "embedding": "indexing",
    "indexing": "indexing",
}
_BACKWARD = frozenset({"convolution", "attention", "normalization", "softmax", "recurrent", "pooling"})
# Drawing random numbers takes much longer than writing them.
_RANDOM = (
    "normal", "uniform", "random", "bernoulli", "exponential", "rand", "native_dropout", "_fused_dropout", "multinomial",
    "_fill_mem_eff_dropout_mask", "geometric", "cauchy", "log_normal", "poisson",
)  # fmt: skip


# Calls that move at most the first number of bytes show the fixed cost of a call; below the second, the fixed cost still dominates.
_NOTHING, _SOMETHING = 16, 4096
# An upper bound of the fixed cost, for traces in which all operators are large.
_LONGEST_CALL_NS = 5000.0
# The usual fixed cost of a small operator, a lower bound without calibration: the cheapest operators of a trace may all be views.
_USUAL_CALL_NS = 2000.0
# Without calibration: at most this much slower than the best rate in the trace, for families that memory limits and for all others.
_MEMORY_SLACK, _SIZE_SLACK = 6.0, 4.0
# A Fourier transform reaches at least the rate of matrix products divided by this.
_SLOWEST = 2.0
SLOWEST_GFLOPS, SLOWEST_GBYTES = 5.0, 2.0
"""Any CPU thread exceeds these rates: float32 operations and bytes per nanosecond."""
# Matrix products with at least this many operations exceed this rate.
_LARGE_FLOPS, _SLOWEST_LARGE_GFLOPS = 4_000_000, 20.0
# At least this fraction of a call's time counts as work, however close it is to the fixed cost.
_LEAST_WORK = 0.1
FRESH_BYTES = 32 * 2**20
"""glibc's largest mmap threshold: freed blocks from this size on return to the system, and each allocation gets new pages."""


@dataclass(frozen=True, eq=False)
class Curve:
    """The least time of work by its size.

    Attributes:
        size: Sizes in ascending order: operations or bytes.
        time_ns: The least time for each size; ascending.
    """

    size: Floats
    time_ns: Floats

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]], call_ns: float = 0.0) -> Curve | None:
        """A curve through measured times, made monotone; None without points.

        Args:
            points: Sizes and times, both above 0; others are ignored.
            call_ns: The fixed cost of a call, which the times include.
        """
        measured_points = sorted((size, time) for size, time in points if size > 0 and time > 0)
        if not measured_points:
            return None
        size, time = np.array(measured_points, dtype=np.float64).T
        # A smaller piece needs no more time than a larger one.
        time = np.minimum.accumulate(time[::-1])[::-1]
        work = np.maximum(time - call_ns, _LEAST_WORK * time)
        distinct = np.append(True, np.diff(size) > 0)
        return cls(size[distinct], work[distinct])

    def least_ns(self, size: Floats) -> Floats:
        """The least time for work of some sizes: interpolated, and beyond the measured sizes at the rate of the nearest."""
        inside = np.clip(size, self.size[0], self.size[-1])
        log_time = np.interp(np.log(inside), np.log(self.size), np.log(self.time_ns))
        return np.asarray(np.exp(log_time) * size / inside)


def curve_name(family: str, operator: str, dtype: str, *, by_bytes: bool) -> str:
    """The name of an operator's curve: its family, `backward` if that is another algorithm, and the element type unless it goes by bytes.

    Args:
        family: The family of the operator's formula.
        operator: The operator's name.
        dtype: The element type of the computation.
        by_bytes: Whether the curve goes by bytes rather than operations.
    """
    if by_bytes and operator.removeprefix("aten::").startswith(_RANDOM):
        return RANDOM
    name = _BY_BYTES.get(family, STREAM) if by_bytes else family
    if name in _BACKWARD and "backward" in operator:
        name = f"{name} backward"
    return name if by_bytes else f"{name} {dtype}".rstrip()


@dataclass(frozen=True, eq=False)
class Rates:
    """The rates that the machine of a trace attains.

    Attributes:
        curves: The curves of the calibration by `curve_name`.
        call_ns: The fixed cost of an operator call; without calibration, that of the cheapest operators in the trace.
        fixed_ns: The fixed cost of a usual operator call.
        trace_curves: Curves from the trace itself, for families that the calibration lacks.
    """

    curves: dict[str, Curve]
    call_ns: float
    fixed_ns: float
    trace_curves: dict[str, Curve]

    @property
    def is_calibrated(self) -> bool:
        """Whether any curve comes from a calibration."""
        return bool(self.curves)

    def least_ns(
        self,
        families: Sequence[str],
        operators: Sequence[str],
        dtypes: Sequence[str],
        flops: Rows,
        size: Rows,
    ) -> Floats:
        """The least time of some operator calls, without the fixed cost of a call.

        Args:
            families: The family of each call's formula; empty for none.
            operators: The operator's name.
            dtypes: The element type of the computation.
            flops: The operations; 0 or less if none or unknown.
            size: The bytes moved; -1 if unknown.
        """
        calls = list(zip(families, operators, dtypes, strict=True))
        by_work = [
            ([curve_name(*call, by_bytes=by_bytes) for call in calls], work)
            for by_bytes, work in ((False, flops), (True, size))
        ]
        has_family = np.array([family != "" for family in families], dtype=bool)
        least = np.zeros(len(flops))
        for curves in (self.curves, self.trace_curves):
            # The calibration takes precedence: the trace's own curves fill in only what it lacks.
            is_open = has_family & (least == 0)
            for names, work in by_work:
                numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
                curve_number = np.array([numbers[name] for name in names], dtype=np.int64)
                for name in numbers.keys() & curves.keys():
                    rows = np.flatnonzero(is_open & (curve_number == numbers[name]) & (work > 0))
                    least_ns = curves[name].least_ns(work[rows].astype(np.float64))
                    least[rows] = np.maximum(least[rows], least_ns)
        return least


@derived
def rates_of(trace: TraceData) -> Rates:
    """The rates of a trace: calibrated on its machine, or else the best in the trace."""
    # In a trace of several processes, the first calibration counts.
    runs = (trace.run_info, *trace.run_info.processes)
    calibration = next((run.attainable for run in runs if run.attainable), ())
    stored = {run.name: list(zip(run.size, run.time_ns, strict=True)) for run in calibration}
    call_ns = stored[CALL][0][1] if CALL in stored else _shortest_call_ns(trace)
    curves = {
        name: curve
        for name, points in stored.items()
        if name != CALL and (curve := Curve.of(points, call_ns)) is not None
    }
    fixed_ns = call_ns if CALL in stored else max(call_ns, _USUAL_CALL_NS)
    return Rates(curves, call_ns, fixed_ns, _trace_curves(trace, call_ns))


@derived
def least_call_ns(trace: TraceData) -> Floats:
    """The least time of each distinct call on the host; 0 if its cost is unknown.

    A 16-bit matrix product needs no more than the same product in 32 bits: CPUs without 16-bit units convert each number.
    """
    costs = costs_of(trace)
    calls, spans = costs.calls, trace.columns("spans")
    operators = [trace.strings[name] for name in spans["name"][calls.first].tolist()]
    # The costs of sparse and packed operands are per span: take the largest of each call.
    by_call = Groups(calls.of_span, len(calls.first))
    flops = np.maximum(calls.flops, by_call.maxima(costs.flops))
    size = np.maximum(calls.bytes, by_call.maxima(costs.bytes_moved))
    rates = rates_of(trace)
    least_ns = rates.least_ns(calls.family, operators, calls.dtype, flops, size)
    narrow = np.flatnonzero([
        family in MATRIX and dtype in ("float16", "bfloat16")
        for family, dtype in zip(calls.family, calls.dtype, strict=True)
    ])  # fmt: skip
    if len(narrow):
        families, names = ([of[row] for row in narrow.tolist()] for of in (calls.family, operators))
        work, kinds = flops[narrow], ["float32"] * len(narrow)
        wide_ns = rates.least_ns(families, names, kinds, work, np.full(len(narrow), -1))
        slowest_ns = work / np.where(work < _LARGE_FLOPS, SLOWEST_GFLOPS, _SLOWEST_LARGE_GFLOPS)
        wide_ns = np.where(wide_ns > 0, wide_ns, slowest_ns)
        least_ns[narrow] = np.where(work > 0, np.minimum(least_ns[narrow], wide_ns), least_ns[narrow])
    return least_ns


def measured(trace: TraceData) -> dict[str, list[tuple[float, float]]]:
    """The curves of a recorded calibration: sizes and the median time of a call, each less than that of any larger size.

    Args:
        trace: A recording with shapes and memory that repeats each call several times.
    """
    points = _points(trace, Groups.medians)
    call_ns = min(
        (time for size, time in points[STREAM] if size <= _NOTHING), default=_shortest_call_ns(trace)
    )
    curves = {
        name: envelope
        for name, of_curve in points.items()
        if (envelope := _envelope([point for point in of_curve if point[0] >= _SOMETHING]))
    }
    curves[CALL] = [(1.0, call_ns)]
    return curves


def _envelope(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points for which no larger size was faster."""
    envelope: list[tuple[float, float]] = []
    for size, time in sorted(points, key=lambda point: (-point[0], point[1])):
        if not envelope or (size < envelope[-1][0] and time < envelope[-1][1]):
            envelope.append((size, time))
    return envelope[::-1]


def _shortest_call_ns(trace: TraceData) -> float:
    """The fixed cost of a call in this trace: the lower quartile of the operators that call no other."""
    spans = trace.columns("spans")
    rows = operator_spans(trace).rows
    inner = mask_of(spans["parent"][rows], len(spans) + 1)
    rows = rows[~inner[rows] & (spans["stream"][rows] < 0) & (spans["duration_ns"][rows] > 0)]
    typical_ns = float(np.percentile(spans["duration_ns"][rows], 25)) if len(rows) else 0.0
    return min(typical_ns, _LONGEST_CALL_NS)


def _trace_curves(trace: TraceData, call_ns: float) -> dict[str, Curve]:
    points_of = _points(trace, Groups.minima)
    best_rates = {
        name: max((size / time for size, time in points), default=0.0) for name, points in points_of.items()
    }
    product_rate = max((rate for name, rate in best_rates.items() if name.startswith("matmul")), default=0.0)
    for name, points in points_of.items():
        best, slack = best_rates[name], _MEMORY_SLACK
        if name.removesuffix(" backward") not in {*_BY_BYTES.values(), RANDOM}:
            slack = _SIZE_SLACK
            best = max(best, product_rate / _SLOWEST if name.startswith("fourier") else 0.0)
        # Larger sizes may have lower rates, but only within the slack.
        points_of[name] = [(size, min(time, call_ns + slack * size / best)) for size, time in points]
    return {
        name: curve for name, points in points_of.items() if (curve := Curve.of(points, call_ns)) is not None
    }


def _points(
    trace: TraceData, typical: Callable[[Groups, Rows], Rows]
) -> dict[str, list[tuple[float, float]]]:
    """For each curve, the size and the typical time of each distinct call on the host."""
    costs, spans = costs_of(trace), trace.columns("spans")
    calls = costs.calls
    rows = np.flatnonzero(costs.counted.counts & (spans["stream"] < 0) & (spans["duration_ns"] > 0))
    groups = Groups.by([calls.of_span[rows]])
    time = typical(groups, spans["duration_ns"][rows])
    sizes = [groups.maxima(values[rows]).tolist() for values in (costs.flops, costs.bytes_moved)]
    distinct = calls.of_span[rows[groups.first]].tolist()
    names = spans["name"][rows[groups.first]].tolist()
    points: dict[str, list[tuple[float, float]]] = {}
    for call, name, time_ns, *both in zip(distinct, names, time.tolist(), *sizes, strict=True):
        for by_bytes, size in enumerate(both):
            if size > 0 and calls.family[call]:
                key = curve_name(
                    calls.family[call], trace.strings[name], calls.dtype[call], by_bytes=bool(by_bytes)
                )
                points.setdefault(key, []).append((float(size), float(time_ns)))
    return points
