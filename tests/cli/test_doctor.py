"""What the doctor says."""

import json
import subprocess

import pytest

from tests.support import warm_python


def doctor(start: str = "", *words: str) -> subprocess.CompletedProcess:
    """Runs the doctor in a process of its own, after a line of Python."""
    program = f"import sys\n{start}\nfrom kinetoscope.cli import main\nmain({['doctor', *words]!r})"
    return warm_python.run("-c", program)


def test_it_names_the_engine_and_every_tested_feature():
    pytest.importorskip("torch", reason="the recorder is tested with PyTorch")
    told = doctor()
    assert told.returncode == 0, told.stderr
    for word in ("Kinetoscope", "Python", "PyTorch", "Compiler", "Recorder", "Engine", "Kineto  "):
        assert any(line.startswith(word) for line in told.stdout.splitlines())
    assert "read while torch writes it" in " ".join(told.stdout.split())
    for feature in ("operators", "nesting", "backward", "shapes", "stacks", "modules"):
        assert f" {feature}" in told.stdout


def test_as_json_it_says_whether_anything_can_record():
    pytest.importorskip("torch", reason="the recorder is tested with PyTorch")
    found = json.loads(doctor("", "--json").stdout)
    assert found["records"] is True
    assert {"label": "Engine", "text": "native", "state": "ok"} in found["lines"]
    without = json.loads(doctor("sys.modules['torch'] = None", "--json").stdout)
    assert without["records"] is False


def test_without_torch_it_says_that_only_reading_works():
    told = doctor("sys.modules['torch'] = None")
    assert told.returncode == 1
    assert "not installed: traces can be read, but nothing can be recorded" in told.stdout
    assert "Traceback" not in told.stderr


def test_it_says_when_the_recorder_cannot_be_built(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the recorder is built for PyTorch")
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    told = doctor("", "--build")
    assert told.returncode == 1
    assert "kinetoscope: error: " in told.stderr
    assert "Traceback" not in told.stderr


def test_it_says_where_the_names_of_torch_profiler_lead():
    pytest.importorskip("torch", reason="they are torch's names")
    for start, said in [
        ("", "torch's own"),
        ("import kinetoscope; kinetoscope.install()", "replaced by Kinetoscope: something called"),
    ]:
        (line,) = [line for line in doctor(start).stdout.splitlines() if line.startswith("torch.profiler")]
        assert said in line
