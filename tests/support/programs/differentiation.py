"""What autograd can do: functions of one's own, higher derivatives, hooks, checkpoints, forward mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.support.programs.catalog import Program, old_interfaces, program


class Cube(torch.autograd.Function):
    """x³ with a backward that can itself be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


class CubeOfCube(torch.autograd.Function):
    """A function that uses another one, and autograd, in its forward and in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, power: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            outer = Cube.apply(Cube.apply(inner)) * power
        ctx.inner, ctx.outer = inner, outer
        return outer.detach(), x + 1

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = torch.autograd.grad(ctx.outer, ctx.inner, first, retain_graph=True)
        return gradient + second, None


@program
def custom_autograd_function() -> Program:
    x = torch.ones(4, requires_grad=True)
    return lambda: Cube.apply(x).sum().backward()


@program
def nested_custom_functions() -> Program:
    x = torch.ones(4, requires_grad=True)

    def run() -> None:
        first, second = CubeOfCube.apply(x, 2)
        (first.sum() + second.sum()).backward()

    return run


@program
def double_backward() -> Program:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(5, 3, requires_grad=True)

    def run() -> None:
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (curve,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
        ((slope.norm(dim=1) - 1).square().mean() + curve.sum()).backward()

    return run


@program
def checkpointing() -> Program:
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = torch.ones(3, 8, requires_grad=True)
    return lambda: checkpoint(block, x, use_reentrant=False).sum().backward()


@program
def checkpointing_reentrant() -> Program:
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = torch.ones(3, 8, requires_grad=True)
    return lambda: checkpoint(block, x, use_reentrant=True).sum().backward()


@program
def nested_checkpoints() -> Program:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.ReLU())
    chain = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    x = torch.ones(3, 4, requires_grad=True)

    def outer(value: torch.Tensor) -> torch.Tensor:
        return checkpoint(inner, checkpoint(inner, value, use_reentrant=False) + 1, use_reentrant=False)

    def run() -> None:
        total = checkpoint(outer, x, use_reentrant=False).sum()
        (total + checkpoint_sequential(chain, 2, x, use_reentrant=False).sum()).backward()

    return run


@program
def hooks() -> Program:
    """Hooks on modules, tensors and gradients, each of which runs operators."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    model[0].register_forward_hook(lambda module, inputs, output: output + 1)
    model[2].register_full_backward_hook(lambda module, into, out: (into[0] * 0.5,))
    model[2].register_full_backward_pre_hook(lambda module, out: (out[0].clone(),))
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    x = torch.randn(3, 4, requires_grad=True)

    def run() -> None:
        hidden = model(x)
        hidden.register_hook(lambda gradient: gradient * 2)
        hidden.retain_grad()
        hidden.sum().backward()

    return run


@program
def saved_tensors_packed() -> Program:
    x = torch.randn(6, requires_grad=True)

    def run() -> None:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda saved: saved.half(), lambda packed: packed.float()
        ):
            loss = torch.sigmoid(x).exp().sum()
        loss.backward()
        with torch.autograd.graph.save_on_cpu():
            x.exp().sum().backward()

    return run


@program
def forward_mode() -> Program:
    weight, direction = torch.randn(3, 4), torch.randn(3, 4)
    x = torch.randn(4)

    def run() -> torch.Tensor:
        with old_interfaces(), forward_ad.dual_level():
            dual = forward_ad.make_dual(weight, direction)
            _, slope = forward_ad.unpack_dual(torch.tanh(dual @ x).sum())
        assert slope is not None
        return slope

    return run


@program
def jacobians_and_hessians() -> Program:
    x = torch.randn(3)

    def curve(value: torch.Tensor) -> torch.Tensor:
        return value.pow(3).sum() * value[0]

    def run() -> None:
        torch.autograd.functional.jacobian(torch.tanh, x)
        torch.autograd.functional.hessian(curve, x)
        torch.autograd.functional.vhp(curve, x, x)

    return run


@program
def backward_with_kept_graph() -> Program:
    x = torch.randn(4, requires_grad=True)
    y = torch.randn(4, requires_grad=True)

    def run() -> None:
        shared = x.exp() * y
        shared.sum().backward(retain_graph=True, inputs=[x])
        torch.autograd.backward([shared.sum(), shared.mean()])
        with torch.no_grad():
            x.sub_(0.01)
        x.grad = y.grad = None
        with torch.autograd.set_detect_anomaly(False):
            torch.autograd.grad(shared.detach().requires_grad_().sin().sum(), [y], allow_unused=True)

    return run
