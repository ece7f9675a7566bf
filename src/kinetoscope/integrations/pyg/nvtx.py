"""`nvtxit`: each call of a function as a range for Nsight, and in a recording of ours."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ParamSpec, TypeVar

import torch

from kinetoscope._errors import ArgumentError, checked_whole
from kinetoscope.integrations.pyg.checks import checked_function, name_of

P = ParamSpec("P")
R = TypeVar("R")


def nvtxit(
    name: str | None = None, n_warmups: int = 0, n_iters: int | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark each call of a function as a range `name_0`, `name_1` ...

    With CUDA these are NVTX ranges, and CUDA's profiler runs while one of them is open, so that `nsys profile
    --capture-range=cudaProfilerApi` records these calls only. Without, they are `record_function` ranges. A recording of
    ours has either.

    Args:
        name: What the ranges are called; None takes the name of the function.
        n_warmups: How many calls come before the first that is marked; they count in the numbers.
        n_iters: How many calls are marked; None marks all.

    Returns:
        The decorator.

    Raises:
        ArgumentError: An argument has a value that cannot be used.
    """
    if name is not None and not isinstance(name, str):
        hint = " Write `@nvtxit()` with brackets." if callable(name) else ""
        raise ArgumentError(f"name={name!r} is not valid: need a text or None.{hint}")
    checked_whole("n_warmups", n_warmups, 0)
    end = None if n_iters is None else n_warmups + checked_whole("n_iters", n_iters, 0)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        checked_function(function, "nvtxit()")
        called = name if name is not None else name_of(function)
        numbers = itertools.count()

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            number = next(numbers)
            if number < n_warmups or (end is not None and number >= end):
                return function(*args, **kwargs)
            with _range(f"{called}_{number}"):
                return function(*args, **kwargs)

        return call

    return decorate


def _range(text: str) -> AbstractContextManager[object]:
    """A range around a block, however it ends."""
    return _cuda_range(text) if torch.cuda.is_available() else torch.profiler.record_function(text)


_lock = threading.Lock()
_open_ranges = 0


@contextmanager
def _cuda_range(text: str) -> Iterator[None]:
    """A range of NVTX. CUDA's profiler is on while at least one is open in any thread."""
    global _open_ranges
    with _lock:
        if _open_ranges == 0:
            torch.cuda.cudart().cudaProfilerStart()
        _open_ranges += 1
    try:
        with torch.cuda.nvtx.range("{}", text):
            yield
    finally:
        with _lock:
            _open_ranges -= 1
            if _open_ranges == 0:
                torch.cuda.cudart().cudaProfilerStop()
