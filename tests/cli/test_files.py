"""The files that commands write: what is no regular file stays what it is, and a trace is not overwritten."""

import os
import stat

import pytest


@pytest.fixture
def pipe(tmp_path):
    """A named pipe with a reader, and a function that returns what arrived."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)

    def arrived():
        assert stat.S_ISFIFO(path.lstat().st_mode)
        return os.read(reading, 1 << 16)

    yield path, arrived
    os.close(reading)


@pytest.fixture
def large_pipes(monkeypatch):
    """Lets pages fit into a pipe that nobody empties meanwhile: what they hold is another test's subject."""
    monkeypatch.setattr(
        "kinetoscope.viewer.server.report.report_page", lambda *_, **__: "<html>report</html>"
    )
    monkeypatch.setattr(
        "kinetoscope.viewer.server.report.comparison_page", lambda *_: "<html>comparison</html>"
    )


@pytest.mark.usefixtures("large_pipes")
@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (["report", "TRACE", "-o", "PIPE"], b"<html>report"),
        (["compare", "TRACE", "TRACE", "--html", "PIPE"], b"<html>comparison"),
        (["history", "FOLDER", "--html", "PIPE"], b"<!doctype html>"),
        (["check", "BUDGET", "TRACE", "--junit", "PIPE"], b"<?xml"),
    ],
)
def test_what_is_written_goes_into_a_pipe_that_stays_one(call, tmp_path, trace_path, pipe, words, begin):
    path, arrived = pipe
    (tmp_path / "builds").mkdir()
    for name in ("a.ktrace", "b.ktrace", "c.ktrace", "d.ktrace"):
        (tmp_path / "builds" / name).write_bytes(trace_path.read_bytes())
    budget = tmp_path / "budget.toml"
    assert call("check", budget, trace_path, "--update").exit_code == 0
    places = {"TRACE": trace_path, "PIPE": path, "FOLDER": tmp_path / "builds", "BUDGET": budget}
    done = call(*(places.get(word, word) for word in words))
    assert done.exit_code in (0, 2), done.stderr
    assert arrived().startswith(begin)


@pytest.mark.usefixtures("large_pipes")
def test_the_line_about_a_report_does_not_go_into_the_report(call, trace_path, pipe):
    path, arrived = pipe
    done = call("report", trace_path, "-o", path)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"{path}: written\n")
    assert arrived() == b"<html>report</html>"


@pytest.mark.parametrize(
    "words", [["report", "TRACE", "-o", "TRACE"], ["compare", "TRACE", "TRACE", "--html", "TRACE"]]
)
def test_a_trace_is_not_overwritten_by_its_own_page(call, trace_path, words):
    before = trace_path.read_bytes()
    done = call(*(trace_path if word == "TRACE" else word for word in words))
    assert done.exit_code == 1
    assert "choose another output file" in done.stderr
    assert trace_path.read_bytes() == before


@pytest.mark.parametrize("suffix", ["", ".ktrace", ".recording"])
def test_a_run_does_not_record_into_a_pipe(call, tmp_path, suffix):
    (tmp_path / "program.py").write_text("print('ran')\n")
    path = tmp_path / f"pipe{suffix}"
    os.mkfifo(path)
    done = call("run", "-o", path, tmp_path / "program.py")
    assert done.exit_code == 1
    assert "is not a regular file" in done.stderr
    assert stat.S_ISFIFO(path.lstat().st_mode)


def test_a_summary_is_not_read_from_a_pipe(call, tmp_path):
    os.mkfifo(tmp_path / "pipe.parquet")
    done = call("ranks", tmp_path / "pipe.parquet")
    assert done.exit_code == 1
    assert "not a regular file" in done.stderr
