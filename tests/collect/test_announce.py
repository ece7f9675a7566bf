"""While our recorder runs, torch's compiler is told that a profiler does, and afterwards what it was told before."""

import pytest
import torch

import kinetoscope
from kinetoscope import ProfilerActivity

CPU = [ProfilerActivity.CPU]


def announced():
    return torch.autograd.profiler._is_profiler_enabled


def test_the_sign_is_up_while_a_session_records():
    session = kinetoscope.profile(activities=CPU, engine="native")
    assert not announced()
    with session:
        assert announced()
    assert not announced()


def test_the_sign_stays_up_inside_torchs_profiler():
    with torch.profiler.profile(activities=CPU):
        with kinetoscope.profile(activities=CPU, engine="native"):
            assert announced()
        assert announced()
    assert not announced()


def test_the_sign_is_down_between_the_cycles_of_a_schedule():
    seen = []
    schedule = kinetoscope.schedule(wait=1, warmup=1, active=1, repeat=2)
    with kinetoscope.profile(activities=CPU, engine="native", schedule=schedule) as session:
        for _ in range(6):
            seen.append(announced())
            torch.ones(1)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(session, "on_trace_ready", lambda session: session.trace)
                session.step()
    assert seen == [False, False, True, False, False, True]


def test_the_compiler_writes_its_own_ranges():
    compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
    x = torch.ones(2)
    compiled(x)
    with kinetoscope.profile(activities=CPU, engine="native") as session:
        compiled(x)
    names = [event.name for event in session.events()]
    assert "AOTDispatcher Runtime Wrapper Prologue" in names
    assert any(name.startswith("Torch-Compiled Region") for name in names)
