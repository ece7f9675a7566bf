"""How the iterations of an engine are named."""

import pytest

from kinetoscope.model.marks import StepMark, parse_step_mark, step_mark


@pytest.mark.parametrize(("name", "arguments"), [("prefill", '{"tokens": 512}'), ("decode", "")])
def test_a_mark_is_read_as_it_was_written(name, arguments):
    assert parse_step_mark(step_mark(name, arguments)) == StepMark(name, arguments)


@pytest.mark.parametrize(
    "text", ["kinetoscope.step ", "kinetoscope.step decode {", "kinetoscope.request #3", "aten::mm"]
)
def test_other_ranges_are_none(text):
    assert parse_step_mark(text) is None
