"""Deep steps: which ones they are, and that a recording has the inputs of these and of no others."""

import os
import sys

import pytest
import torch
from torch import nn

import kinetoscope
from kinetoscope._errors import RecorderError
from kinetoscope.collect.sources.deep_steps import (
    ENOUGH_IN_STEP,
    ENOUGH_OPERATORS,
    FIRST_STEPS,
    LATEST_START,
    LEAST_OPERATORS,
    LEAST_PATIENCE_NS,
    LOOKS,
    MOST_LEVEL,
    MOST_SLICES,
    PATIENCE,
    SLICE_NS,
    DeepSteps,
    is_deep,
)


class Switch:
    """Notes how an engine was switched; between two switches so many operators run."""

    def __init__(self, error=None, operators=LEAST_OPERATORS):
        self.switched = []
        self.error, self.operators = error, operators

    def record_deep(self, deep):
        if self.error is not None:
            raise self.error
        self.switched.append(deep)
        return self.operators * len(self.switched)


def training(steps):
    """Train a small model for some steps."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model.weight.detach().clone()


def deep_steps_of(trace):
    """The numbers of the steps whose operators have shapes, all but those without inputs."""
    spans = trace.columns("spans")
    is_product = spans["name"] == trace.strings.index("aten::addmm")
    steps = trace.column("steps", "number")[spans["step"][is_product]]
    return [number for number, row in zip(steps, spans["shapes"][is_product], strict=True) if row >= 0]


def test_three_steps_then_one_of_each_doubling_then_one_of_64():
    deep = [number for number in range(64 * 40) if is_deep(number)]
    assert deep[:3] == [1, 2, 3]
    strata = [(1 << level, 2 << level) for level in range(2, MOST_LEVEL)]
    strata += [(first, first + 64) for first in range(64, 64 * 40, 64)]
    assert [sum(first <= number < end for number in deep) for first, end in strata] == [1] * len(strata)
    assert len(deep) == 3 + len(strata)
    assert len({number % 64 for number in deep[-30:]}) > 10


def test_steps_of_the_optimizer_are_deep_as_planned():
    with kinetoscope.profile(deep_steps=True) as prof:
        weight = training(40)
    # The first step has slices of time.
    assert set(deep_steps_of(prof.trace)) - {0} == {number for number in range(40) if is_deep(number)}
    assert len(prof.trace.columns("tensor_versions")) > 0
    assert torch.equal(weight, training(40))


def test_marked_steps_are_deep_as_planned():
    schedule = kinetoscope.schedule(wait=1, warmup=1, active=20, repeat=1)
    model = nn.Linear(4, 3)
    with kinetoscope.profile(schedule=schedule, deep_steps=True) as prof:
        for _ in range(22):
            model(torch.ones(2, 4))
            prof.step()
    assert deep_steps_of(prof.trace) == [number + 1 for number in range(21) if is_deep(number)]


def test_another_session_gets_no_shapes():
    with kinetoscope.profile(deep_steps=True) as deep:
        training(2)
        with kinetoscope.profile() as plain:
            training(3)
        training(2)
    assert (plain.trace.column("spans", "shapes") < 0).all()
    assert (deep.trace.column("spans", "shapes") >= 0).any()
    assert len(plain.trace.columns("tensor_versions")) == 0


def test_slices_take_the_place_of_steps_until_there_is_one():
    switch, now = Switch(), [0]
    deep_steps = DeepSteps(switch.record_deep, lambda: now[0])
    deep_steps.start()
    deep_steps.write_to(None)
    try:
        seen = []
        for number in range(70):
            now[0] = number * SLICE_NS
            assert deep_steps.begin_slice() > 0
            seen.append(switch.switched[-1])
        assert seen == [number == 0 or is_deep(number) for number in range(70)]
        deep_steps.begin_step()
        assert switch.switched[-1] is True
        count = len(switch.switched)
        deep_steps.begin_slice()
        assert switch.switched[count:] in ([], [True])
    finally:
        deep_steps.stop()


def test_slices_begin_anew_when_the_program_has_ended_no_step_for_long():
    now = [0]
    deep_steps = DeepSteps(Switch().record_deep, lambda: now[0])
    deep_steps.start()

    def seconds_of_slices(first, count):
        lasts = []
        for number in range(first, first + count):
            lasts.append(deep_steps.begin_slice())
            if lasts[-1] != SLICE_NS / LOOKS / 1e9:
                assert is_deep(number + round(lasts[-1] * 1e9 / SLICE_NS))
                assert not is_deep(number)
            now[0] += SLICE_NS
        return lasts

    from_the_start = seconds_of_slices(0, 40)
    for _ in range(3):
        now[0] += LEAST_PATIENCE_NS
        deep_steps.begin_step()
    patience_ns = PATIENCE * LEAST_PATIENCE_NS
    assert deep_steps.begin_slice() == LEAST_PATIENCE_NS / 1e9
    now[0] += patience_ns
    assert seconds_of_slices(0, 20) == from_the_start[:20]
    deep_steps.begin_step()
    # The next such time goes on where the last one was left.
    now[0] += PATIENCE * (patience_ns + 20 * SLICE_NS)
    assert seconds_of_slices(19, 20) == from_the_start[19:39]


def test_slices_are_counted_once_no_more_modules_are_imported(monkeypatch):
    switch, now = Switch(), [0]
    deep_steps = DeepSteps(switch.record_deep, lambda: now[0])
    first_s = deep_steps.begin_slice()
    for number in range(3):
        now[0] += SLICE_NS
        monkeypatch.setitem(sys.modules, f"imported_{number}", sys)
        assert deep_steps.begin_slice() == first_s
    now[0] += FIRST_STEPS.stop * SLICE_NS
    deep_steps.begin_slice()
    # What is imported later does not begin the count anew.
    monkeypatch.setitem(sys.modules, "imported_later", sys)
    now[0] += LATEST_START * SLICE_NS
    assert deep_steps.begin_slice() != first_s
    assert switch.switched == []


def test_a_slice_lasts_until_the_next_switch():
    switch = Switch()
    now = [10 * SLICE_NS // 2]
    deep_steps = DeepSteps(switch.record_deep, lambda: now[0])
    lasts_ns = round(deep_steps.begin_slice() * 1e9)
    end = (now[0] + lasts_ns) // SLICE_NS
    assert is_deep(end) != is_deep(5)
    assert all(is_deep(number) == is_deep(5) for number in range(5, end))


@pytest.mark.parametrize(("operators", "slices"), [(0, MOST_SLICES), (LEAST_OPERATORS // 6, 7)])
def test_a_slice_with_few_operators_goes_on(operators, slices):
    now, calls = [0], []

    class Engine:
        def record_deep(self, deep):
            calls.append(deep)
            return operators * now[0] // SLICE_NS

    engine = Engine()
    deep_steps = DeepSteps(engine.record_deep, lambda: now[0])
    deep_steps.write_to(None)
    try:
        for number in range(slices):
            now[0] = number * SLICE_NS
            length_ns = deep_steps.begin_slice() * 1e9
            assert calls[-1] is True
            assert length_ns == (SLICE_NS / LOOKS if number == 0 or is_deep(number) else SLICE_NS)
        now[0] = slices * SLICE_NS
        deep_steps.begin_slice()
        assert calls[-1] is is_deep(slices)
    finally:
        deep_steps.stop()


def test_a_failure_is_a_warning_and_ends_it():
    switch = Switch(RecorderError("the disk is full"))
    deep_steps = DeepSteps(switch.record_deep)
    deep_steps.start()
    with pytest.warns(UserWarning, match=r"no more steps are recorded in full: the disk is full"):
        deep_steps.write_to(None)
    switch.error = None
    deep_steps.begin_step()
    deep_steps.stop()
    assert switch.switched == []


def test_a_fork_does_nothing_even_if_the_lock_was_held():
    switch = Switch()
    deep_steps = DeepSteps(switch.record_deep)
    deep_steps.start()
    deep_steps.write_to(None)
    with deep_steps._lock:
        child = os.fork()
        if child == 0:
            deep_steps.begin_step()
            os._exit(0)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        deep_steps.stop()


def test_no_listener_is_left_behind():
    from kinetoscope.collect import OPTIMIZER_STEPS

    before = len(OPTIMIZER_STEPS)
    with kinetoscope.profile(deep_steps=True):
        assert len(OPTIMIZER_STEPS) == before + 1
    assert len(OPTIMIZER_STEPS) == before


class Dense:
    """An engine on which so many operators run in a millisecond."""

    def __init__(self, now, per_ms):
        self.now, self.per_ms, self.deep, self.switched = now, per_ms, False, []

    def record_deep(self, deep):
        if deep != self.deep:
            self.switched.append((self.now[0], deep))
        self.deep = deep
        return self.now[0] // 1_000_000 * self.per_ms


def follow(deep_steps, now, until_ns):
    """Ask for slices as the thread does."""
    while now[0] < until_ns:
        now[0] += max(1_000_000, int(deep_steps.begin_slice() * 1e9))


def test_a_slice_of_very_many_operators_is_recorded_in_full_in_its_first_part():
    now = [0]
    engine = Dense(now, per_ms=ENOUGH_OPERATORS // 5)
    deep_steps = DeepSteps(engine.record_deep, lambda: now[0])
    deep_steps.write_to(None)
    try:
        follow(deep_steps, now, 100 * SLICE_NS)
    finally:
        deep_steps.stop()
    begins = [at for at, deep in engine.switched if deep]
    ends = [at for at, deep in engine.switched if not deep]
    assert len(begins) >= sum(is_deep(number) for number in range(4, 99))
    longest_ns = max(end - begin for begin, end in zip(begins, ends, strict=False))
    assert longest_ns < SLICE_NS


def test_a_step_of_very_many_operators_is_recorded_in_full_in_its_first_part():
    now = [0]
    engine = Dense(now, per_ms=ENOUGH_IN_STEP // 100)
    deep_steps = DeepSteps(engine.record_deep, lambda: now[0])
    deep_steps.start()
    deep_steps.write_to(None)
    try:
        for number in range(3):
            deep_steps.begin_step()
            begin_ns = now[0]
            follow(deep_steps, now, begin_ns + 3 * LEAST_PATIENCE_NS)
            # How long steps are is not known in the first one, which has slices.
            assert number == 0 or (begin_ns + LEAST_PATIENCE_NS, False) in engine.switched
    finally:
        deep_steps.stop()
