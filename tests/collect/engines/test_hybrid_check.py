"""Whatever the check of the hybrid engine does, the program records; see tests/gpu/test_hybrid.py for checks on a device."""

import pytest

from kinetoscope import ProfilerActivity
from kinetoscope.collect.engines import hybrid_check as hybrid_module


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; open(sys.argv[1], 'w').write('{\"holds\": tr')", "could not be checked"),
        ("import sys; open(sys.argv[1], 'w').write('{}')", "could not be checked"),
        ("import sys; open(sys.argv[1], 'w').write('[]')", "could not be checked"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)", "ended by signal"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "ended by signal 15"),
        ("raise SystemExit('no such device')", "ended with exit code 1: no such device"),
    ],
    ids=["cut result", "empty result", "other result", "real-time signal", "signal", "exit code"],
)
def test_any_failure_of_the_check_is_a_reason_for_kineto(program, reason, tmp_path, monkeypatch):
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(hybrid_module, "_results", {})
    monkeypatch.setattr(hybrid_module, "_START", program)
    status = hybrid_module.hybrid_status(ProfilerActivity.CUDA, lambda line: None)
    assert not status.available
    assert reason in status.reason


def test_a_check_that_hangs_ends_at_its_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(hybrid_module, "_results", {})
    monkeypatch.setattr(hybrid_module, "_START", "import signal; signal.pause()")
    monkeypatch.setattr(hybrid_module, "PATIENCE_S", 0.05)
    status = hybrid_module.hybrid_status(ProfilerActivity.CUDA, lambda line: None)
    assert not status.available
    assert status.reason == "the check of the hybrid engine did not end within 0 seconds"
    # A later process does not wait again.
    monkeypatch.setattr(hybrid_module, "_results", {})
    monkeypatch.setattr(hybrid_module, "_START", "raise SystemExit('checked again')")
    assert hybrid_module.hybrid_status(ProfilerActivity.CUDA, lambda line: None) == status
