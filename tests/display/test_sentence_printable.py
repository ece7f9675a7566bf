"""Texts that are safe to print."""

import json

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analyses.description import describe, one_line
from kinetoscope.display import terminal
from kinetoscope.display.blocks import Paragraph
from kinetoscope.display.lines import print_blocks, text_table
from kinetoscope.display.sentence import printable, printable_lines
from tests.support.trace_builder import TraceBuilder

HOSTILE = "\x1b]0;evil\x07\x1b[31m\r\x9b2J\u202e\ud800 x"


@given(st.text(st.characters()))
def test_printable_text_is_printable_and_valid(text):
    shown = printable(text)
    shown.encode("utf-8")
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text


def test_line_breaks_of_a_text_of_several_lines_stay():
    assert printable_lines("a\x1b\nb\tc\n") == "a\\x1b\nb\\tc\n"


def test_what_a_trace_is_can_be_printed():
    trace = TraceBuilder().span(HOSTILE, 0, 100).build()
    trace.info |= {
        "command_line": [HOSTILE, "--x"], "host_name": HOSTILE, "process_name": HOSTILE, "process": 7, "anything": HOSTILE,
        HOSTILE: HOSTILE, "torch_version": HOSTILE, "engine": HOSTILE, "deviceProperties": [{"id": 0, "name": HOSTILE}],
    }  # fmt: skip
    facts = describe(trace.overview())
    assert sum("evil" in fact.text for fact in facts) >= 5
    assert all(line.isprintable() for fact in facts for line in fact.text.split("\n"))
    assert one_line(trace).isprintable()


def test_cells_of_tables_can_be_printed():
    (line,) = text_table([[HOSTILE, HOSTILE]], "<<")
    assert line.isprintable()


def test_a_console_writes_control_characters_as_escapes(capsys):
    printer = terminal.console()
    printer.print(f"plain {HOSTILE}", markup=False)
    print_blocks(printer, [Paragraph(HOSTILE, "Trace")], printer.width)
    terminal.echo(f"told\n{HOSTILE}")
    terminal.complain(f"wrong: {HOSTILE}")
    shown = capsys.readouterr()
    lines = [*shown.out.split("\n"), *shown.err.split("\n")]
    assert sum("evil" in line for line in lines) == 4
    assert all(line.isprintable() for line in lines)


def test_json_stays_the_same_json(capsys):
    values = {"name": HOSTILE.replace("\ud800", ""), "texts": ["a\nb", "ü"]}
    terminal.echo(json.dumps(values, ensure_ascii=False, indent=1))
    shown = capsys.readouterr().out
    assert json.loads(shown) == values
    assert all(line.isprintable() for line in shown.split("\n"))
