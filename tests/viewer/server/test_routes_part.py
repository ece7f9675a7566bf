"""Pages of a step or a range: the numbers of that part, with the rows and times of the whole trace."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope import ArgumentError
from kinetoscope.viewer.server.routes import PARTIAL, ROUTES, answer, respond
from tests.support.any_trace import any_traces
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def trace():
    builder = TraceBuilder()
    stream = builder.stream(7)
    for number in range(4):
        start = 1000 * number
        builder.step(number, start, 1000)
        for _ in range(number + 1):
            builder.span("aten::mm", start + 100, 50 * (number + 1))
            start += 10
        builder.runtime("cudaLaunchKernel", start + 300, 10, correlation=number + 1)
        # It runs when its step is over.
        builder.kernel("gemm", 1000 * number + 1100, 200, stream=stream, correlation=number + 1)
    return builder.build()


def rows(trace, path, **query):
    found = answer(trace, path, query)
    return getattr(found, "table", found).to_pylist()


def test_steps_are_offered_with_their_times(trace):
    assert answer(trace, "steps", {}) == [
        [number, 1000 * number, 1000 * number + 1000] for number in range(4)
    ]
    assert answer(TraceBuilder().build(), "steps", {}) == []


def test_a_part_has_its_own_sums(trace):
    whole = {row["name"]: row for row in rows(trace, "operators")}
    part = {row["name"]: row for row in rows(trace, "operators", part="1000-2000")}
    assert (whole["aten::mm"]["count"], part["aten::mm"]["count"]) == (10, 2)
    assert sum(
        row["count"] for n in range(4) for row in rows(trace, "operators", part=f"{1000 * n}-{1000 * n + 1000}")
        if row["name"] == "aten::mm"
    ) == 10  # fmt: skip
    # Device work belongs to the step that launched it.
    assert [row["total_ns"] for row in rows(trace, "table/kernels", part="1000-2000")] == [200]


def test_rows_and_times_of_calls_are_those_of_the_whole_trace(trace):
    calls = rows(trace, "instances", name="aten::mm", kind="operator", part="2000-3000")
    spans = trace.columns("spans")
    assert len(calls) == 3
    for call in calls:
        assert spans["start_ns"][call["span"]] == call["start_ns"] >= 2000
        assert spans["duration_ns"][call["span"]] == call["duration_ns"]


@pytest.mark.parametrize("part", ["", "1", "5-3", "a-b", "-1-5", "9999-99999", "1-" + "9" * 40])
def test_an_invalid_part_is_rejected(trace, part):
    with pytest.raises(ArgumentError, match="part="):
        answer(trace, "operators", {"part": part})


def test_a_path_without_parts_is_refused_with_a_part(trace):
    with pytest.raises(ArgumentError, match="whole trace"):
        answer(trace, "tracks", {"part": "0-1000"})
    tables = {f"table/{name}" for name in trace.table_names}
    assert set(ROUTES) | tables >= PARTIAL


@settings(max_examples=15, deadline=None)
@given(any_traces(max_spans=30), st.integers(0, 200), st.integers(1, 200))
def test_any_part_has_answers(trace, start, length):
    for path in ("operators", "table/modules", "flame_choices", "memory", "table/kernels"):
        found = respond([("trace", trace)], f"api/0/{path}", {"part": f"{start}-{start + length}"})
        assert found.status == 200 or "part=" in json.loads(found.body)["error"], (path, found.body)
