"""`nvtxit`: each call of a function as a range for Nsight, and in a recording of ours."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch

from kinetoscope._errors import ArgumentError
from kinetoscope.integrations.pyg.checks import checked_function, checked_whole

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
        called = name if name is not None else getattr(function, "__name__", type(function).__name__)
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


@contextmanager
def _range(text: str) -> Iterator[None]:
    """A range around a block, however it ends."""
    if not torch.cuda.is_available():
        with torch.profiler.record_function(text):
            yield
        return
    _CAPTURE.begin()
    try:
        torch.cuda.nvtx.range_push(text)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()
    finally:
        _CAPTURE.end()


class _Capture:
    """CUDA's profiler, on while at least one range is open in any thread."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._open = 0

    def begin(self) -> None:
        """One more is open."""
        with self._lock:
            if self._open == 0:
                _cudart().cudaProfilerStart()
            self._open += 1

    def end(self) -> None:
        """One is closed."""
        with self._lock:
            self._open -= 1
            if self._open == 0:
                _cudart().cudaProfilerStop()


def _cudart() -> Any:
    """CUDA's runtime as torch reaches it."""
    return torch.cuda.cudart()


_CAPTURE = _Capture()
