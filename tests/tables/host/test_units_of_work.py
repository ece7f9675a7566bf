"""Steps, requests and recordings as one: which a trace has, their parts, and which of them works at a moment."""

import numpy as np
import pytest
from hypothesis import given

from kinetoscope.tables.host.units_of_work import Unit, units_of_work
from tests.support.any_trace import any_traces
from tests.support.trace_builder import TraceBuilder


@given(any_traces())
def test_places_lie_in_their_unit(trace):
    work = units_of_work(trace)
    assert len(work) > 0
    spans = trace.columns("spans")
    place = work.place_at(spans["start_ns"], spans["thread"])
    inside = place >= 0
    assert (work.mark_start_ns[place[inside]] <= spans["start_ns"][inside]).all()
    assert (spans["start_ns"][inside] < work.mark_end_ns[place[inside]]).all()


def test_a_selection_has_its_own_places():
    builder = TraceBuilder()
    for number in range(4):
        builder.step(number + 10, number * 100, 100)
        builder.span("aten::mm", number * 100 + 10, 50)
    trace = builder.build()
    work = units_of_work(trace)
    last = work[np.array([2, 3])]
    assert (work.unit, last.numbers.tolist()) == (Unit.STEP, [12, 13])
    rows = np.flatnonzero(trace.columns("spans")["duration_ns"] == 50)
    assert work.place_of(rows).tolist() == [0, 1, 2, 3]
    assert last.place_of(rows).tolist() == [-1, -1, 0, 1]


def test_without_steps_all_that_was_recorded_is_one():
    trace = TraceBuilder().span("aten::mm", 10, 50).build()
    work = units_of_work(trace)
    assert (work.unit, len(work), work.numbers.tolist()) == (Unit.RECORDING, 1, [0])
    assert work.place_of(np.arange(1)).tolist() == [0]


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (Unit.STEP, ("step", "The loop", "step time", " a step", " in each step")),
        (Unit.REQUEST, ("request", "A request", "request time", " a request", " in each request")),
        (Unit.RECORDING, ("run", "The program", "recorded time", "", "")),
    ],
)
def test_sentences_are_made_of_its_words(unit, words):
    assert (unit.noun, unit.subject, unit.time, unit.each, unit.in_each) == words
