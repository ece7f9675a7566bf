"""Whatever the check of the hybrid engine does, the program records; see tests/gpu/test_hybrid.py for checks on a device."""

import os
import sys
import time
from pathlib import Path

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
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "ended by SIGTERM"),
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


def test_a_check_that_hangs_ends_at_its_limit_which_does_not_count_waits_for_a_processor(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(hybrid_module, "_results", {})
    monkeypatch.setattr(hybrid_module, "_START", "import signal; signal.pause()")
    monkeypatch.setattr(hybrid_module, "PATIENCE_S", 0.05)
    asked = []

    def waited_s(pid):
        # At first as if other programs had all processors for longer than the limit.
        asked.append(pid)
        return 0.1 * min(len(asked), 3)

    monkeypatch.setattr(hybrid_module, "_waited_s", waited_s)
    begin_s = time.monotonic()
    status = hybrid_module.hybrid_status(ProfilerActivity.CUDA, lambda line: None)
    assert not status.available
    assert status.reason == "the check of the hybrid engine did not end within 0 seconds"
    assert time.monotonic() - begin_s >= 0.3 + 0.05
    assert len(asked) > 3


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells no waits")
def test_waits_for_a_processor_are_those_that_the_system_counts():
    before_s, said = hybrid_module._waited_s(os.getpid()), Path("/proc/self/schedstat").read_text()
    assert before_s <= int(said.split()[1]) / 1e9 <= hybrid_module._waited_s(os.getpid())
    assert hybrid_module._waited_s(2**30) == 0.0
