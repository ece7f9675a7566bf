"""Frames and stacks in words, also from damaged files."""

from kinetoscope.model.names import frame_texts, stack_frames, stack_texts
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder


def test_stacks_read_root_first_and_frames_innermost_first():
    builder = TraceBuilder()
    stack = builder.stack(("a.py", 1, "main"), ("b.py", 2, "go"), ("c.py", 3, "run"))
    trace = builder.build()
    assert frame_texts(trace) == ["a.py(1): main", "b.py(2): go", "c.py(3): run"]
    assert stack_texts(trace)[stack] == "a.py(1): main;b.py(2): go;c.py(3): run"
    assert stack_frames(trace, stack) == [2, 1, 0]
    assert stack_frames(trace, stack, 2) == [2, 1]
    assert stack_frames(trace, -1) == []


def test_stacks_that_name_no_frame_or_a_later_parent_do_no_harm():
    trace = Trace.from_columns(
        {"stacks": {"parent": [1, 0, 7], "frame": [-1, 0, 0]}, "frames": {"file": [1], "line": [2]}},
        strings=["", "a.py"],
    )
    assert stack_texts(trace) == ["", ";a.py(2): ", "a.py(2): "]
    assert stack_frames(trace, 1) == [0]
    assert stack_frames(trace, 2) == [0]
