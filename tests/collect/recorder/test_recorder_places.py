"""Where an operator was called from: its modules, forward and backward, and its Python stack."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from tests.support.programs import Transformer
from tests.support.recorded import functions_of, modules_of, named, profile


def test_modules_of_forward_and_backward() -> None:
    model = Transformer(layers=2)
    tokens = torch.arange(8).view(1, 8)
    with profile() as prof:
        model(tokens).sum().backward()
    trace = prof.trace
    linears = ["layers.0.qkv", "layers.0.out", "layers.0.mlp.1", "layers.0.mlp.3"]
    forward = [*linears, *(name.replace("0", "1", 1) for name in linears), "head"]
    assert modules_of(trace, "aten::addmm") == forward
    assert modules_of(trace, "AddmmBackward0") == forward[::-1]
    assert modules_of(trace, "autograd::engine::evaluate_function: AddmmBackward0") == forward[::-1]
    named_parameters = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    assert set(modules_of(trace, "torch::autograd::AccumulateGrad")) == named_parameters


def test_modules_carry_their_class_and_the_root_its_own() -> None:
    model = Transformer(layers=1)
    with profile() as prof:
        model(torch.arange(4).view(1, 4))
    modules = prof.trace.columns("modules")
    classes = dict(zip(modules["path"], (prof.trace.strings[name] for name in modules["class"]), strict=True))
    assert classes["layers.0"] == "Attention"
    assert classes["Transformer"] == "Transformer"
    assert modules_of(prof.trace, "aten::embedding") == ["embedding"]


def test_recomputed_blocks_keep_their_path() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.block, x, use_reentrant=False)

    model = Checkpointed()
    with profile() as prof:
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert modules_of(prof.trace, "aten::addmm") == ["block.0", "block.0"]
    assert modules_of(prof.trace, "TanhBackward0") == ["block.1"]


def test_a_freed_module_is_not_confused_with_a_later_one_at_its_address() -> None:
    class First(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.neg(x)

    class Second(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.neg(x)

    x = torch.ones(2)
    with profile() as prof:
        for kind in (First, Second) * 20:
            kind()(x)
    classes = [(path or "").partition("#")[0] for path in modules_of(prof.trace, "aten::neg")]
    assert classes == ["First", "Second"] * 20


def test_modules_that_only_another_thread_called_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with profile() as prof:
        thread = threading.Thread(target=model, args=(torch.ones(1, 2),))
        thread.start()
        thread.join()
    assert modules_of(prof.trace, "aten::addmm") == ["0"]


def test_stacks_name_the_calling_functions() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.neg(x)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + inner(x)

    with profile() as prof:
        outer(torch.ones(2))
        inner(torch.ones(2))
    prefix = "test_stacks_name_the_calling_functions.<locals>."
    rows = named(prof.trace, "aten::neg")
    stacks = [functions_of(prof.trace, row) for row in rows]
    assert [stack[:2] for stack in stacks[:2]] == [[prefix + "inner", prefix + "outer"]] * 2
    assert stacks[2][:2] == [prefix + "inner", "test_stacks_name_the_calling_functions"]
    lines = [
        int(prof.trace.column("frames", "line")[prof.trace.column("stacks", "frame")[stack]])
        for stack in prof.trace.column("spans", "stack")[rows]
    ]
    assert set(lines) == {inner.__code__.co_firstlineno + 1}


def test_operators_inside_an_operator_share_its_stack() -> None:
    with profile() as prof:
        nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3))
    stacks = prof.trace.column("spans", "stack")
    (row,) = named(prof.trace, "aten::linear")
    for name in ("aten::t", "aten::mm"):
        (child,) = named(prof.trace, name)
        assert stacks[child] == stacks[row]


def test_generated_code_is_told_apart() -> None:
    x = torch.ones(2)
    with profile() as prof:
        for number in range(50):
            scope: dict[str, Any] = {"torch": torch, "x": x}
            exec(
                compile(f"def made_{number}():\n    return torch.neg(x)\n", f"<made {number}>", "exec"), scope
            )
            scope[f"made_{number}"]()
    rows = named(prof.trace, "aten::neg")
    assert [functions_of(prof.trace, row)[0] for row in rows] == [f"made_{number}" for number in range(50)]


def test_code_at_the_address_of_freed_code_is_distinguished() -> None:
    x = torch.ones(2)
    source = "def made():\n    return torch.neg(x)\n"
    addresses = set()
    with profile() as prof:
        for number in range(300):
            scope: dict[str, Any] = {"torch": torch, "x": x}
            # Names of one length, so that every part of the new code fits where the old one was.
            exec(compile(source.replace("made", f"made_{number:03}"), "<made>", "exec"), scope)
            addresses.add(id(scope[f"made_{number:03}"].__code__))
            scope.pop(f"made_{number:03}")()
            scope.clear()
    assert len(addresses) < 150, "no address was used again: this tests nothing"
    rows = named(prof.trace, "aten::neg")
    assert [functions_of(prof.trace, row)[0] for row in rows] == [
        f"made_{number:03}" for number in range(300)
    ]


def test_code_of_the_same_name_at_the_same_address_has_its_own_lines() -> None:
    x = torch.ones(2)
    expected = [2 + number % 30 for number in range(300)]
    with profile() as prof:
        for line in expected:
            scope: dict[str, Any] = {"torch": torch, "x": x}
            exec("def made():" + "\n" * (line - 1) + "    return torch.neg(x)\n", scope)
            scope.pop("made")()
            scope.clear()
    stacks, frames = prof.trace.columns("stacks"), prof.trace.columns("frames")
    own = prof.trace.column("spans", "stack")[named(prof.trace, "aten::neg")]
    assert frames["line"][stacks["frame"][own]].tolist() == expected


def test_hostile_function_names() -> None:
    names = ['quote" \\ back', "line\nbreak\x00\x1f", "\ud800 lone", "日本語 🦎", "x" * 100_000]
    x = torch.ones(2)

    def call() -> torch.Tensor:
        return torch.neg(x)

    with profile() as prof:
        for name in names:
            renamed = call.__code__.replace(co_name=name, co_qualname=name)
            type(call)(renamed, globals(), None, None, call.__closure__)()
    rows = named(prof.trace, "aten::neg")
    assert [functions_of(prof.trace, row)[0] for row in rows] == names


def test_deep_recursion_keeps_the_innermost_frames() -> None:
    def deep(left: int) -> torch.Tensor:
        return torch.neg(torch.ones(1)) if left == 0 else deep(left - 1)

    with profile() as prof:
        deep(700)
    functions = functions_of(prof.trace, named(prof.trace, "aten::neg")[0])
    assert len(functions) == 512
    assert all("deep" in function for function in functions)
