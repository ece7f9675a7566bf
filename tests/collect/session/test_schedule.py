import warnings

import pytest
import torch.profiler
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerAction

from kinetoscope.collect import schedule
from kinetoscope.collect.session.schedule import transition
from kinetoscope.collect.session.state import Move

small = st.integers(0, 4)


@given(
    wait=small,
    warmup=st.integers(1, 3),
    active=st.integers(1, 4),
    repeat=small,
    skip=small,
    drop=st.integers(0, 2),
)
def test_every_schedule_is_torchs_schedule(wait, warmup, active, repeat, skip, drop):
    numbers = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip}
    ours = schedule(**numbers, skip_first_wait=drop)
    theirs = torch.profiler.schedule(**numbers, skip_first_wait=drop)
    assert [ours(step) for step in range(60)] == [theirs(step) for step in range(60)]


@given(wait=small, warmup=st.integers(1, 3), skip=small, drop=st.integers(0, 1))
def test_steps_before_recording_is_the_first_recorded_step(wait, warmup, skip, drop):
    made = schedule(wait=wait, warmup=warmup, active=1, skip_first=skip, skip_first_wait=drop)
    actions = [made(step) for step in range(20)]
    assert actions.index(ProfilerAction.RECORD_AND_SAVE) == made.steps_before_recording()


def test_no_warmup_warns_at_the_callers_line():
    with pytest.warns(UserWarning, match="won't be using warmup") as caught:
        schedule(wait=1, warmup=0, active=1)
    assert caught[0].filename == __file__


def test_the_transition_table_is_torchs():
    """torch's table, read from a session of its own, says the same for every pair of actions a schedule can name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    names = {
        "prepare_trace": Move.PREPARE,
        "start_trace": Move.START,
        "stop_trace": Move.STOP,
        "_trace_ready": Move.TRACE_READY,
    }
    actions = [action for action in ProfilerAction if action.name != "DEVICE_STOPPED"]
    for before in actions:
        for after in [*actions, None]:
            expected = theirs.action_map.get((before, after), [])
            done = tuple(names[call.__name__] for call in expected if hasattr(call, "__name__"))
            said = [call.args[0] for call in expected if hasattr(call, "args")]
            change = transition(before, after)
            assert change.do == done, (before, after)
            assert [change.warning] * (change.warning is not None) == said
