"""How fast a machine can be: curves are monotone whatever was measured, and families find theirs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.tables.costs.attainable import (
    Curve,
    curve_name,
    least_call_ns,
    measured,
    rates_of,
)
from tests.support.trace_builder import TraceBuilder

SIZES, TIMES = st.integers(1, 10**9), st.floats(1.0, 1e12)


@given(st.lists(st.tuples(SIZES, TIMES), min_size=1, max_size=8), st.floats(0.0, 1e6))
def test_more_work_never_takes_less_time_and_no_size_takes_more_than_was_measured(points, call_ns):
    curve = Curve.of(points, call_ns)
    sizes = np.geomspace(1.0, 1e13, 60)
    times = curve.least_ns(sizes)
    assert (times > 0).all()
    assert (np.diff(times) >= -1e-9 * times[1:]).all()
    measured_sizes, measured_ns = np.array(points).T
    assert (curve.least_ns(measured_sizes) <= measured_ns * (1 + 1e-9)).all()


def test_without_measurements_there_is_no_curve():
    assert Curve.of([]) is None
    assert Curve.of([(0.0, 5.0)]) is None


def test_beyond_what_was_measured_the_nearest_rate_counts():
    curve = Curve.of([(1000.0, 100.0), (10_000.0, 2000.0)])
    assert curve.least_ns(np.array([100.0, 20_000.0])) == pytest.approx([10.0, 4000.0])


@pytest.mark.parametrize(
    ("family", "operator", "by_bytes", "name"),
    [
        ("matmul", "aten::mm", False, "matmul float32"),
        ("convolution", "aten::convolution_backward", False, "convolution backward float32"),
        ("softmax", "aten::_softmax_backward_data", True, "softmax backward"),
        ("copying", "aten::copy_", True, "stream"),
        ("copying", "aten::uniform_", True, "random"),
        ("embedding", "aten::embedding", True, "indexing"),
    ],
)
def test_a_family_has_a_curve_for_its_backward_where_that_is_another_algorithm(
    family, operator, by_bytes, name
):
    assert curve_name(family, operator, "float32", by_bytes=by_bytes) == name


def products(builder, times):
    """A product of matrices for each of some times."""
    mm = builder.shapes([[100, 100], [100, 100]], ["float", "float"])
    for number, time_ns in enumerate(times):
        builder.span("aten::mm", number * 1_000_000, time_ns, shapes=mm)
    return builder


def test_without_a_calibration_the_best_rate_of_the_trace_counts():
    trace = products(TraceBuilder(), [500_000, 100_000, 300_000]).build()
    assert not rates_of(trace).is_calibrated
    assert least_call_ns(trace).max() <= 100_000


def test_a_calibration_counts_instead_of_what_the_trace_shows():
    builder = products(TraceBuilder(), [500_000, 100_000]).know(
        "attainable", {"matmul float32": [[2_000_000, 40_000]]}
    )
    trace = builder.build()
    assert rates_of(trace).is_calibrated
    assert least_call_ns(trace).max() == pytest.approx(40_000 - rates_of(trace).call_ns)


@pytest.mark.parametrize(
    "stated", [{"matmul float32": [[0, 1]]}, {"matmul float32": "fast"}, [1], {"x": [[1, True]]}]
)
def test_a_damaged_calibration_is_none(stated):
    trace = products(TraceBuilder(), [500_000]).know("attainable", stated).build()
    assert not rates_of(trace).is_calibrated


def test_what_is_measured_is_the_median_of_each_size():
    trace = products(TraceBuilder(), [900_000, 200_000, 100_000]).build()
    assert measured(trace)["matmul float32"] == [(2_000_000.0, 200_000.0)]
