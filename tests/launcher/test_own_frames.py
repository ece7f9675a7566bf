"""The frames of the command are taken out of a trace's stacks, and no others."""

from pathlib import Path

import click

import kinetoscope
from kinetoscope.launcher.own_frames import without_launcher
from tests.support.trace_builder import TraceBuilder

PACKAGE = Path(kinetoscope.__file__).parent
LAUNCH = (
    ("/env/bin/kinetoscope", 8, "<module>"),
    (str(Path(click.__file__).parent / "core.py"), 1000, "Command.__call__"),
    (str(PACKAGE / "cli" / "run.py"), 90, "Run.execute"),
    (str(PACKAGE / "launcher" / "program.py"), 60, "Program.run"),
)
OWN = (("/code/train.py", 5, "<module>"), ("/code/train.py", 3, "main"))


def stacks(builder: TraceBuilder) -> list[str]:
    """The stacks of a trace's spans after the launcher was taken out."""
    trace = builder.build()
    return without_launcher(trace).table("spans").column("stack").to_pylist()


def test_a_stack_begins_with_the_program():
    builder = TraceBuilder()
    builder.span("a", 0, 10, stack=builder.stack(*LAUNCH, *OWN))
    builder.span("b", 20, 10, stack=builder.stack(*LAUNCH, OWN[0]))
    first = "/code/train.py(5): <module>"
    assert stacks(builder) == [f"{first};/code/train.py(3): main", first]


def test_other_threads_keep_their_stacks():
    builder = TraceBuilder()
    builder.span("a", 0, 10, stack=builder.stack(("/lib/threading.py", 9, "run"), *OWN))
    assert stacks(builder)[0].startswith("/lib/threading.py(9): run;")


def test_a_program_may_use_the_same_libraries():
    builder = TraceBuilder()
    builder.span("a", 0, 10, stack=builder.stack(*LAUNCH, OWN[0], LAUNCH[1], OWN[1]))
    builder.span("b", 20, 10, stack=builder.stack(OWN[0], *LAUNCH[1:], OWN[1]))
    assert [text.count(";") for text in stacks(builder)] == [2, 4]


def test_a_trace_without_stacks_is_left_alone():
    assert stacks(TraceBuilder().span("a", 0, 10)) == [None]


def test_the_given_trace_stays_as_it_was():
    builder = TraceBuilder()
    builder.span("a", 0, 10, stack=builder.stack(*LAUNCH, *OWN))
    trace = builder.build()
    before = trace.columns("stacks")["parent"]
    kept = before.copy()
    cleaned = without_launcher(trace)
    assert trace.columns("stacks")["parent"] is before
    assert (before == kept).all()
    assert cleaned is not trace
    assert cleaned.info == trace.info
    assert without_launcher(cleaned) is cleaned
