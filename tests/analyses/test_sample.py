"""The part of a large trace that is looked at: which steps, and that what is found there points into the whole."""

import numpy as np
import pytest

from kinetoscope.analyses import sample as sample_module
from kinetoscope.analyses.findings import examine, finding_blocks
from kinetoscope.analyses.overview import overview
from kinetoscope.analyses.sample import sample_of
from kinetoscope.analyses.trace_blocks import RunFacts, trace_blocks
from kinetoscope.display.lines import plain_lines
from tests.support.trace_builder import TraceBuilder

STEP_NS = 1_000_000


@pytest.fixture
def small(monkeypatch):
    """A trace of few spans counts as large."""
    monkeypatch.setattr(sample_module, "MOST_SPANS", 500)
    monkeypatch.setattr(sample_module, "SAMPLED_SPANS", 250)
    monkeypatch.setattr(sample_module, "FEWEST_STEPS", 10)


def training(steps, deep=(), *, marked=True):
    """A trace of steps of nine operators each, and of a collection of garbage for two fifths of the step."""
    builder = TraceBuilder()
    line = builder.stack(("/code/train.py", 3, "<module>"))
    shape = builder.shapes([[8]])
    for number in range(steps):
        start = number * STEP_NS
        if marked:
            builder.step(number, start, STEP_NS)
        for index in range(9):
            at = start + index * STEP_NS // 20
            builder.span("aten::mul", at, STEP_NS // 20, stack=line, shapes=shape if number in deep else -1)
        builder.annotation("Python GC", start + STEP_NS // 2, STEP_NS * 2 // 5)
    return builder.build()


def test_a_small_trace_is_looked_at_in_whole():
    trace = training(3)
    sample = sample_of(trace)
    assert sample.trace is trace
    assert sample.text == ""
    assert sample.rows.tolist() == list(range(len(trace.columns("spans"))))


@pytest.mark.usefixtures("small")
def test_steps_are_chosen_evenly_with_the_first_and_those_in_full():
    trace = training(100, deep={17, 18, 61})
    sample = sample_of(trace)
    numbers = sample.trace.column("steps", "number").tolist()
    assert {0, 17, 18, 61} <= set(numbers)
    assert numbers == sorted(set(numbers))
    assert 22 <= len(numbers) <= 26
    # No tenth of the steps is without one.
    assert {number // 10 for number in numbers} == set(range(10))
    assert sample.text == f"{len(numbers)} of 100 steps"


@pytest.mark.usefixtures("small")
def test_the_spans_of_a_sample_are_those_of_its_steps_at_their_times():
    trace = training(100)
    sample = sample_of(trace)
    for column in ("start_ns", "duration_ns"):
        assert (sample.trace.column("spans", column) == trace.column("spans", column)[sample.rows]).all()
    chosen = sample.trace.column("steps", "number")
    whole_steps = trace.column("spans", "step")
    assert sorted(sample.rows.tolist()) == np.flatnonzero(np.isin(whole_steps, chosen)).tolist()


@pytest.mark.usefixtures("small")
def test_findings_of_a_sample_point_into_the_whole_and_say_so():
    trace = training(100)
    report = examine(trace)
    assert report.sample == sample_of(trace).text
    names = {trace.strings[trace.column("spans", "name")[row]] for row in report.findings[0].spans}
    assert names == {"Python GC"}
    text = "\n".join(plain_lines(finding_blocks(report), 100))
    assert f"This is of {report.sample}, chosen evenly." in text
    shown = overview(trace)
    summary = "\n".join(plain_lines(trace_blocks(shown, RunFacts.of(shown, "x")), 100))
    assert f"what follows is of {report.sample}, chosen evenly" in summary
    assert "100 steps" in summary


@pytest.mark.usefixtures("small")
def test_each_size_of_few_large_steps_has_its_share():
    builder = TraceBuilder()
    for number in range(40):
        builder.step(number, number * STEP_NS, STEP_NS)
        # Every fifth step is of another kind.
        operators = 10 if number % 5 else 40
        for index in range(operators):
            length_ns = STEP_NS // operators
            builder.span("aten::mul", number * STEP_NS + index * length_ns, length_ns)
    trace = builder.build()
    sample = sample_of(trace)
    numbers = sample.trace.column("steps", "number")
    # Of seven large ones and 32 small ones, an equal share.
    assert [
        sum(number % 5 == 0 for number in numbers[1:]),
        sum(number % 5 > 0 for number in numbers[1:]),
    ] == [3, 14]
    assert sample.times == pytest.approx(39 / 17)


@pytest.mark.usefixtures("small")
def test_few_large_steps_are_looked_at_in_whole(monkeypatch):
    monkeypatch.setattr(sample_module, "FEWEST_STEPS", 80)
    trace = training(100)
    assert sample_of(trace).trace is trace
    assert examine(trace).sample == ""


@pytest.mark.usefixtures("small")
def test_a_sample_that_is_still_large_is_looked_at_once(monkeypatch):
    monkeypatch.setattr(sample_module, "MOST_SPANS", 100)
    trace = training(100)
    assert len(sample_of(trace).trace.columns("spans")) > 100
    assert examine(trace).sample == sample_of(trace).text


@pytest.mark.usefixtures("small")
def test_without_steps_it_is_the_middle():
    trace = training(100, marked=False)
    sample = sample_of(trace)
    rows = sample.rows
    assert rows.tolist() == list(range(rows[0], rows[-1] + 1))
    assert abs((rows[0] + rows[-1]) / 2 - 500) < 20
    assert 200 <= len(rows) <= 300
    assert sample.trace.duration_ns < trace.duration_ns / 2
    assert sample.text.endswith(" of 99.9 ms")


@pytest.mark.usefixtures("small")
def test_shares_of_a_sample_are_those_of_the_whole():
    whole = training(100)
    sampled = examine(whole)
    assert sampled.findings[0].code == "gc-pause"
    assert sampled.findings[0].share_percent == pytest.approx(40, abs=1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("marked", [True, False])
def test_times_of_a_sample_are_estimated_for_the_whole(monkeypatch, marked):
    sampled = examine(training(100, marked=marked))
    monkeypatch.setattr(sample_module, "MOST_SPANS", 10_000)
    whole = examine(training(100, marked=marked))
    assert (sampled.sample != "", whole.sample) == (True, "")
    assert sampled.whole_ns == pytest.approx(whole.whole_ns, rel=0.1)
    assert sampled.count == pytest.approx(whole.count, abs=10)
    assert sampled.findings[0].code == whole.findings[0].code
    assert sampled.findings[0].gain_ns == pytest.approx(whole.findings[0].gain_ns, rel=0.1)
