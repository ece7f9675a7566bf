"""Whatever the check of the hybrid engine does, the program records; see tests/gpu/test_hybrid.py for checks on a device."""

import pytest

from kinetoscope import ProfilerActivity
from kinetoscope.collect.engines import hybrid as hybrid_module


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
def test_a_check_that_ends_in_any_way_is_a_reason(program, reason, tmp_path, monkeypatch):
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(hybrid_module, "_results", {})
    monkeypatch.setattr(hybrid_module, "_START", program)
    status = hybrid_module.hybrid_status(ProfilerActivity.CUDA, lambda line: None)
    assert not status.available
    assert reason in status.reason
