"""Optimizers, each in the forms in which it exists: plain loop, foreach, fused, with a closure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.support.programs.catalog import Program, program, training_step


def with_optimizer(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Program:
    """A step of a small model with a certain optimizer."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(4, 6)
    return training_step(model, lambda: model(x).square().mean(), make(model.parameters(), **options))


@program
def sgd_with_momentum() -> Program:
    return with_optimizer(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False)


@program
def adam_foreach() -> Program:
    return with_optimizer(torch.optim.Adam, lr=0.01, foreach=True, amsgrad=True)


@program
def adamw_fused() -> Program:
    return with_optimizer(torch.optim.AdamW, lr=0.01, fused=True)


@program
def sgd_fused() -> Program:
    return with_optimizer(torch.optim.SGD, lr=0.01, momentum=0.9, fused=True)


@program
def adafactor() -> Program:
    return with_optimizer(torch.optim.Adafactor, lr=0.01)


@program
def rarer_optimizers() -> Program:
    makers: list[tuple[Any, dict[str, Any]]] = [
        (torch.optim.RMSprop, {"momentum": 0.9}),
        (torch.optim.Adagrad, {}),
        (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {"foreach": True}),
        (torch.optim.Adamax, {}),
        (torch.optim.ASGD, {}),
        (torch.optim.Rprop, {}),
        (torch.optim.Adadelta, {"foreach": True}),
    ]
    steps = [with_optimizer(make, lr=0.01, **options) for make, options in makers]

    def run() -> None:
        for step in steps:
            step()

    return run


@program
def muon() -> Program:
    weight = nn.Parameter(torch.randn(6, 4))
    # torch has Muon from 2.9 on.
    optimizer = getattr(torch.optim, "Muon", torch.optim.SGD)([weight], lr=0.01)

    def run() -> None:
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()

    return run


@program
def lbfgs_with_closure() -> Program:
    target = torch.linspace(-1, 1, 6)

    def run() -> None:
        # Made anew: how often L-BFGS asks for the loss depends on where it stands.
        weight = nn.Parameter(torch.zeros(6))
        optimizer = torch.optim.LBFGS([weight], max_iter=4, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (torch.sin(weight) - target).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    return run


@program
def sparse_adam() -> Program:
    embedding = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.01)
    index = torch.tensor([1, 5, 1, 7])

    def run() -> None:
        optimizer.zero_grad()
        embedding(index).square().sum().backward()
        optimizer.step()

    return run


@program
def optimizer_in_backward() -> Program:
    """The step of each parameter runs in a hook, as soon as its gradient is there."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    x = torch.randn(3, 4)
    return lambda: model(x).sum().backward()
