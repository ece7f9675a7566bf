"""`timeit`: how long a block or a function takes, the accelerator's work included; `benchmark`: several functions, as a table of seconds."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import track
from torch.utils._pytree import tree_leaves, tree_map_only

from kinetoscope._errors import ArgumentError, StateError, checked_whole
from kinetoscope.integrations.pyg.checks import (
    checked_function,
    name_of,
    synchronize,
    timed,
)


class timeit(ContextDecorator):  # noqa: N801  (PyG's name)
    """Times a `with` block, or each call of the function it decorates.

    The accelerator, if one is in use, is waited for at both ends. Blocks of one `timeit` may lie in each other and run in
    several threads; `duration` is that of the one that ended last.

    Args:
        log: Print `Time: ...s` at the end of each.
        avg_time_divisor: Divide the time by this number, such as the number of rounds of a loop; 0 and 1 do not divide.

    Attributes:
        duration: How long the last block took, in seconds; there is none before the first has ended.

    Raises:
        ArgumentError: `avg_time_divisor` is no number from 0 on.
    """

    duration: float
    _clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, log: bool = True, avg_time_divisor: int = 0) -> None:
        untyped: Any = avg_time_divisor
        if isinstance(untyped, bool) or not isinstance(untyped, int | float) or not untyped >= 0:
            raise ArgumentError(f"avg_time_divisor={avg_time_divisor!r} is not valid: need a number >= 0.")
        if callable(log):
            raise ArgumentError("@timeit is used without parentheses: write `@timeit()`.")
        self.log = log
        self.avg_time_divisor = avg_time_divisor
        self._of_thread = _Starts()

    def __call__(self, func: Any) -> Any:
        """Time every call of a function.

        Raises:
            ArgumentError: It is no function, or one whose call returns before it has run.
        """
        checked_function(func, "timeit()")
        return super().__call__(func)

    def __enter__(self) -> Self:
        synchronize()
        self._of_thread.open.append(self._clock())
        return self

    def __exit__(self, *_error: object) -> None:
        starts = self._of_thread
        starts.ended = [starts.open.pop()]
        self._end(starts.ended[-1])

    def reset(self) -> None:
        """Set `duration` to the time so far, print it, and restart.

        After the end of a block the time is that since its beginning.

        Raises:
            StateError: No block was begun in this thread.
        """
        starts = self._of_thread
        begun = starts.open or starts.ended
        if not begun:
            raise StateError("this timer was not started: call reset() in or after its `with` block.")
        self._end(begun[-1])
        begun[-1] = self._clock()

    def _end(self, start: float) -> None:
        synchronize()
        self.duration = self._clock() - start
        if self.avg_time_divisor > 1:
            self.duration /= self.avg_time_divisor
        if self.log:
            print(f"Time: {self.duration:.8f}s", flush=True)


class _Starts(threading.local):
    """When the blocks of one thread were begun: those that are open, and the one that ended last."""

    def __init__(self) -> None:
        self.open: list[float] = []
        self.ended: list[float] = []


def benchmark(
    funcs: Sequence[Callable[..., Any]],
    args: Any,
    num_steps: int,
    func_names: Sequence[str] | None = None,
    num_warmups: int = 10,
    backward: bool = False,
    per_step: bool = False,
    progress_bar: bool = False,
) -> None:
    """Print how long functions take.

    The accelerator, if one is in use, is waited for around each measured call. Tensors among the arguments are detached
    first, so that no graph grows from step to step.

    Args:
        funcs: The functions, or modules.
        args: A tuple of arguments for all functions; or a list with a tuple for each. In the place of a tuple there may
            be a function that makes one for every step; what it takes is not measured.
        num_steps: How many calls are measured.
        func_names: What the functions are called in the table; None takes their own names.
        num_warmups: How many calls come before, unmeasured.
        backward: Also measure the backward of what each call returns; arguments of floating point get gradients.
        per_step: Print the seconds of one step, not of all.
        progress_bar: Show on the standard error which function is being measured.

    Raises:
        ArgumentError: A number is below 1, lengths do not fit, or with `backward` a function returns nothing that
            depends on its arguments or parameters.
    """
    checked_whole("num_steps", num_steps, 1)
    checked_whole("num_warmups", num_warmups, 1)
    functions = list(funcs)
    for function in functions:
        if not callable(function):
            raise ArgumentError(f"funcs holds {function!r}, which cannot be called.")
    # A partial function has no name of its own.
    named = (getattr(function, "func", function) for function in functions)
    names = [name_of(function) for function in named] if func_names is None else list(func_names)
    if len(names) != len(functions):
        raise ArgumentError(f"func_names has {len(names)} names for {len(functions)} functions.")
    of_each = list(args) if isinstance(args, list) else [args] * len(functions)
    if len(of_each) != len(functions):
        raise ArgumentError(
            f"args is a list of {len(of_each)} for {len(functions)} functions: give one tuple for each, or a tuple for all."
        )
    rows: list[list[str]] = []
    measured = list(zip(functions, of_each, names, strict=True))
    tracked = track(measured, "Measuring", console=Console(stderr=True), disable=not progress_bar)
    for function, inputs, name in tracked:
        seconds = _measured(function, inputs, name, num_steps, num_warmups, backward)
        numbers = [*seconds, sum(seconds)] if backward else seconds
        rows.append([name, *(f"{n / num_steps:.6f}s" if per_step else f"{n:.4f}s" for n in numbers)])
    header = ["Name", "Forward", *(["Backward", "Total"] if backward else [])]
    print(_table(header, rows))


def _measured(
    function: Callable[..., Any], inputs: Any, name: str, steps: int, warmups: int, backward: bool
) -> list[float]:
    forward_s = backward_s = 0.0
    for step in range(warmups + steps):
        arguments = _detached(inputs() if callable(inputs) else inputs, backward)
        result, took_forward = timed(functools.partial(function, *arguments))
        took_backward = 0.0
        if backward:
            target = _target(result, name)
            # Ones and not random numbers: the program's own random numbers stay what they would be.
            _, took_backward = timed(functools.partial(target.backward, torch.ones_like(target)))
        if step >= warmups:
            forward_s += took_forward
            backward_s += took_backward
    return [forward_s, backward_s] if backward else [forward_s]


def _detached(arguments: Any, requires_grad: bool) -> Any:
    """The same arguments with tensors that begin a graph of their own."""

    def detached(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided and (tensor.is_floating_point() or tensor.is_complex()):
            return tensor.detach().requires_grad_(requires_grad)
        return tensor

    return tree_map_only(torch.Tensor, detached, arguments)


def _target(result: Any, name: str) -> torch.Tensor:
    """What backward begins from: the result, or the sum of the sums of the tensors in it."""
    if isinstance(result, torch.Tensor):
        tensors = [result]
    else:
        tensors = [leaf.sum() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    tensors = [tensor for tensor in tensors if tensor.requires_grad]
    if not tensors:
        raise ArgumentError(
            f"backward=True, and {name!r} returns nothing that has a gradient: it must return a tensor, or tensors in a "
            "tuple, list or dict, that depend on floating-point arguments or on parameters."
        )
    return functools.reduce(torch.add, tensors)


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Lines as `psql` draws them, with columns at least two characters wider than their names."""
    widths = [max([len(name) + 2, *(len(row[column]) for row in rows)]) for column, name in enumerate(header)]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "+".join("-" * (width + 2) for width in widths)
    return "\n".join([f"+{rule}+", line(header), f"|{rule}|", *map(line, rows), f"+{rule}+"])
