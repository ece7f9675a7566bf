"""Compiled programs: Inductor on the CPU, which needs a C++ compiler, and what runs without it."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.programs.catalog import Program, old_interfaces, program, slow_program, training_step


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
