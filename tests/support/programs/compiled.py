"""Compiled programs: Inductor on the CPU, which needs a C++ compiler, and what runs without it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.utils.checkpoint
from torch import nn

from tests.support.programs.catalog import Program, old_interfaces, program, slow_program, training_step
from tests.support.programs.extensions import custom_operator


@program
def compiled_without_fusion() -> Program:
    """Dynamo and AOTAutograd around operators that run one by one."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(3, 4)
    return lambda: compiled(x).sum().backward()


@slow_program
def compiled_inference() -> Program:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).eval()
    with old_interfaces():
        compiled = torch.compile(model)
    x = torch.randn(4, 8)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return compiled(x)

    return run


@slow_program
def compiled_training() -> Program:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    with old_interfaces():
        compiled = torch.compile(model)
    x = torch.randn(4, 8)
    return training_step(model, lambda: compiled(x).square().mean())


def cut_in_two(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).relu()
    torch._dynamo.graph_break()
    if y.sum() > 0:
        y = y.sin()
    return y.cos()


@program
def compiled_with_graph_breaks() -> Program:
    compiled = torch.compile(cut_in_two, backend="aot_eager")
    x = torch.randn(3, 4, requires_grad=True)

    def run() -> None:
        # Where a graph goes on, the compiler looks at gradients of what is no leaf, and torch warns of that.
        with old_interfaces():
            compiled(x).sum().backward()

    return run


@program
def compiled_while_recorded() -> Program:
    """Each run compiles everything again, for two sizes: the second one makes the size dynamic."""

    def run() -> None:
        torch._dynamo.reset()
        compiled = torch.compile(cut_in_two, backend="aot_eager")
        with old_interfaces():
            for size in (3, 4, 5):
                compiled(torch.randn(size, 4, requires_grad=True)).sum().backward()

    return run


@program
def compiled_by_regions() -> Program:
    """Each block of a model compiled by itself."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(3)))
    for block in model:
        block.compile(backend="aot_eager")
    x = torch.randn(3, 4)
    return training_step(model, lambda: model(x).square().mean())


@program
def compiled_custom_operator() -> Program:
    scaled = custom_operator()
    compiled = torch.compile(lambda x: scaled(x.relu(), 3.0, [1, 2]).sum(), backend="aot_eager")
    x = torch.randn(3, 4, requires_grad=True)
    return lambda: compiled(x).backward()


@program
def compiled_with_checkpoints() -> Program:
    block = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    checkpoint = torch.utils.checkpoint.checkpoint
    compiled = torch.compile(lambda x: checkpoint(block, x, use_reentrant=False).sum(), backend="aot_eager")
    x = torch.randn(3, 4, requires_grad=True)
    return lambda: compiled(x).backward()


@slow_program
def compiled_for_any_size() -> Program:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with old_interfaces():
        compiled = torch.compile(model, dynamic=True)
    inputs = [torch.randn(size, 8) for size in (3, 5, 7)]
    return lambda: [compiled(x).sum().backward() for x in inputs]


@slow_program
def compiled_for_low_overhead() -> Program:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    with old_interfaces():
        compiled = torch.compile(model, mode="reduce-overhead")
    x = torch.randn(4, 8)
    return lambda: compiled(x).sum().backward()


@slow_program
def exported_package() -> Program:
    """A model compiled ahead of time into a package, and loaded from it."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(4, 8)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), old_interfaces():
        exported = torch.export.export(model, (x,))
        path = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(Path(folder) / "model.pt2")
        )
        loaded = torch._inductor.aoti_load_package(path)

    def run() -> object:
        with torch.no_grad():
            return loaded(x)

    return run


@program
def exported_program() -> Program:
    """A model exported as a graph of operators, and called."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    exported = torch.export.export(model, (torch.randn(3, 4),)).module()
    x = torch.randn(3, 4)
    return lambda: exported(x).sum().backward()
