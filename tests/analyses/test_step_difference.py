"""What one step has more of than others."""

import asyncio

import pytest
import torch

import kinetoscope
from kinetoscope import ArgumentError, StateError
from tests.support.request_marks import begin_mark, end_mark, run_mark
from tests.support.server_trace import Server
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


def serving():
    """Four requests of one name, of which the third runs another operator and waits, and two of another name."""
    server = Server()
    builder = server.builder
    main, tokenize = (builder.stack(("server.py", line, "generate")) for line in (3, 9))
    for number in range(4):
        at, slow = 1000 * number, 300 if number == 2 else 0
        server.mark(begin_mark(number, "generate", ""), at, 100)
        server.operator(at + 10, 50 + number, stack=main)
        if slow:
            builder.span("aten::sort", at + 70, 20, thread=server.threads[0], stack=tokenize)
        server.mark(run_mark(number), at + 200 + slow, 100).operator(at + 210 + slow, 60, stack=main)
        server.mark(end_mark(number, "finished", ""), at + 300 + slow)
    for number in range(4, 6):
        server.mark(begin_mark(number, "embed", ""), 1000 * number, 900)
        server.mark(end_mark(number, "finished", ""), 1000 * number + 900)
    return builder


def test_requests_are_compared_where_there_are_no_steps():
    trace = serving().build()
    found = trace.compare_steps().to_pylist()
    assert {(row["step"], row["request"]) for row in found} == {(None, 2)}
    assert rows(trace, "part") == {
        "operators": (132, 111, 21),
        "Python": (68, 89, -21),
        "awaiting": (400, 100, 300),
    }
    assert rows(trace, "operator") == {"aten::sort": (20, 0, 20), "aten::mm": (112, 111, 1)}
    assert {(row["line"], row["more_ns"]) for row in found if row["kind"] == "line"} == {(9, 20), (3, 1)}
    assert sum(more for _, _, more in rows(trace, "part", step=0, other=2).values()) == -300
    with pytest.raises(
        ArgumentError, match=r"step=6 is not a request that can be compared: there are requests 0 to 5"
    ):
        trace.compare_steps(6)


def test_requests_of_a_server_with_steps_are_not():
    builder = serving()
    for number in range(3):
        builder.step(number, 10_000 * number, 9_000)
    assert {(row["step"], row["request"]) for row in builder.build().compare_steps().to_pylist()} == {
        (0, None)
    }


def test_a_recorded_request_is_compared_with_others_of_its_name():
    @kinetoscope.request("generate")
    async def generate(extra):
        torch.ones(8).square()
        await asyncio.sleep(0)
        for _ in range(extra):
            torch.ones(8).cos()

    async def main():
        await asyncio.gather(*(generate(3 if number == 2 else 0) for number in range(5)))

    with kinetoscope.profile() as prof:
        asyncio.run(main())
    requests = prof.trace.table("requests").to_pylist()
    found = prof.trace.compare_steps(2).to_pylist()
    parts = [row for row in found if row["kind"] == "part"]
    assert sum(row["time_ns"] for row in parts) == requests[2]["duration_ns"]
    counts = {row["name"]: (row["count"], row["usual_count"]) for row in found if row["kind"] == "operator"}
    assert counts["aten::cos"] == (3, 0)
    assert counts["aten::square"] == (1, 1)
    (line,) = {row["line"] for row in found if row["kind"] == "line" and row["usual_count"] == 0}
    assert line == generate.__wrapped__.__code__.co_firstlineno + 5
    assert all(row["more_ns"] == row["time_ns"] - row["usual_ns"] for row in found)
