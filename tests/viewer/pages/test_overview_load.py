"""How busy devices and the machine were, in the stretches of a small chart."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.viewer.pages import overview
from kinetoscope.viewer.server.routes import answer
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder


@pytest.fixture(autouse=True)
def four_stretches(monkeypatch):
    monkeypatch.setattr(overview, "STRETCHES", 4)


def series(trace):
    found = answer(trace, "load", {})
    return {
        field.metadata[b"meaning"].decode(): (
            field.metadata.get(b"unit", b"").decode(),
            found.column(field.name).to_pylist(),
        )
        for field in found.schema
        if field.name != "time_ns"
    }


def test_a_device_is_busy_while_anything_runs_on_it():
    builder = TraceBuilder().span("aten::mm", 0, 100)
    builder.kernel("gemm", 10, 20)
    builder.kernel("other", 20, 30, stream=builder.stream())
    builder.copy("Memcpy HtoD", 75, 25)
    assert series(builder.build()) == {"cuda:0 busy": ("%", [60.0, 100.0, 0.0, 100.0])}


def test_counters_hold_until_the_next_sample():
    builder = TraceBuilder().span("aten::mm", 0, 100)
    for time, percent, size in ((30, 10.0, 5.0), (40, 20.0, 9.0), (45, 50.0, 6.0)):
        builder.counter("cpu_percent", time, percent).counter("process_rss_bytes", time, size)
    found = series(builder.build())
    assert found["process_rss_bytes"] == ("bytes", [None, 9.0, 6.0, 6.0])
    assert found["cpu_percent"] == ("%", [None, pytest.approx((10 * 10 + 5 * 20 + 5 * 50) / 20), 50.0, 50.0])


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 40)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 9)), max_size=12),
)
def test_stretches_are_those_of_every_nanosecond(kernels, samples):
    builder = TraceBuilder().span("aten::mm", 0, 160)
    for start, duration in kernels:
        builder.kernel("gemm", start, duration)
    for time, value in samples:
        builder.counter("x", time, float(value)).counter("x_bytes", time, float(value))
    trace = builder.build()
    found = series(trace)
    end = max(trace.duration_ns, 1)
    runs = np.array(
        [any(start <= at < start + lasting for start, lasting in kernels) for at in range(4 * end)]
    )
    # Four stretches of `end` quarters of a nanosecond each.
    runs = np.repeat(runs[:end], 4)
    expected = 100 * runs.reshape(4, end).mean(axis=1)
    assert found["cuda:0 busy"][1] == pytest.approx(expected.tolist())
    ordered = sorted(samples, key=lambda sample: sample[0])
    if not ordered or len({time for time, _ in ordered}) < len(ordered):
        return
    edges = np.linspace(0, end, 5)
    for place, (low, high) in enumerate(itertools.pairwise(edges)):
        holding = [value for time, value in ordered if time < low][-1:]
        inside = [value for time, value in ordered if low <= time < high]
        most = found["x_bytes"][1][place]
        assert most == (max(holding + inside) if holding + inside else None)
        mean = found["x"][1][place]
        if holding + inside:
            assert min(holding + inside) - 1e-9 <= mean <= max(holding + inside) + 1e-9
        else:
            assert mean is None


def test_a_trace_with_neither_has_no_series():
    found = answer(TraceBuilder().span("aten::mm", 0, 8).build(), "load", {})
    assert (found.column_names, found.column("time_ns").to_pylist()) == (["time_ns"], [0.0, 2.0, 4.0, 6.0])


def test_values_as_large_as_a_number_can_be_have_a_mean():
    builder = TraceBuilder().span("aten::mm", 0, 100)
    builder.counter("power", 0, 1.5e308).counter("power", 50, -1.5e308)
    assert series(builder.build())["power"] == ("", pytest.approx([1.5e308, 1.5e308, -1.5e308, -1.5e308]))
