"""Call stacks over time: what is inside what, and what is left of it where boxes are too short."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope._errors import ArgumentError
from kinetoscope.analyses.flame_chart import chart_threads, flame_chart
from kinetoscope.model.schema import SpanKind
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

MAIN = ("/code/train.py", 3, "main")
CALL = ("/x/site-packages/torch/nn/modules/module.py", 1778, "Module._wrapped_call_impl")
TORCH = ("/x/site-packages/torch/nn/functional.py", 20, "linear")
FORWARD = ("/code/model.py", 7, "Net.forward")


def trained():
    """A module that is called twice from one line, on a thread that is not the busiest of the file."""
    builder = TraceBuilder().step(0, 0, 400).know("with_stack", 1)
    net = builder.module("Net")
    forward = builder.stack(MAIN, CALL, FORWARD)
    builder.span("aten::rand", 0, 50, stack=builder.stack(MAIN))
    builder.span("aten::linear", 60, 100, module=net, stack=builder.stack(MAIN, CALL, FORWARD, TORCH))
    builder.span("aten::addmm", 70, 80, module=net, stack=builder.stack(MAIN, CALL, FORWARD, TORCH))
    builder.span("aten::relu", 170, 30, module=net, stack=forward)
    builder.kernel("gemm", 300, 90, stream=builder.stream(7))
    return builder.build()


def boxes(trace, **options):
    """The boxes as (depth, kind, name, start, duration, self), in the order of the table."""
    depths, found = [], []
    for row in flame_chart(trace, **options).to_pylist():
        depths.append(0 if row["parent"] is None else depths[row["parent"]] + 1)
        found.append(
            (depths[-1], row["kind"], row["name"], row["start_ns"], row["duration_ns"], row["self_ns"])
        )
    return found


def test_calls_and_operators_nest_in_the_order_of_time():
    assert boxes(trained(), library=False) == [
        (0, "python", "main", 0, 200, 10),
        (1, "operator", "aten::rand", 0, 50, 50),
        (1, "module", "Net", 60, 140, 0),
        (2, "python", "Net.forward", 60, 140, 10),
        (3, "operator", "aten::linear", 60, 100, 20),
        (4, "operator", "aten::addmm", 70, 80, 80),
        (3, "operator", "aten::relu", 170, 30, 30),
    ]


def test_functions_of_torch_are_shown_on_request():
    names = [name for _, _, name, *_ in boxes(trained())]
    assert names == [
        "main",
        "aten::rand",
        "Net",
        "Net.forward",
        "linear",
        "aten::linear",
        "aten::addmm",
        "aten::relu",
    ]
    rows = {row["name"]: row for row in flame_chart(trained()).to_pylist()}
    assert (rows["linear"]["user"], rows["linear"]["file"]) == (False, TORCH[0])
    assert (rows["Net.forward"]["user"], rows["Net.forward"]["rebuilt"], rows["Net.forward"]["span"]) == (
        True,
        True,
        None,
    )
    # An operator leads to the line of the program that ran it.
    assert (rows["aten::linear"]["file"], rows["aten::linear"]["line"], rows["aten::linear"]["rebuilt"]) == (
        "/code/model.py",
        7,
        False,
    )
    assert rows["Net"]["class"] == "Net"


def test_a_window_has_what_reaches_into_it():
    assert [name for _, _, name, *_ in boxes(trained(), library=False, start_ns=165, end_ns=300)] == [
        "main", "Net", "Net.forward", "aten::relu",
    ]  # fmt: skip


def test_short_boxes_are_joined_and_have_nothing_inside():
    builder = TraceBuilder().span("outer", 0, 1000)
    for start in (10, 20, 30, 500):
        builder.span("short", start, 5).span("inside", start + 1, 2)
    builder.span("long", 600, 300)
    table = flame_chart(builder.build(), least_ns=100).to_pylist()
    found = [
        (row["name"], row["count"], row["start_ns"], row["duration_ns"], row["self_ns"]) for row in table
    ]
    assert found == [
        ("outer", 1, 0, 1000, 680),
        (None, 3, 10, 25, 25),
        ("short", 1, 500, 5, 3),
        ("long", 1, 600, 300, 300),
    ]


def test_recorded_calls_are_used_as_they_are():
    builder = TraceBuilder().know("with_stack", 1)
    stack = builder.stack(MAIN)
    builder.span("/code/train.py(3): main", 0, 100, kind=SpanKind.PYTHON, stack=stack)
    builder.span("aten::mm", 20, 30, stack=stack)
    assert boxes(builder.build()) == [
        (0, "python", "/code/train.py(3): main", 0, 100, 70),
        (1, "operator", "aten::mm", 20, 30, 30),
    ]


def test_threads_and_those_that_have_none():
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::mm", 5, 30).span("aten::mm", 50, 30)
    other = builder.thread("other")
    builder.span("aten::add", 0, 10, thread=other)
    trace = builder.build()
    found = [(one.thread, one.start_ns, one.end_ns, one.spans) for one in chart_threads(trace)]
    assert found == [(0, 5, 80, 2), (other, 0, 10, 1)]
    assert [name for _, _, name, *_ in boxes(trace, thread=other)] == ["aten::add"]
    with pytest.raises(ArgumentError, match="thread=7 is not valid"):
        flame_chart(trace, thread=7)
    assert flame_chart(TraceBuilder().build()).num_rows == 0


@settings(max_examples=examples(30))
@given(any_traces(), st.integers(0, 300), st.booleans())
def test_boxes_nest_and_none_is_lost(trace, least, library):
    trace.info["with_stack"] = 1
    for one in chart_threads(trace):
        whole = flame_chart(trace, thread=one.thread, least_ns=0, library=library).to_pylist()
        spans = trace.columns("spans")
        mine = (spans["thread"] == one.thread) & (spans["stream"] < 0) & (spans["kind"] != SpanKind.STEP)
        shown = [row["span"] for row in whole if row["span"] is not None]
        assert len(set(shown)) == len(shown)
        assert set(shown) <= set(np.flatnonzero(mine).tolist())
        table = flame_chart(trace, thread=one.thread, least_ns=least, library=library).to_pylist()
        assert sum(row["count"] for row in table) <= len(whole)
        until: dict[int | None, int] = {}
        for place, row in enumerate(table):
            start, end = row["start_ns"], row["start_ns"] + row["duration_ns"]
            assert 0 <= row["self_ns"] <= row["duration_ns"]
            if row["parent"] is not None:
                outer = table[row["parent"]]
                assert row["parent"] < place
                assert outer["start_ns"] <= start
                assert end <= outer["start_ns"] + outer["duration_ns"]
                assert outer["duration_ns"] >= least
            # Neighbors come in the order of time, and do not overlap.
            assert until.get(row["parent"], start) <= start
            until[row["parent"]] = end
