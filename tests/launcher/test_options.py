"""The options of a launched program: what reaches another process, and what is refused instead."""

import dataclasses
from pathlib import Path

import pytest

from kinetoscope import ArgumentError
from kinetoscope.collect import Move, SessionState
from kinetoscope.collect.request.options import OPTIONS, RecordingOptions
from kinetoscope.launcher.options import LaunchOptions
from tests.support.noting_engine import NotingEngine
from tests.support.option_values import OTHER_VALUES

FIELDS = [field.name for field in dataclasses.fields(RecordingOptions)]


def test_there_is_another_value_of_every_option():
    assert set(OTHER_VALUES) == set(FIELDS)


def options(**recording) -> LaunchOptions:
    return LaunchOptions(prefix=Path("/runs/first"), recording=RecordingOptions(**recording))


@pytest.mark.parametrize("name", FIELDS)
def test_an_option_reaches_another_process_or_is_refused_by_name(name):
    value = OTHER_VALUES[name]()
    assert getattr(RecordingOptions(**{name: value}), name) != getattr(RecordingOptions(), name)
    if OPTIONS[name].stays and name != "engine":
        with pytest.raises(ArgumentError, match=rf"^{name}=.* cannot be .*: {OPTIONS[name].stays}"):
            options(**{name: value}).to_json()
    else:
        made = options(**{name: value})
        assert LaunchOptions.from_json(made.to_json()) == made


def test_all_options_reach_another_process_together():
    made = options(
        **{name: OTHER_VALUES[name]() for name in FIELDS if name == "engine" or not OPTIONS[name].stays}
    )
    assert LaunchOptions.from_json(made.to_json()) == made


def test_an_engine_reaches_another_process_by_its_name_only():
    with pytest.raises(ArgumentError, match="choose an engine by its name"):
        options(engine=NotingEngine()).to_json()


@pytest.mark.parametrize(
    ("steps", "recorded"),
    [
        (None, range(30)),
        ((0, 3), range(3)),
        ((4, 5), range(4, 5)),
        ((7, 20), range(7, 20)),
        ((6, None), range(6, 30)),
    ],
)
def test_the_chosen_steps_are_recorded_under_their_own_numbers(steps, recorded):
    made = LaunchOptions(prefix=Path("/runs/first"), steps=steps)
    assert made.first_step == recorded.start
    state, seen = SessionState.WAITING, []
    for step in range(30):
        if (move := made.move_at(step)) is not None:
            state = state.after(*([Move.PREPARE] if move is Move.START else []), move)
        if state is SessionState.RECORDING:
            seen.append(step)
    assert seen == list(recorded)
