"""Kinds of steps."""

import pytest
from hypothesis import given, settings

from kinetoscope.model.marks import step_mark
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.trace_builder import USER, TraceBuilder

TRAIN = ["aten::mm"] * 8 + ["aten::add"] * 8
EVALUATE = [*TRAIN, *["aten::softmax"] * 8]
SAVE = ["aten::copy_"] * 4


def built(*steps, each_ns=10):
    """A program with these operators in its steps."""
    builder = TraceBuilder()
    at_ns = 0
    for number, names in enumerate(steps):
        builder.step(number, at_ns, each_ns * (len(names) + 1))
        for place, name in enumerate(names):
            builder.span(name, at_ns + each_ns * place, each_ns)
        at_ns += each_ns * (len(names) + 1)
    return builder.build()


def rows(trace):
    return trace.table("step_kinds").to_pylist()


def test_steps_with_other_operators_are_of_another_kind():
    trace = built(TRAIN, TRAIN, EVALUATE, TRAIN, TRAIN, EVALUATE, SAVE)
    first, second, third = rows(trace)
    assert (first["kind"], first["count"], first["median_ns"], first["operators"]) == (0, 4, 170, 16)
    assert (second["count"], second["total_ns"], second["first_step"], second["last_step"]) == (2, 500, 2, 5)
    assert (third["count"], third["min_ns"], third["max_ns"]) == (1, 50, 50)
    assert [row["most_of"] for row in (first, second, third)] == [None, "aten::softmax", "aten::copy_"]
    assert sum(row["share_percent"] for row in (first, second, third)) == pytest.approx(100)
    assert [row["step_kind"] for row in trace.table("breakdown").to_pylist()] == [0, 0, 1, 0, 0, 1, 2]


def test_a_few_more_operators_are_no_other_kind():
    (only,) = rows(built(TRAIN, [*TRAIN, "aten::item"], [*TRAIN, "aten::mm"]))
    assert (only["kind"], only["count"], only["most_of"]) == (0, 3, None)


def test_steps_without_operators_are_a_kind():
    assert [row["operators"] for row in rows(built(TRAIN, [], []))] == [16, 0]


def test_without_steps_there_is_no_kind():
    assert rows(TraceBuilder().build()) == []


@settings(max_examples=examples(30), deadline=None)
@given(any_traces(max_spans=40))
def test_kinds_hold_every_step_once_but_start_up(trace):
    steps = [row for row in trace.table("steps").to_pylist() if not row["start_up"]]
    found = rows(trace)
    assert sum(row["count"] for row in found) == len(steps)
    assert sum(row["total_ns"] for row in found) == sum(row["duration_ns"] for row in steps)
    assert [row["total_ns"] for row in found] == sorted((row["total_ns"] for row in found), reverse=True)


def test_steps_that_the_program_gave_different_names_are_of_different_kinds():
    builder = TraceBuilder()
    for number in range(6):
        builder.step(number, number * 100, 100)
        name, tokens = ("prefill", 512) if number % 3 == 0 else ("decode", 4)
        builder.span(step_mark(name, f'{{"tokens": {tokens}}}'), number * 100, 90, scope=USER)
        builder.span("aten::mm", number * 100, 80)
    trace = builder.build()
    assert [(row["name"], row["count"]) for row in trace.table("step_kinds").to_pylist()] == [
        ("decode", 4), ("prefill", 2),
    ]  # fmt: skip
    first = trace.table("steps").to_pylist()[0]
    assert (first["name"], first["arguments"]) == ("prefill", '{"tokens": 512}')
