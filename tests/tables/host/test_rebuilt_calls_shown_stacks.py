"""Which stacks a Chrome trace shows."""

from __future__ import annotations

from kinetoscope.tables.host.rebuilt_calls import ShownFrames, shown_frames, stacks_of_spans
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder

TORCH = "/opt/python/site-packages/torch/nn/modules/"
CALL = (
    (TORCH + "module.py", 5, "Module._wrapped_call_impl"),
    (TORCH + "module.py", 10, "Module._call_impl"),
)


def text_of(trace: Trace, shown: ShownFrames, span: int) -> list[str]:
    """The frames shown at a span, innermost first."""
    frames = trace.columns("frames")
    found = []
    row = int(stacks_of_spans(trace, shown)[span])
    while row >= 0:
        frame = trace.column("stacks", "frame")[row]
        found.append(f"{shown.strings[shown.file[frame]]}: {shown.strings[frames['function'][frame]]}")
        row = int(shown.parent[row])
    return found


def test_the_frames_of_a_modules_call_are_left_out_and_files_are_short() -> None:
    builder = TraceBuilder()
    builder.thread()
    stack = builder.stack(("train.py", 1, "<module>"), *CALL, (TORCH + "linear.py", 3, "Linear.forward"))
    builder.span("aten::linear", 0, 10, stack=stack)
    trace = builder.build()
    assert text_of(trace, shown_frames(trace), 0) == [
        "torch/nn/modules/linear.py: Linear.forward",
        "train.py: <module>",
    ]


def test_an_operator_called_by_such_a_frame_shows_the_callers() -> None:
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::detach", 0, 10, stack=builder.stack(("train.py", 1, "<module>"), *CALL))
    builder.span("aten::ones", 20, 10, stack=builder.stack(*CALL))
    trace = builder.build()
    shown = shown_frames(trace)
    assert text_of(trace, shown, 0) == ["train.py: <module>"]
    assert text_of(trace, shown, 1) == []


def test_functions_of_that_name_elsewhere_are_kept() -> None:
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::ones", 0, 10, stack=builder.stack(("mine.py", 1, "Module._call_impl")))
    trace = builder.build()
    assert text_of(trace, shown_frames(trace), 0) == ["mine.py: Module._call_impl"]


def test_a_stack_is_shown_once_on_the_way_in() -> None:
    builder = TraceBuilder()
    builder.thread()
    outer, inner = builder.stack(("a.py", 1, "f")), builder.stack(("a.py", 1, "f"), ("b.py", 2, "g"))
    builder.span("around", 0, 100, stack=outer)
    builder.span("same", 10, 20, stack=outer)
    builder.span("deeper", 40, 20, stack=inner)
    builder.span("none", 70, 20)
    trace = builder.build()
    shown = shown_frames(trace)
    assert [text_of(trace, shown, span) for span in range(4)] == [
        ["a.py: f"],
        [],
        ["b.py: g", "a.py: f"],
        [],
    ]
