"""Function transforms, higher-order operators, exported graphs, TorchScript."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vjp, vmap

from tests.support.programs.catalog import Program, old_interfaces, program


@program
def function_transforms() -> Program:
    weight, batch = torch.ones(4, 3), torch.ones(6, 3)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(w @ x).sum()

    return lambda: vmap(grad(loss), in_dims=(None, 0))(weight, batch)


@program
def jacobians_by_transform() -> Program:
    x = torch.randn(3)

    def curve(value: torch.Tensor) -> torch.Tensor:
        return value.sin() * value.sum()

    def run() -> None:
        jacrev(curve)(x)
        with old_interfaces():
            # Forward mode loads decompositions that torch still compiles with TorchScript.
            torch.func.jacfwd(curve)(x)
            hessian(lambda value: curve(value).sum())(x)
            jvp(curve, (x,), (x,))
        vjp(curve, x)[1](x)

    return run


@program
def per_sample_gradients() -> Program:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    weights = {name: value.detach() for name, value in model.named_parameters()}
    x = torch.randn(5, 3)

    def loss(chosen: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return functional_call(model, chosen, (sample,)).square().sum()

    return lambda: vmap(grad(loss), (None, 0))(weights, x)


@program
def ensemble() -> Program:
    models = [nn.Linear(3, 2) for _ in range(3)]
    weights, buffers = stack_module_state(models)
    x = torch.randn(4, 3)

    def one(chosen: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(models[0], (chosen, held), (x,))

    return lambda: vmap(one, randomness="different")(weights, buffers).sum().backward()


@program
def exported_graph() -> Program:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()).eval()
    x = torch.randn(1, 1, 6, 6)
    graph = torch.export.export(model, (x,)).module()
    return lambda: graph(x)


@program
def traced_with_fx() -> Program:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(4))
    graph = torch.fx.symbolic_trace(model)
    x = torch.randn(2, 4)
    return lambda: torch.fx.Interpreter(graph).run(x).sum().backward()


@program
def scripted() -> Program:
    def loop(x: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            x = torch.relu(x) + 1
        return x.sum()

    with old_interfaces():
        relu_sum = torch.jit.script(loop)

    x = torch.ones(3, 3)
    return lambda: relu_sum(x, 3)


class Gate(nn.Module):
    """A submodule whose path TorchScript keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1e6:
            return x
        return torch.sigmoid(self.inner(x))


@program
def scripted_module_training() -> Program:
    with old_interfaces():
        model = torch.jit.script(nn.Sequential(Gate(), Gate()))
    x = torch.randn(2, 4)

    def run() -> None:
        with old_interfaces():
            model(x).sum().backward()

    for _ in range(3):
        # The executor compiles a profiled, then an optimised graph.
        run()
    return run


@program
def traced() -> Program:
    with old_interfaces():
        model = torch.jit.freeze(
            torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.ones(2, 4))
        )
    x = torch.randn(2, 4)
    for _ in range(3):
        model(x)
    return lambda: model(x)


@program
def forked_script() -> Program:
    with old_interfaces():

        @torch.jit.script
        def half(x: torch.Tensor) -> torch.Tensor:
            return x.mm(x).relu()

    x = torch.randn(3, 3)

    def run() -> torch.Tensor:
        with old_interfaces():
            waiting = torch.jit.fork(half, x)
            mine = half(x + 1)
            return mine + torch.jit.wait(waiting)

    for _ in range(3):
        run()
    return run


@program
def conditions_and_loops() -> Program:
    """Higher-order operators as they run in eager mode."""
    from torch._higher_order_ops.while_loop import while_loop

    x = torch.randn(4)

    def run() -> None:
        torch.cond(x.sum() > 100, torch.sin, torch.cos, (x,))
        while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 2), (torch.tensor(0), x))

    return run
