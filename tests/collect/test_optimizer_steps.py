"""Sessions that begin and end within hooks at an optimizer's step, where torch goes through a list of them."""

import pytest

pytest.importorskip("torch", reason="what steps are torch's optimizers")

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import kinetoscope
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS, OptimizerSteps
from tests.support.recorded import profile


@pytest.fixture
def optimizer():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return torch.optim.SGD([parameter], lr=0.1)


def test_a_session_of_memory_steps_within_a_hook_that_others_follow(optimizer):
    schedule = kinetoscope.schedule(wait=1, warmup=1, active=2, repeat=1)
    prof = profile(profile_memory=True, schedule=schedule)
    called = []
    hooks = [
        register_optimizer_step_post_hook(lambda *_: prof.step()),
        register_optimizer_step_post_hook(lambda *_: called.append("after")),
    ]
    try:
        with prof:
            for _ in range(6):
                optimizer.step()
    finally:
        for hook in hooks:
            hook.remove()
    assert len(called) == 6
    assert prof.trace.table("steps").column("number").to_pylist() == [2, 3]
    assert len(OPTIMIZER_STEPS) == 0


def test_those_who_are_told_may_come_and_go_within_a_step(optimizer):
    steps = OptimizerSteps()
    told = []

    def first(*_):
        told.append("first")
        steps.forget(first)
        steps.after(second)

    def second(stepped, *_):
        told.append(stepped is optimizer)

    steps.before(lambda *_: told.append("before"))
    steps.after(first)
    optimizer.step()
    optimizer.step()
    steps.forget(second)
    optimizer.step()
    assert told == ["before", "first", "before", True, "before"]
    assert len(steps) == 1
