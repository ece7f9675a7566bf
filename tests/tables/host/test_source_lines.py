"""The text of source lines: stored by the process that recorded, read from the trace alone by all others."""

import os
import socket
import time

import pytest
import torch

import kinetoscope
from kinetoscope.tables.host.source_lines import line_text, source_lines
from tests.support.trace_builder import TraceBuilder

SCRIPT = """\
import torch

def work():
    a = torch.ones(8, 8)
    b = a @ a
    return b

work()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def recorded(script, **options):
    with kinetoscope.profile(with_stack=True, **options) as prof:
        exec(compile(SCRIPT, str(script), "exec"), {"torch": torch})
    return prof.trace


# torch's collector names the lines in which functions begin.
@pytest.mark.parametrize(("engine", "around"), [("native", range(2, 9)), ("kineto", range(1, 6))])
def test_hot_lines_are_saved_with_those_around_them(script, tmp_path, engine, around):
    with recorded(script, engine=engine) as trace:
        trace.save(tmp_path / "run.ktrace")
    script.write_text("# Something else by now")
    with kinetoscope.open(tmp_path / "run.ktrace") as trace:
        (file,) = [file for file in source_lines(trace) if file.endswith("train.py")]
        lines = source_lines(trace)[file]
        assert set(around) <= set(lines)
        assert lines == {number: SCRIPT.splitlines()[number - 1] for number in lines}


@pytest.mark.parametrize("engine", ["native", "kineto"])
def test_lines_of_a_script_in_a_folder_of_imports_are_saved(script, monkeypatch, engine):
    """torch's collector names such a file without its folder, which is that of every script that Python runs."""
    monkeypatch.syspath_prepend(script.parent)
    with recorded(script, engine=engine) as trace:
        assert any(file.endswith("train.py") for file in source_lines(trace))


def test_a_session_can_be_told_to_store_none(script, tmp_path):
    with recorded(script, source=False) as trace:
        assert source_lines(trace) == {}
        trace.save(tmp_path / "run.ktrace")
    with kinetoscope.open(tmp_path / "run.ktrace") as trace:
        assert source_lines(trace) == {}


def of_this_process(builder, **facts):
    """The trace of a builder, which says that this process recorded it."""
    trace = builder.build()
    trace.info.update(
        {"process": os.getpid(), "host": socket.gethostname(), "start_realtime_ns": time.time_ns()} | facts
    )
    return trace


def of_a_file(path, **facts):
    """A trace that names a line of a file."""
    builder = TraceBuilder()
    return of_this_process(
        builder.span("aten::mm", 0, 100, stack=builder.stack((str(path), 1, "f"))), **facts
    )


def test_a_line_that_only_samples_name_has_its_text(script):
    builder = TraceBuilder()
    builder.span("aten::mm", 0, 100).sample(50, builder.stack((str(script), 8, "<module>")))
    assert line_text(of_this_process(builder), str(script), 8) == "work()"


def test_only_files_of_its_own_trace_are_read_and_only_as_they_were(script):
    assert line_text(of_a_file(script), str(script), 1) == "import torch"
    assert source_lines(of_a_file(script, process=os.getpid() + 1)) == {}
    assert source_lines(of_a_file(script, host="elsewhere")) == {}
    changed_later = script.stat().st_mtime_ns - 10**9
    assert source_lines(of_a_file(script, start_realtime_ns=changed_later)) == {}
    for path in ("/nothing/there.py", "\0", "train.py", "<string>"):
        assert source_lines(of_a_file(path)) == {}


@pytest.mark.parametrize(
    "stored", [3, [], "x", {"f": 3}, {"f": {"one": "x", "-1": "x", "2": 4, "3": "y" * 9999}}]
)
def test_stored_text_may_be_anything(stored):
    builder = TraceBuilder().know("source_lines", stored)
    found = source_lines(builder.span("aten::mm", 0, 100).build())
    assert all(len(text) <= 200 for lines in found.values() for text in lines.values())
