"""Operators, tensors and modes that a program adds to torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tests.support.programs.catalog import Program, program


@functools.cache
def custom_operator() -> Any:
    """An operator made with `torch.library.custom_op`, with a derivative."""

    @torch.library.custom_op("kinetoscope_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float, parts: Sequence[int]) -> torch.Tensor:
        return x * factor + len(parts)

    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient * ctx.factor, None, None

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    scaled.register_autograd(backward, setup_context=keep)
    scaled.register_fake(lambda x, factor, parts: torch.empty_like(x))
    return scaled


@functools.cache
def library() -> torch.library.Library:
    """Operators defined with a library of their own: one made of others, one that writes to its argument."""
    made = torch.library.Library("kinetoscope_tests_library", "DEF")
    made.define("root_of_sum(Tensor x, Tensor[] others, *, float plus=0.) -> Tensor")
    made.define("negate_(Tensor(a!) x) -> Tensor(a!)")

    def root_of_sum(x: torch.Tensor, others: list[torch.Tensor], *, plus: float = 0.0) -> torch.Tensor:
        return (x + torch.stack(others).sum(0) + plus).abs().sqrt()

    made.impl("root_of_sum", root_of_sum, "CompositeImplicitAutograd")
    made.impl("negate_", lambda x: x.mul_(-1), "CPU")
    return made


@program
def custom_operators() -> Program:
    scaled = custom_operator()
    x = torch.randn(4, requires_grad=True)
    return lambda: scaled(x, 2.5, [1, 2]).sum().backward()


@program
def operators_of_a_library() -> Program:
    library()
    operators = torch.ops.kinetoscope_tests_library
    x = torch.ones(3, requires_grad=True)

    def run() -> None:
        operators.root_of_sum(x, [torch.ones(3), torch.ones(3)], plus=1.5).sum().backward()
        operators.negate_(torch.ones(2))

    return run


class Counted(torch.Tensor):
    """A tensor that wraps another and passes every operator on to it."""

    @staticmethod
    def __new__(cls, value: torch.Tensor) -> Self:
        made = torch.Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype)
        made.value = value
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Counted, lambda wrapped: wrapped.value, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Counted, func(*args, **kwargs))


@program
def tensor_subclass() -> Program:
    def run() -> None:
        x = Counted(torch.ones(3, 3))
        (torch.relu(x @ x) + 1).sum()

    return run


class Doubling(TorchDispatchMode):
    """Runs every operator twice."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Passing(TorchFunctionMode):
    """Sees every call and passes it on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@program
def dispatch_modes() -> Program:
    x = torch.ones(3)

    def run() -> None:
        with Doubling():
            x.sin().sum()
        with Passing(), torch.device("cpu"):
            torch.zeros(2).cos()

    return run


@program
def meta_and_fake_tensors() -> Program:
    from torch._subclasses.fake_tensor import FakeTensorMode

    layer = torch.nn.Linear(3, 3, device="meta")

    def run() -> None:
        layer(torch.ones(2, 3, device="meta"))
        with FakeTensorMode() as mode:
            mode.from_tensor(torch.ones(2, 2)).mm(torch.ones(2, 2))

    return run
