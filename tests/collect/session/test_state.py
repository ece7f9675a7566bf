"""The table of states, and that every part of a session follows it."""

import itertools

import pytest
from torch.profiler import ProfilerAction

import kinetoscope
from kinetoscope import ProfilerActivity, StateError
from kinetoscope.collect import SessionState
from kinetoscope.collect.session.schedule import transition
from kinetoscope.collect.session.state import TRANSITIONS, Move
from tests.support.noting_engine import NotingEngine

OF_ACTION = {
    ProfilerAction.NONE: SessionState.WAITING,
    ProfilerAction.WARMUP: SessionState.PREPARED,
    ProfilerAction.RECORD: SessionState.RECORDING,
    ProfilerAction.RECORD_AND_SAVE: SessionState.RECORDING,
}


def test_the_table_has_each_state_and_each_move():
    states, moves = zip(*TRANSITIONS, strict=True)
    assert {*states, *TRANSITIONS.values()} == set(SessionState)
    assert set(moves) == set(Move) - {Move.TRACE_READY}


def test_what_the_table_has_not_is_refused():
    possible = set(TRANSITIONS) | {(state, Move.TRACE_READY) for state in SessionState}
    for state, move in itertools.product(SessionState, Move):
        if (state, move) in possible:
            state.after(move)
        else:
            with pytest.raises(StateError, match=f"that is {state.value} cannot {move.value}"):
                state.after(move)


def test_after_stop_and_end_no_state_has_an_engine():
    assert not any(state.after(Move.STOP, Move.END).has_engine for state in SessionState)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(OF_ACTION, OF_ACTION)))
def test_each_change_of_a_schedule_leads_to_the_state_of_its_action(before, after):
    change = transition(before, after)
    reached = OF_ACTION[before].after(*change.do)
    # Torch stops in the middle of a cycle, warns, and leaves the next change to prepare.
    expected = SessionState.WAITING if change.warning else OF_ACTION[after]
    assert reached is expected


@pytest.mark.parametrize("before", OF_ACTION)
def test_the_end_of_a_schedule_ends_the_run(before):
    assert OF_ACTION[before].after(*transition(before, None).do, Move.END) is SessionState.ENDED


def test_a_session_goes_through_the_states_of_its_schedule():
    schedule = kinetoscope.schedule(wait=1, warmup=1, active=2, repeat=1)
    session = kinetoscope.profile(
        engine=NotingEngine(),
        schedule=schedule,
        activities=[ProfilerActivity.CPU],
        on_trace_ready=lambda _: None,
    )
    seen = [session.state]
    with session:
        for _ in range(5):
            seen.append(session.state)
            session.step()
    seen.append(session.state)
    waiting, recording = SessionState.WAITING, SessionState.RECORDING
    assert seen == [
        SessionState.IDLE, waiting, SessionState.PREPARED, recording, recording, waiting, SessionState.ENDED,
    ]  # fmt: skip


def test_without_a_schedule_a_cycle_is_a_run():
    session = kinetoscope.profile(engine=NotingEngine(), activities=[ProfilerActivity.CPU])
    session.prepare_trace()
    assert session.state is SessionState.PREPARED
    session.start_trace()
    assert session.state is SessionState.RECORDING
    session.stop_trace()
    assert session.state is SessionState.ENDED


def test_a_session_that_cannot_begin_has_failed_and_may_be_tried_again():
    class Refusing(NotingEngine):
        refuses = True

        def start(self) -> None:
            if self.refuses:
                raise StateError("not now")
            super().start()

    engine = Refusing()
    session = kinetoscope.profile(engine=engine, activities=[ProfilerActivity.CPU])
    with pytest.raises(StateError, match="not now"):
        session.start()
    assert session.state is SessionState.FAILED
    engine.refuses = False
    session.start()
    assert session.state is SessionState.RECORDING
    session.stop()
    assert session.state is SessionState.ENDED
