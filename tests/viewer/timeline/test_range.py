import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope._errors import ArgumentError
from kinetoscope.model.schema import SpanKind
from kinetoscope.viewer.server.routes import answer
from tests.support.any_trace import END_NS, any_traces
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder


def sums(trace, start, end, **more):
    table = answer(trace, "range", {"start": str(start), "end": str(end), **more})
    return {
        (row["name"], row["kind"]): (row["total_ns"], row["self_ns"])
        for row in table.to_pylist()
        if row["count"]
    }


@settings(max_examples=examples(30), deadline=None)
@given(any_traces(max_spans=20), st.integers(1, END_NS))
def test_two_ranges_add_up_to_the_whole_and_the_whole_is_what_the_spans_say(trace, middle):
    end = max(trace.duration_ns, END_NS) + 10
    whole = sums(trace, 0, end)
    spans = trace.table("spans").to_pylist()
    for (name, kind), found in whole.items():
        mine = [span for span in spans if (span["name"], span["kind"]) == (name, kind)]
        assert found == (sum(span["duration_ns"] for span in mine), sum(span["self_ns"] for span in mine))
    assert set(whole) == {(span["name"], span["kind"]) for span in spans}
    parts = [sums(trace, 0, middle), sums(trace, middle, end)]
    for key, found in whole.items():
        assert tuple(sum(part.get(key, (0, 0))[place] for part in parts) for place in (0, 1)) == found


def nested():
    builder = TraceBuilder()
    builder.span("outer", 0, 100).span("inner", 20, 40).kernel("gemm", 50, 100)
    return builder.build()


def test_times_are_clipped_at_both_ends():
    assert sums(nested(), 30, 55) == {
        ("inner", "operator"): (25, 25),
        ("outer", "operator"): (25, 0),
        ("gemm", "kernel"): (5, 5),
    }


def test_shares_add_up_to_a_hundred_and_the_largest_comes_first():
    table = answer(nested(), "range", {"start": "0", "end": "100"})
    assert table["name"].to_pylist() == ["outer", "gemm", "inner"]
    assert sum(table["share"].to_pylist()) == pytest.approx(100)
    assert answer(nested(), "range", {"start": "300", "end": "400"}).num_rows == 0


def test_only_the_tracks_of_the_part_count():
    trace = nested()
    assert sums(trace, 0, 200, of="device") == {("gemm", "kernel"): (100, 100)}
    assert set(sums(trace, 0, 200, of="host")) == {("outer", "operator"), ("inner", "operator")}
    assert sums(trace, 0, 200, of="work") == sums(trace, 0, 200)
    assert sums(trace, 0, 200, of="python") == {}


def test_without_a_range_it_is_the_whole_trace():
    whole = answer(nested(), "range", {})
    assert whole.equals(answer(nested(), "range", {"start": "-10", "end": "1000"}))


def test_a_call_that_is_cut_is_without_the_work_in_it():
    builder = TraceBuilder()
    builder.span("main", 0, 100, kind=SpanKind.PYTHON).span("step", 10, 80, kind=SpanKind.PYTHON)
    builder.span("aten::add", 20, 30).span("aten::mul", 60, 20)
    assert sums(builder.build(), 25, 70) == {
        ("main", "python"): (45, 0),
        ("step", "python"): (45, 45 - 25 - 10),
        ("aten::add", "operator"): (25, 25),
        ("aten::mul", "operator"): (10, 10),
    }


@pytest.mark.parametrize(
    "query",
    [
        {"start": "5", "end": "5"},
        {"start": "x", "end": "5"},
        {"start": "nan", "end": "5"},
        {"start": "0", "end": "1e30"},
        {"end": "5"},
        {"start": "0", "end": "5", "of": "x"},
    ],
)
def test_an_invalid_range_is_refused(query):
    with pytest.raises(ArgumentError):
        answer(nested(), "range", query)


def test_numbers_of_a_large_trace_are_exact():
    count = 20_000
    builder = TraceBuilder()
    lengths = np.random.default_rng(3).integers(1, 9, count).tolist()
    for place, length in enumerate(lengths):
        builder.span("even" if place % 2 else "odd", 10 * place, length)
    found = sums(builder.build(), 5, 10 * count)
    assert found["even", "operator"] == (sum(lengths[1::2]),) * 2
