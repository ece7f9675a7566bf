"""Operators added up by name."""

import pytest

from tests.support.trace_builder import TraceBuilder


def ops(trace):
    return {(row["name"], row["kind"]): row for row in trace.table("ops").to_pylist()}


def test_times_counts_and_shares():
    trace = TraceBuilder().span("outer", 0, 100).span("inner", 10, 20).span("inner", 40, 40).build()
    found = ops(trace)
    inner = found["inner", "operator"]
    assert (inner["count"], inner["self_ns"], inner["total_ns"], inner["mean_ns"]) == (2, 60, 60, 30)
    assert (inner["min_ns"], inner["max_ns"]) == (20, 40)
    assert (inner["self_percent"], inner["total_percent"]) == (60, 60)
    outer = found["outer", "operator"]
    assert (outer["self_ns"], outer["total_ns"], outer["self_percent"], outer["total_percent"]) == (
        40,
        100,
        40,
        100,
    )
    assert outer["bytes"] is None
    assert (outer["flops"], outer["flops_per_s"], outer["arithmetic_intensity"]) == (None, None, None)


def test_what_calls_itself_counts_once():
    builder = TraceBuilder().span("f", 0, 100).span("g", 10, 80).span("f", 20, 60).span("f", 30, 10)
    builder.allocate(35, 0x10, 64)
    row = ops(builder.build())["f", "operator"]
    assert row["count"] == 3
    assert row["total_ns"] == 100
    assert row["total_percent"] == 100
    assert row["self_ns"] == 80
    assert row["mean_ns"] == pytest.approx(170 / 3)
    assert (row["bytes"], row["self_bytes"]) == (64, 64)


def test_steps_are_one_row_and_kinds_are_kept_apart():
    trace = TraceBuilder().step(0, 0, 10).step(1, 20, 10).annotation("x", 40, 5).span("x", 50, 5).build()
    found = ops(trace)
    assert found["ProfilerStep*", "step"]["count"] == 2
    assert found["x", "user_annotation"]["count"] == found["x", "operator"]["count"] == 1


def test_spans_that_nest_with_none_have_no_share():
    trace = TraceBuilder().span("a", 0, 100).span("late", 50, 100, is_async=True).build()
    late = ops(trace)["late", "operator"]
    assert (late["self_ns"], late["total_ns"], late["total_percent"]) == (0, 100, 0)


def test_the_most_expensive_comes_first():
    trace = TraceBuilder().span("a", 0, 10).span("b", 20, 30).span("c", 60, 20).build()
    assert [row["name"] for row in trace.table("ops").to_pylist()] == ["b", "c", "a"]


def test_spans_without_duration_have_no_shares():
    assert ops(TraceBuilder().span("a", 0, 0).build())["a", "operator"]["self_percent"] is None
