"""The picture of the demo in the README is drawn from a recording of the demo as it is."""

import inspect
import json
import re
import xml.etree.ElementTree as ET

import pytest

pytest.importorskip("torch", reason="the demo trains with PyTorch")

from kinetoscope.cli import demo
from kinetoscope.examples import train_gpt
from tools import record_demo

CAST = record_demo.CAST.read_text(encoding="utf-8")


def cast(*outputs):
    """A recording of some outputs."""
    head = {"version": 2, "width": 100, "height": 30, "title": "recorded"}
    return "\n".join([json.dumps(head), *(json.dumps([0.1, "o", text]) for text in outputs)])


def test_the_picture_is_what_the_recording_draws():
    assert record_demo.PICTURE.read_text(encoding="utf-8") == record_demo.draw(CAST), (
        "run tools/record_demo.py --draw"
    )


def test_the_recording_is_of_the_demo_as_it_is():
    """After a change of the demo, run tools/record_demo.py."""
    shown = [line.plain.strip() for line in record_demo.shown_lines(CAST)]
    headings = re.findall(r'self\._begin\("(.+)"\)', inspect.getsource(demo))
    assert len(headings) == 6
    assert [line for line in shown if line in headings] == headings
    code, first = inspect.getsourcelines(train_gpt.mean_loss)
    listed = [line for line in shown if re.match(r"(> )?\d+  (def |    )", line)]
    assert [line.removeprefix("> ") for line in listed] == [
        f"{number}  {line.rstrip()}" for number, line in enumerate(code, first)
    ]
    assert any("".join(demo.ARGUMENTS[demo.SLOW][-1:]) in line for line in shown)


def test_a_line_that_is_written_again_is_shown_once():
    lines = record_demo.shown_lines(
        cast("a\r\n\x1b[?25lstep 1", "\r\x1b[2Kstep 22", "\r\x1b[2K\x1b[1A\x1b[2Kb\r\nstep 3\r\n\x1b[?25h")
    )
    assert [line.plain for line in lines] == ["b", "step 3"]


def test_colors_and_characters_of_markup_are_kept():
    picture = record_demo.draw(cast("\x1b[31ma < b\x1b[0m & c\r\n\x1b[1mbold\x1b[0m\r\n"))
    spans = [
        (span.text, span.get("style"))
        for span in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}tspan")
    ]
    assert spans == [
        ("$ kinetoscope demo", None),
        ("a < b", "fill:#be3f48"),
        ("& c", None),
        ("bold", "font-weight:bold"),
    ]


def test_the_last_line_is_in_view_at_the_end():
    many = cast("".join(f"{number}\r\n" for number in range(50)))
    ends = re.findall(r"translateY\((-?\d+)px\)\}\}", record_demo.draw(many))
    lines = 51
    assert [int(end) for end in ends[:2]] == [
        -(lines - record_demo.ROWS) * record_demo.LINE,
        lines * record_demo.LINE,
    ]
