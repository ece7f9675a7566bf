"""The bar that says how far reading is."""

import io
import json

from rich.console import Console

from kinetoscope.cli import files
from kinetoscope.cli.files import ReadingBar, open_trace


class Clock:
    """A clock that only tests move."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def bar(path="run [1].json"):
    """A bar on a terminal that is a text, the text, and its clock."""
    written, clock = io.StringIO(), Clock()
    return ReadingBar(Console(file=written, force_terminal=True, width=120), path, clock), written, clock


def test_a_file_that_is_read_at_once_shows_nothing():
    shown, written, clock = bar()
    shown(10, 100, 1)
    clock.now_s = files.QUIET_S - 0.01
    shown(100, 100, 10)
    shown.end()
    assert written.getvalue() == ""


def test_a_file_that_takes_its_time_shows_how_far_it_is_and_then_nothing():
    shown, written, clock = bar("/somewhere/run [1].json")
    clock.now_s = files.QUIET_S
    shown(5_000_000, 10_000_000, 12_345)
    shown.end()
    text = written.getvalue()
    assert "reading run [1].json" in text
    assert "4.8/9.5 MiB" in text
    assert "12,345 events" in text
    # The line is taken away again.
    assert text.rstrip("\n").endswith("\x1b[2K")


def test_a_file_of_unknown_size_is_shown_too():
    shown, written, clock = bar()
    clock.now_s = 9
    shown(5_000_000, None, 3)
    shown.end()
    assert "4.8/? MiB" in written.getvalue()


def test_without_a_terminal_a_trace_is_just_opened(tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]))
    with open_trace(str(path)) as trace:
        assert len(trace.columns("spans")) == 1
    assert capsys.readouterr().err == ""


def test_on_a_terminal_the_bar_is_taken_away_also_after_an_error(tmp_path, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(files, "QUIET_S", 0)
    monkeypatch.setattr(
        "kinetoscope.display.terminal.console",
        lambda **_: Console(file=written, force_terminal=True, width=120),
    )
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]))
    with open_trace(str(path)) as trace:
        assert len(trace.columns("spans")) == 1
    assert "reading a.json" in written.getvalue()
    assert written.getvalue().rstrip("\n").endswith("\x1b[2K")
