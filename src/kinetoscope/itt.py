"""Intel's Instrumentation and Tracing Technology, as `torch.profiler.itt` offers it, with the ranges kept in our traces.

Each call reaches ITT where this torch was built with it, for VTune and the like; in any case it becomes a range of the
trace that is being recorded, as `record_function` makes one.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kinetoscope._errors import ArgumentError
from kinetoscope.collect.sources.ranges import ITT

__all__ = ["is_available", "mark", "range", "range_pop", "range_push"]

_library: Any = getattr(torch._C, "_itt", None)


def is_available() -> bool:
    """Whether ITT itself is there.

    Returns:
        True where this torch was built with ITT. Without it the calls below still mark our traces.
    """
    return _library is not None and bool(_library.is_available())


def range_push(msg: str) -> int | None:
    """Begin a range inside those that this thread has open.

    Args:
        msg: The name of the range.

    Returns:
        What ITT answers, as in torch; None without ITT.

    Raises:
        ArgumentError: The name is no string.
    """
    name = _checked(msg)
    answer: int | None = _library.rangePush(name) if _library is not None else None
    ITT.open(name)
    return answer


def range_pop() -> int | None:
    """End the innermost range of this thread; without one nothing happens, as in torch.

    Returns:
        What ITT answers, as in torch; None without ITT.
    """
    answer: int | None = _library.rangePop() if _library is not None else None
    ITT.close()
    return answer


def mark(msg: str) -> None:
    """Mark an instant.

    Args:
        msg: What happened.

    Raises:
        ArgumentError: The text is no string.
    """
    name = _checked(msg)
    if _library is not None:
        _library.mark(name)
    ITT.mark(name)


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:  # noqa: A001  (torch's name)
    """Mark the body of a `with` block, or each call of a decorated function, as a range.

    Args:
        msg: The name of the range, a format string.
        *args: Passed to `msg.format`.
        **kwargs: Passed to `msg.format`.

    Yields:
        Nothing.

    Raises:
        ArgumentError: The name is no string.
    """
    range_push(_checked(msg).format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()


def _checked(msg: str) -> builtins.str:
    """A name that ITT can take."""
    if not isinstance(msg, str):
        raise ArgumentError(f"itt: msg={msg!r} is not valid: need a string.")
    return msg
