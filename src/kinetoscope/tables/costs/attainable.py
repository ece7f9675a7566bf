"""How fast a machine can do what an operator does: the least time for so many operations and bytes of one family of operators.

A rate is what the best implementation at hand reaches at a size, not the peak of the processor. Rates come from a calibration of the machine
that recorded the trace (`kinetoscope calibrate`) where the trace has one. For a family that it does not have, and without any, they are the best
rates seen in the trace itself: what took longest for its size is then only compared with what was faster.

A curve says how long work of a size takes at least, without the fixed cost of a call: a larger piece never less than a smaller one.
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
"""Curves of no family: an operator that does nothing, reading and writing memory, random numbers."""

# Families that are as fast as memory is, each by the bytes they move; others than these by their operations.
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
# Random numbers take much longer than the bytes they fill.
_RANDOM = (
    "normal", "uniform", "random", "bernoulli", "exponential", "rand", "native_dropout", "_fused_dropout", "multinomial",
    "_fill_mem_eff_dropout_mask", "geometric", "cauchy", "log_normal", "poisson",
)  # fmt: skip


# A call that moves so few bytes shows what any call costs, and one of fewer operations or bytes than the other number shows little else.
_NOTHING, _SOMETHING = 16, 4096
# More than this is no fixed cost, also where all operators of a trace are large.
_LONGEST_CALL_NS = 5000.0
# What a call of a small operator takes on usual processors, where no calibration says it: the trace may have views alone, or large ones.
_USUAL_CALL_NS = 2000.0
# Without a calibration: memory is taken to be slower than the caches by this factor at most, and operations on any size than the best seen.
_MEMORY_SLACK, _SIZE_SLACK = 6.0, 4.0
# A Fourier transform does at least this part of the operations that a product of matrices does in its time.
_SLOWEST = 2.0
SLOWEST_GFLOPS, SLOWEST_GBYTES = 5.0, 2.0
"""Operations of float32 and bytes per nanosecond of which one thread of a processor reaches more."""
# In products of so many operations it reaches more than the second number.
_LARGE_FLOPS, _SLOWEST_LARGE_GFLOPS = 4_000_000, 20.0
# Of a call of about the fixed cost, so much is taken to be work.
_LEAST_WORK = 0.1
FRESH_BYTES = 32 * 2**20
"""From this size on, glibc's allocator gives memory back to the system, which hands out new pages each time: its largest mmap threshold."""


@dataclass(frozen=True, eq=False)
class Curve:
    """How long work takes at least, by its size.

    Attributes:
        size: Sizes in ascending order: operations or bytes.
        time_ns: How long work of each size takes; ascending.
    """

    size: Floats
    time_ns: Floats

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]], call_ns: float = 0.0) -> Curve | None:
        """A curve through measured times, made monotone; None without any.

        Args:
            points: Sizes above 0 and the time that each took.
            call_ns: The fixed cost of a call, which each of these times has in it.
        """
        measured_points = sorted((size, time) for size, time in points if size > 0 and time > 0)
        if not measured_points:
            return None
        size, time = np.array(measured_points, dtype=np.float64).T
        # What a larger piece took, a smaller one takes at most.
        time = np.minimum.accumulate(time[::-1])[::-1]
        work = np.maximum(time - call_ns, _LEAST_WORK * time)
        distinct = np.append(True, np.diff(size) > 0)
        return cls(size[distinct], work[distinct])

    def least_ns(self, size: Floats) -> Floats:
        """The least time for work of some sizes: between two sizes in between, beyond them at the rate of the nearest."""
        inside = np.clip(size, self.size[0], self.size[-1])
        log_time = np.interp(np.log(inside), np.log(self.size), np.log(self.time_ns))
        return np.asarray(np.exp(log_time) * size / inside)


def curve_name(family: str, operator: str, dtype: str, *, by_bytes: bool) -> str:
    """The curve of an operator: its family, with `backward` where that is another algorithm, and the element type of operations.

    Args:
        family: The family of its formula.
        operator: Its name.
        dtype: The element type that it computes in.
        by_bytes: Whether the curve is by bytes.
    """
    if by_bytes and operator.removeprefix("aten::").startswith(_RANDOM):
        return RANDOM
    name = _BY_BYTES.get(family, STREAM) if by_bytes else family
    if name in _BACKWARD and "backward" in operator:
        name = f"{name} backward"
    return name if by_bytes else f"{name} {dtype}".rstrip()


@dataclass(frozen=True, eq=False)
class Rates:
    """What the machine that recorded a trace attains.

    Attributes:
        curves: The curves of the calibration by name, as `curve_name` gives it, and those of no family.
        call_ns: The fixed cost of one call of an operator: without a calibration, what the cheapest ones of the trace take.
        fixed_ns: What calling a usual operator costs.
        trace_curves: The curves that the trace itself shows, for families that the calibration does not have.
    """

    curves: dict[str, Curve]
    call_ns: float
    fixed_ns: float
    trace_curves: dict[str, Curve]

    @property
    def is_calibrated(self) -> bool:
        """Whether a calibration says something of them."""
        return bool(self.curves)

    def least_ns(
        self,
        families: Sequence[str],
        operators: Sequence[str],
        dtypes: Sequence[str],
        flops: Rows,
        size: Rows,
    ) -> Floats:
        """The least time of some calls of operators, without the fixed cost of a call.

        Args:
            families: The family of each one's formula; empty for none.
            operators: Its name.
            dtypes: The element type that it computes in.
            flops: The operations, at most 0 where there are none or they are unknown.
            size: The bytes moved, -1 where unknown.
        """
        calls = list(zip(families, operators, dtypes, strict=True))
        by_work = [
            ([curve_name(*call, by_bytes=by_bytes) for call in calls], work)
            for by_bytes, work in ((False, flops), (True, size))
        ]
        has_family = np.array([family != "" for family in families], dtype=bool)
        least = np.zeros(len(flops))
        for curves in (self.curves, self.trace_curves):
            # What was measured for the family counts, without a look at what the trace shows.
            open_ones = has_family & (least == 0)
            for names, work in by_work:
                numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
                curve_number = np.array([numbers[name] for name in names], dtype=np.int64)
                for name in numbers.keys() & curves.keys():
                    rows = np.flatnonzero(open_ones & (curve_number == numbers[name]) & (work > 0))
                    least_ns = curves[name].least_ns(work[rows].astype(np.float64))
                    least[rows] = np.maximum(least[rows], least_ns)
        return least


@derived
def rates_of(trace: TraceData) -> Rates:
    """The rates of a trace: those that were calibrated on its machine, else the best that it shows."""
    # Of a trace of several processes, the first calibration counts.
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
    """For each row of the distinct calls of a trace the least time of one call on the host; 0 where its cost is not known.

    A product in 16 bits takes at most what it would take in 32: processors without units for 16 bits convert each number.
    """
    costs = costs_of(trace)
    calls, spans = costs.calls, trace.columns("spans")
    operators = [trace.strings[name] for name in spans["name"][calls.first].tolist()]
    # Sparse and packed operands are found span by span: the most that any span of the call counts.
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
    """What a recorded calibration shows: for each curve sizes, and the median time of a call, less than any larger one's.

    Args:
        trace: A recording with shapes and memory, in which each call was made some times.
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
    """The points that no larger one was faster than."""
    envelope: list[tuple[float, float]] = []
    for size, time in sorted(points, key=lambda point: (-point[0], point[1])):
        if not envelope or (size < envelope[-1][0] and time < envelope[-1][1]):
            envelope.append((size, time))
    return envelope[::-1]


def _shortest_call_ns(trace: TraceData) -> float:
    """The fixed cost of a call as the trace shows it: what three quarters of the operators that call no other take at least."""
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
        # What is larger may be slower, but not by any factor.
        points_of[name] = [(size, min(time, call_ns + slack * size / best)) for size, time in points]
    return {
        name: curve for name, points in points_of.items() if (curve := Curve.of(points, call_ns)) is not None
    }


def _points(
    trace: TraceData, typical: Callable[[Groups, Rows], Rows]
) -> dict[str, list[tuple[float, float]]]:
    """For each curve the size of each distinct call on the host, and its typical time."""
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
