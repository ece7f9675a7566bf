"""Sessions that begin and end within hooks at an optimizer's step, where torch goes through a list of them."""

import pytest

pytest.importorskip("torch", reason="what steps are torch's optimizers")

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import kinetoscope
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS, OptimizerSteps
from tests.support.recorded import profile
from tests.support.trained import names_by_phase


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


def test_listeners_may_be_added_and_removed_during_a_step(optimizer):
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


@pytest.mark.parametrize("modules", [True, False])
def test_what_a_closure_runs_is_forward_and_backward(modules):
    layer = torch.nn.Linear(4, 1)
    x, evaluated = torch.ones(3, 4), []
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=3, tolerance_change=0, tolerance_grad=0)

    def closure():
        optimizer.zero_grad()
        target = torch.full((3, 1), 0.5)
        guess = layer(x) if modules else torch.addmm(layer.bias, x, layer.weight.t())
        loss = torch.nn.functional.mse_loss(guess, target)
        loss.backward()
        evaluated.append(1)
        return loss

    with profile() as prof:
        optimizer.step(closure)
    found = names_by_phase(prof.trace)
    times = len(evaluated)
    assert times > 1
    forward, backward, own = (found[phase] for phase in ("forward", "backward", "optimizer"))
    assert (forward["aten::addmm"], forward["aten::full"], forward["aten::ones_like"]) == (
        times,
        times,
        times,
    )
    assert (backward["AddmmBackward0"], backward["MseLossBackward0"]) == (times, times)
    # The directions that L-BFGS computes from gradients.
    assert own["aten::dot"] == sum(each["aten::dot"] for each in found.values()) > 0
    assert not own.keys() & {"aten::addmm", "aten::mse_loss", "aten::full", "aten::ones_like"}
