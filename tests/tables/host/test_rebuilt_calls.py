"""Python calls that a Chrome trace rebuilds from the stacks of operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import kinetoscope
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.host.rebuilt_calls import rebuilt_calls, shown_frames, stacks_of_spans
from kinetoscope.trace import Trace
from tests.support.chrome_file import partly_overlapping, read_strictly, slices
from tests.support.perfetto import complaints, needs_perfetto
from tests.support.trace_builder import TraceBuilder

MAIN, TRAIN, MODEL = ("run.py", 1, "<module>"), ("run.py", 9, "train"), ("model.py", 4, "forward")


def built(builder: TraceBuilder, *, with_stack: bool = True) -> Trace:
    trace = builder.build()
    if with_stack:
        trace.info["with_stack"] = 1
    return trace


def shown_rows(trace: Trace) -> np.ndarray:
    return stacks_of_spans(trace, shown_frames(trace))


def calls_of(trace: Trace) -> list[tuple[str, int, int, int]]:
    """Name, start, end and depth of each, in the order of time."""
    calls = rebuilt_calls(trace, shown_frames(trace))
    if calls is None:
        return []
    frames, frame = trace.columns("frames"), trace.columns("stacks")["frame"]
    rows = zip(calls.start_ns, calls.duration_ns, calls.depth, calls.stack, strict=True)
    return sorted(
        (
            (trace.strings[frames["function"][frame[stack]]], int(start), int(start + duration), int(depth))
            for start, duration, depth, stack in rows
        ),
        key=lambda call: (call[1], call[3]),
    )


def test_a_call_lasts_from_its_first_operator_to_its_last() -> None:
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::ones", 10, 5, stack=builder.stack(MAIN, TRAIN))
    builder.span("aten::mm", 20, 10, stack=builder.stack(MAIN, TRAIN, MODEL))
    builder.span("aten::neg", 40, 10, stack=builder.stack(MAIN, ("run.py", 12, "train")))
    assert calls_of(built(builder)) == [("<module>", 10, 50, 0), ("train", 10, 50, 1), ("forward", 20, 30, 2)]


def test_a_collection_of_garbage_takes_away_neither_calls_nor_stacks() -> None:
    def with_operators() -> TraceBuilder:
        builder = TraceBuilder()
        builder.thread()
        builder.span("aten::ones", 10, 5, stack=builder.stack(MAIN, TRAIN))
        builder.span("aten::mm", 20, 10, stack=builder.stack(MAIN, TRAIN, MODEL))
        return builder

    without, collected = with_operators(), with_operators()
    callback = collected.stack(MAIN, TRAIN, ("garbage_collections.py", 3, "_on_collection"))
    collected.span("Python GC", 40, 10, kind=SpanKind.PYTHON, stack=callback)
    plain, trace = built(without), built(collected)
    assert (
        calls_of(trace)
        == calls_of(plain)
        == [("<module>", 10, 30, 0), ("train", 10, 30, 1), ("forward", 20, 30, 2)]
    )
    assert shown_rows(trace)[:2].tolist() == shown_rows(plain).tolist()
    assert (shown_rows(plain) >= 0).all()


def test_calls_from_other_lines_are_others() -> None:
    builder = TraceBuilder()
    builder.thread()
    for start, line in ((0, 9), (20, 9), (40, 10)):
        builder.span("aten::mm", start, 10, stack=builder.stack(MAIN, ("run.py", line, "train"), MODEL))
    assert [call for call in calls_of(built(builder)) if call[0] == "forward"] == [
        ("forward", 0, 30, 2),
        ("forward", 40, 50, 2),
    ]


def test_a_range_does_not_hold_the_call_that_opened_it_open() -> None:
    builder = TraceBuilder()
    builder.thread()
    builder.annotation("step", 0, 100, stack=builder.stack(MAIN, ("steps.py", 3, "begin")))
    builder.span("aten::mm", 30, 10, stack=builder.stack(MAIN, TRAIN))
    assert calls_of(built(builder)) == [("<module>", 0, 100, 0), ("begin", 0, 30, 1), ("train", 30, 40, 1)]


def test_only_who_asked_gets_them() -> None:
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::ones", 10, 5, stack=builder.stack(MAIN))
    assert calls_of(built(builder, with_stack=False)) == []
    assert calls_of(built(TraceBuilder())) == []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("inside"):
            return self.second(torch.relu(self.first(x)))


def train(prof: Any = None) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if prof is not None:
            prof.step()


@needs_perfetto
def test_perfetto_takes_the_calls_of_a_training(tmp_path) -> None:
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=2)
    with kinetoscope.profile(with_stack=True, schedule=schedule) as prof:
        train(prof)
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    shown = slices(read_strictly(path))
    # Perfetto makes slices of the two moments that say when the recording began and ended, too.
    assert complaints(path) == (len(shown) + 2, [])
    called = {event["name"].partition("): ")[2] for event in shown if event["cat"] == "python_function"}
    assert {"train", "forward", "step", "backward"} <= called


def test_the_calls_of_a_training_hold_their_operators(tmp_path) -> None:
    with kinetoscope.profile(with_stack=True) as prof:
        train()
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    trace = read_strictly(path)
    assert partly_overlapping(trace) == []
    linear = [
        event
        for event in slices(trace)
        if event["name"].endswith("): forward") and "linear.py" in event["name"]
    ]
    # Two instances called from two places, each three times.
    assert len(linear) == 6
    for event in slices(trace, "aten::linear"):
        end = event["ts"] + event["dur"]
        assert any(call["ts"] <= event["ts"] and end <= call["ts"] + call["dur"] for call in linear)


@pytest.mark.parametrize("threads", [1, 2])
@given(data=st.data())
def test_calls_hold_what_runs_in_them_and_none_is_negative(threads: int, data: st.DataObject) -> None:
    builder = TraceBuilder()
    places = [
        tuple((f"{file}.py", line, f"f{file}") for file, line in path)
        for path in data.draw(
            st.lists(
                st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=4), min_size=1
            )
        )
    ]
    for _ in range(threads):
        thread = builder.thread()
        now = 0
        for place in places:
            duration = data.draw(st.integers(1, 9))
            builder.span("op", now, duration, thread=thread, stack=builder.stack(*place))
            now += duration + data.draw(st.integers(0, 3))
    trace = built(builder)
    calls = rebuilt_calls(trace, shown_frames(trace))
    assert calls is not None
    assert (calls.duration_ns >= 0).all()
    spans = trace.columns("spans")
    end = calls.start_ns + calls.duration_ns
    for row, place in zip(range(len(spans)), places * threads, strict=True):
        start, last = spans["start_ns"][row], spans["start_ns"][row] + spans["duration_ns"][row]
        around = (calls.thread == spans["thread"][row]) & (calls.start_ns <= start) & (end >= last)
        assert set(range(len(place))) <= set(calls.depth[around].tolist())
