"""A session's decisions, read off an engine that notes its calls, and torch's own session beside it."""

import gc
import warnings
import weakref

import pytest
import torch
import torch.profiler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerAction

from kinetoscope import ArgumentError, StateError, profile, schedule
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from tests.support.effort import examples
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

ACTIONS = [ProfilerAction.NONE, ProfilerAction.WARMUP, ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE]


def listed(actions):
    """A schedule that reads its actions from a list and stays with the last one."""
    return lambda step: actions[min(step, len(actions) - 1)]


def run(session, steps):
    with session:
        for _ in range(steps):
            session.step()
    return session


def test_without_a_schedule_one_recording_from_start_to_stop():
    engine = NotingEngine()
    ready = []
    session = run(profile(engine=engine, on_trace_ready=ready.append), 3)
    assert engine.log == ["prepare", "start", "stop"]
    assert ready == [session]
    assert session.step_num == 3


def test_cycles_call_the_handler_once_each():
    engine = NotingEngine()
    seen = []
    run(
        profile(
            engine=engine,
            schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
            on_trace_ready=lambda session: seen.append((session.step_num, session.trace)),
        ),
        12,
    )
    assert engine.log == ["prepare", "start", "stop", "build"] * 2
    assert [step for step, _ in seen] == [4, 8]
    assert seen[0][1] is not seen[1][1]


class TorchLog(torch.profiler.profile):
    """torch's session with its four deeds noted instead of done."""

    def __init__(self, **keywords):
        self.log = []
        super().__init__(**keywords)

    def prepare_trace(self):
        self.log.append("prepare")

    def start_trace(self):
        self.log.append("start")

    def stop_trace(self):
        self.log.append("stop")


@settings(max_examples=examples(200))
@given(actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=8), steps=st.integers(0, 8))
def test_any_schedule_does_what_torch_does(actions, steps):
    outcome = []
    for make in (lambda **k: profile(engine=NotingEngine(), **k), TorchLog):
        ready = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session = make(
                schedule=listed(actions), on_trace_ready=lambda s, ready=ready: ready.append(s.step_num)
            )
            current = []
            with session:
                for _ in range(steps):
                    session.step()
                    current.append(session.current_action)
        said = [str(w.message) for w in caught if "Incorrect schedule" in str(w.message)]
        if isinstance(session, profile):
            # A warm-up that led nowhere is let go, and torch starts an unprepared engine where ours prepares it.
            log = [call for call in session._options.engine.log if call != "discard"]
        else:
            log = session.log
        outcome.append((ready, said, current, [call for call in log if call != "prepare"]))
    assert outcome[0] == outcome[1]
    assert ACTIVE_SESSIONS.current() is None


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_recorded_nothing_says_why(steps):
    session = profile(engine=NotingEngine(), schedule=schedule(wait=3, warmup=1, active=1))
    with pytest.warns(
        UserWarning, match=rf"needs 4 calls to step\(\) before it records; step\(\) was called {steps} time"
    ):
        run(session, steps)
    with pytest.raises(StateError, match="nothing was recorded; the schedule needs 4"):
        _ = session.trace


def test_a_foreign_schedule_that_never_records_says_so():
    session = profile(engine=NotingEngine(), schedule=lambda step: ProfilerAction.NONE)
    with pytest.warns(UserWarning, match="never returned RECORD"):
        run(session, 2)


def test_a_warm_up_without_active_steps_keeps_the_last_cycle():
    engine = NotingEngine()
    session = run(profile(engine=engine, schedule=schedule(wait=0, warmup=1, active=1)), 2)
    assert engine.log == ["prepare", "start", "stop", "prepare", "start", "stop", "discard"]
    assert engine.recordings[0].discarded == 0
    assert session.trace is engine.recordings[0].trace()


def test_the_last_finished_cycle_is_the_trace_and_one_that_nobody_read_is_announced():
    engine = NotingEngine()
    session = profile(engine=engine, schedule=schedule(wait=0, warmup=1, active=1, repeat=3))
    with pytest.warns(UserWarning, match="dropped because the next one ended") as caught:
        run(session, 6)
    assert len(caught) == 1
    assert [recording.discarded for recording in engine.recordings] == [1, 1, 0]
    assert session.trace is engine.recordings[2].trace()


def test_a_trace_that_is_in_use_is_never_discarded():
    engine = NotingEngine()
    held = []
    run(
        profile(
            engine=engine,
            schedule=schedule(wait=0, warmup=1, active=1, repeat=2),
            on_trace_ready=lambda s: held.append(s.trace),
        ),
        4,
    )
    assert [recording.discarded for recording in engine.recordings] == [0, 0]


def test_waiting_session_says_so():
    session = profile(engine=NotingEngine(), schedule=schedule(wait=3, warmup=1, active=1))
    session.start()
    with pytest.raises(StateError, match="the session is waiting; the schedule needs 4"):
        session.events()
    with pytest.warns(UserWarning, match="nothing was recorded"):
        session.stop()


def test_start_twice_is_refused_and_stop_twice_is_harmless():
    session = profile(engine=NotingEngine())
    with pytest.raises(StateError, match=r"nothing to stop: call start\(\) first"):
        session.stop()
    session.start()
    with pytest.raises(StateError, match="already recording"):
        session.start()
    session.stop()
    session.stop()
    session.start()
    with pytest.warns(UserWarning, match="dropped"):
        session.stop()
    assert session._options.engine.log == ["prepare", "start", "stop"] * 2 + ["discard"]


def test_a_nested_session_is_refused_and_the_outer_one_continues():
    outer, inner = profile(engine=NotingEngine()), profile(engine=NotingEngine())
    with outer:
        with pytest.raises(StateError, match="another Kinetoscope session is already recording"):
            inner.start()
        assert ACTIVE_SESSIONS.current() is outer
    with inner:
        assert ACTIVE_SESSIONS.current() is inner


@pytest.mark.usefixtures("native")
def test_an_inner_session_has_the_same_engine_whatever_it_records():
    outer = profile(activities=[torch.profiler.ProfilerActivity.CPU])
    inner = profile(activities=[torch.profiler.ProfilerActivity.CPU], python_calls=True, module_spans=True)
    with outer:
        torch.ones(2).add(1)
        with inner:
            torch.ones(2).mul(2)
        torch.ones(2).sub(1)
    seen = [
        {event.name for event in session.events()} & {"aten::add", "aten::mul", "aten::sub"}
        for session in (outer, inner)
    ]
    assert seen == [{"aten::add", "aten::mul", "aten::sub"}, {"aten::mul"}]
    assert [session.trace.info["engine"] for session in (outer, inner)] == ["native", "native"]


def test_a_session_dropped_without_stop_does_not_block_the_next_one():
    lost = NotingEngine()
    profile(engine=lost).start()
    with profile(engine=NotingEngine()):
        assert lost.log == ["prepare", "start", "stop", "discard"]


def test_step_starts_a_session_that_was_not_started_and_only_counts_after_stop():
    session = profile(engine=NotingEngine(), schedule=schedule(wait=0, warmup=1, active=1, repeat=1))
    for _ in range(5):
        session.step()
    session.stop()
    session.step()
    assert session.step_num == 6
    assert session._options.engine.log == ["prepare", "start", "stop"]


def test_a_schedule_that_returns_nonsense_changes_nothing():
    session = profile(engine=NotingEngine(), schedule=listed([ProfilerAction.RECORD, None]))
    with session:
        with pytest.raises(ArgumentError, match="returned None for step 1"):
            session.step()
        assert session.step_num == 0
        assert session.current_action is ProfilerAction.RECORD


def test_traces_that_nobody_holds_are_freed_where_the_program_collects_no_garbage(monkeypatch):
    monkeypatch.setattr("kinetoscope.collect.session.cycle._SPANS_BETWEEN_COLLECTIONS", 10)
    traces = []

    def keep_a_reference(session):
        session.key_averages()
        traces.append(weakref.ref(session.trace))

    gc.disable()
    try:
        with profile(
            schedule=schedule(wait=0, warmup=1, active=1), on_trace_ready=keep_a_reference
        ) as session:
            for _ in range(12):
                torch.ones(20).add(1).mul(2)
                session.step()
        living = sum(trace() is not None for trace in traces)
    finally:
        gc.enable()
    assert len(traces) == 6
    assert living <= 3
