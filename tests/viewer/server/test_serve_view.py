"""`kinetoscope.view`, and the command: what they open, print, wait for and leave behind."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import kinetoscope
from kinetoscope import ArgumentError, FormatError
from kinetoscope.viewer.server import serve as view_module
from tests.support.trace_builder import TraceBuilder

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/[\w-]{32}/")


@pytest.fixture
def trace():
    return TraceBuilder().span("aten::mm", 0, 100).build()


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A cache folder of its own: the user's stays as it is."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(folder))
    return folder


@pytest.fixture
def browsers(monkeypatch):
    """The addresses that a browser was opened on."""
    opened = []
    monkeypatch.setattr(view_module.webbrowser, "open", lambda address: opened.append(address) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    return opened


def read(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()


def test_it_serves_until_it_is_closed(trace, browsers):
    with kinetoscope.view(trace, wait=False, port=0) as viewer:
        assert ADDRESS.fullmatch(viewer.address)
        # Every user of the machine can read a browser's command line.
        assert browsers == [viewer.browser_address]
        assert viewer.address.split("/")[3] not in browsers[0]
        assert b"Kinetoscope" in read(browsers[0])
        assert b"Kinetoscope" in read(viewer.address)
        assert b'"name":"trace"' in read(f"{viewer.address}api/traces")
    with pytest.raises(urllib.error.URLError):
        read(viewer.address)
    viewer.close()
    assert repr(viewer) == "<Viewer (closed)>"
    assert viewer._repr_html_() == "<p>Viewer (closed)</p>"
    assert len(trace.columns("spans")) == 1  # who gave it keeps it


def tokens(*given):
    """The tokens of servers for some traces, one after the other."""
    found = []
    for one in given:
        with kinetoscope.view(one, wait=False, port=0, browser=False) as viewer:
            found.append(viewer.address.split("/")[3])
    return found


def test_a_link_survives_a_restart_of_the_server(trace, tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.ktrace", "b.ktrace"):
        trace.save(tmp_path / name)
    first, again, relative, other = tokens(*[tmp_path / "a.ktrace"] * 2, "a.ktrace", tmp_path / "b.ktrace")
    assert first == again == relative
    assert other != first
    assert len(set(tokens(trace, trace))) == 2
    key = cache / "viewer.key"
    assert key.stat().st_mode & 0o777 == 0o600
    # A key that others can read protects nothing.
    key.chmod(0o644)
    assert len({first, *tokens(*[tmp_path / "a.ktrace"] * 2)}) == 3


def test_without_a_place_for_the_key_each_server_has_its_own_token(trace, tmp_path, monkeypatch):
    trace.save(tmp_path / "a.ktrace")
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path / "a.ktrace"))
    assert len(set(tokens(*[tmp_path / "a.ktrace"] * 2))) == 2


def test_no_browser_is_opened_where_none_is_wanted_or_would_be_in_the_terminal(trace, browsers, monkeypatch):
    kinetoscope.view(trace, wait=False, port=0, browser=False).close()
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(view_module.sys, "platform", "linux")
    kinetoscope.view(trace, wait=False, port=0).close()
    assert browsers == []


def test_a_program_waits_until_it_is_interrupted_and_a_notebook_does_not(
    trace, browsers, monkeypatch, capsys
):
    waited = []
    monkeypatch.setattr(view_module.Viewer, "wait", lambda self: waited.append(self.address))
    # What tests of notebooks leave behind in this process.
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.delattr(sys, "ps1", raising=False)
    with kinetoscope.view(trace, port=0) as viewer:
        assert waited == [viewer.address]
        assert capsys.readouterr().out == f"{viewer.address}\n"
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    kinetoscope.view(trace, port=0).close()
    assert len(waited) == 1


def test_an_interrupt_ends_the_server(trace, monkeypatch):
    viewer = kinetoscope.view(trace, port=0, browser=False, wait=False)
    join = viewer._thread.join
    calls = []

    def interrupted(*_):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        join(20)

    monkeypatch.setattr(viewer._thread, "join", interrupted)
    viewer.wait()
    assert not viewer._thread.is_alive()


def test_a_notebook_shows_a_link_and_hostile_names_as_text(trace, tmp_path):
    path = tmp_path / "<img src=x onerror=alert(1)>.ktrace"
    trace.save(path)
    with kinetoscope.view(path, port=0, browser=False, wait=False) as viewer:
        shown = viewer._repr_html_()
        assert f'href="{viewer.address}"' in shown
        assert "<img" not in shown


def test_what_goes_wrong_leaves_no_server(tmp_path, monkeypatch):
    closed = []
    close = view_module.Server.server_close
    monkeypatch.setattr(view_module.Server, "server_close", lambda self: closed.append(close(self)))
    bad = tmp_path / "bad.json"
    bad.write_text("nothing")
    with pytest.raises(FormatError):
        kinetoscope.view(bad, port=0, wait=False)
    with pytest.raises(FileNotFoundError):
        kinetoscope.view(tmp_path / "missing", port=0, wait=False)
    with pytest.raises(ArgumentError, match="no trace was given"):
        kinetoscope.view(port=0, wait=False)
    assert len(closed) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_in_order(trace, tmp_path, number):
    trace.save(tmp_path / "run.ktrace")
    (tmp_path / "bad.json").write_text("nothing")
    command = [
        sys.executable,
        "-m",
        "kinetoscope",
        "view",
        "--no-browser",
        "--port",
        "0",
        "run.ktrace",
        "bad.json",
    ]
    environment = {**os.environ, "SSH_CONNECTION": "1 2 3 4", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        address = process.stdout.readline().strip()
        assert ADDRESS.fullmatch(address)
        listed = read(f"{address}api/traces").decode()
        assert '"name":"bad.json"' in listed
        # The last of these is printed after the address: before it, the command is not ready yet.
        errors = process.stderr.readline() + process.stderr.readline()
        process.send_signal(number)
        errors += process.communicate(timeout=60)[1]
    assert process.returncode == (0 if number == signal.SIGINT else 128 + number)
    assert "bad.json: " in errors
    assert "ssh -L" in errors
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "run.ktrace"]


def test_the_command_says_in_one_line_why_there_is_nothing_to_look_at(tmp_path):
    (tmp_path / "bad.json").write_text("nothing")
    done = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "view", "--no-browser", "--port", "0", tmp_path / "bad.json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "does not contain a trace" in done.stderr
