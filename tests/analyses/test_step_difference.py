"""What one step has more of than others."""

import pytest

from kinetoscope import ArgumentError, StateError
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def training():
    """Five steps of one operator; step 3 has another one too, waits for data, and runs Python for longer."""
    builder = TraceBuilder()
    net = builder.module("Net")
    main, metric = (builder.stack(("train.py", line, "main")) for line in (3, 9))
    for number in range(5):
        at = 1000 * number
        builder.step(number, at, 900)
        builder.span("aten::mm", at + 100, 100 + number, stack=main, module=net)
        if number == 3:
            builder.span("aten::sort", at + 400, 250, stack=metric)
            builder.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at + 700, 150)
    return builder


def rows(trace, kind, **which):
    return {
        row["name"]: (row["time_ns"], row["usual_ns"], row["more_ns"])
        for row in trace.compare_steps(**which).to_pylist()
        if row["kind"] == kind
    }


def test_a_step_is_compared_with_the_median_of_the_others():
    trace = training().build()
    assert rows(trace, "part", step=3) == {
        "operators": (353, 101, 252),
        "waiting for data": (150, 0, 150),
        "Python": (397, 798, -401),
    }
    assert list(rows(trace, "operator", step=3).items()) == [
        ("aten::sort", (250, 0, 250)),
        ("aten::mm", (103, 101, 2)),
    ]
    assert rows(trace, "module", step=3) == {"Net": (103, 101, 2)}
    found = trace.compare_steps(3).to_pylist()
    assert {(row["file"], row["line"], row["more_ns"]) for row in found if row["kind"] == "line"} == {
        ("train.py", 9, 250),
        ("train.py", 3, 2),
    }
    (sort,) = [row for row in found if row["name"] == "aten::sort"]
    assert (sort["step"], sort["count"], sort["usual_count"]) == (3, 1, 0)
    assert trace.column("spans", "duration_ns")[sort["span"]] == 250


def test_a_step_is_compared_with_another_one():
    trace = training().build()
    assert rows(trace, "operator", step=4, other=3) == {
        "aten::mm": (104, 103, 1),
        "aten::sort": (0, 250, -250),
    }
    parts = rows(trace, "part", step=4, other=3)
    assert sum(more for _, _, more in parts.values()) == 0


def test_kernels_count_in_the_step_that_launched_them():
    builder = TraceBuilder()
    stream = builder.stream()
    for number in range(3):
        builder.step(number, 1000 * number, 900)
        builder.span("aten::mm", 1000 * number + 100, 300)
        builder.runtime("cudaLaunchKernel", 1000 * number + 150, 10, correlation=number + 1)
        # It runs when the next step has begun.
        builder.kernel("gemm", 1000 * number + 950, 100 + 50 * number, stream=stream, correlation=number + 1)
    assert rows(builder.build(), "kernel", step=2) == {"gemm": (200, 125, 75)}


def test_the_longest_step_is_compared_where_none_is_named():
    builder = TraceBuilder().step(0, 0, 100).step(1, 200, 500).step(2, 800, 100)
    assert set(builder.build().compare_steps()["step"].to_pylist()) == {1}


def test_a_step_that_is_not_there_is_refused():
    with pytest.raises(
        ArgumentError, match=r"step=7 is not a step that can be compared: there are steps 0 to 4"
    ):
        training().build().compare_steps(7)
    with pytest.raises(ArgumentError, match=r"other='x'"):
        training().build().compare_steps(3, "x")
    with pytest.raises(ArgumentError, match="the trace has no steps"):
        TraceBuilder().span("aten::mm", 0, 10).build().compare_steps(0)
    with pytest.raises(StateError, match="step 0 is the only one"):
        TraceBuilder().step(0, 0, 100).build().compare_steps(0)


def test_nothing_to_compare_is_an_empty_table():
    assert TraceBuilder().span("aten::mm", 0, 10).build().compare_steps().num_rows == 0
    assert TraceBuilder().step(0, 0, 100).build().table("step_difference").num_rows == 0


def alternating(slow=23):
    """Training steps of 10 ms and an evaluation of 40 in every fourth, of which one takes 10 ms longer, in Python."""
    builder, at = TraceBuilder(), 0
    for number in range(40):
        name, took = ("aten::conv2d", 40) if number % 4 == 3 else ("aten::mm", 10)
        more = 10 if number == slow else 0
        builder.step(number, at * MS, (took + more) * MS).span(name, at * MS, took * MS)
        at += took + more
    return builder.build()


def test_a_step_is_compared_with_those_of_its_kind():
    rows = alternating().compare_steps(23).to_pylist()
    assert {(row["kind"], row["name"]): row["more_ns"] for row in rows if row["more_ns"]}[
        "part", "Python"
    ] == 10 * MS
    assert ("operator", "aten::conv2d", 0) in {(row["kind"], row["name"], row["more_ns"]) for row in rows}


def test_the_slow_step_is_the_one_that_takes_most_longer_than_its_kind():
    for slow in (23, 24):
        assert {row["step"] for row in alternating(slow).compare_steps().to_pylist()} == {slow}
