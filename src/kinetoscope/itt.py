"""A replacement for `torch.profiler.itt` (Intel's Instrumentation and Tracing Technology) that also records ranges in traces.

If torch was built with ITT, each call is passed on to it, for VTune and other tools. In any case it becomes a range in the
trace that is being recorded, as with `record_function`.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kinetoscope._errors import ArgumentError
from kinetoscope.collect import ITT

__all__ = ["is_available", "mark", "range", "range_pop", "range_push"]

_library: Any = getattr(torch._C, "_itt", None)


def is_available() -> bool:
    """Return whether torch was built with ITT. The functions below add ranges to traces in any case."""
    return _library is not None and bool(_library.is_available())


def range_push(msg: str) -> int | None:
    """Begin a range, nested in the open ranges of this thread.

    Args:
        msg: The name of the range.

    Returns:
        ITT's result, as in torch; None without ITT.

    Raises:
        ArgumentError: `msg` is not a string.
    """
    name = _checked(msg)
    result: int | None = _library.rangePush(name) if _library is not None else None
    ITT.open(name)
    return result


def range_pop() -> int | None:
    """End the innermost range of this thread; do nothing without one, as in torch.

    Returns:
        ITT's result, as in torch; None without ITT.
    """
    result: int | None = _library.rangePop() if _library is not None else None
    ITT.close()
    return result


def mark(msg: str) -> None:
    """Mark an instant.

    Args:
        msg: The name of the instant.

    Raises:
        ArgumentError: `msg` is not a string.
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
        ArgumentError: `msg` is not a string.
    """
    range_push(_checked(msg).format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()


def _checked(msg: str) -> builtins.str:
    """Return a name; raise ArgumentError if it is not a string."""
    if not isinstance(msg, str):
        raise ArgumentError(f"itt: msg={msg!r} is not valid: need a string.")
    return msg
