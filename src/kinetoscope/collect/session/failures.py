"""Exceptions of the user's code that wait until the session has done its work."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetoscope.collect.session.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kinetoscope.collect.session.options import OnError


@contextmanager
def yielding_to_interrupts(call: str) -> Iterator[bool]:
    """Where an interrupt is on its way out of the program, as in `finally: prof.stop()`, let no error of ours take its place.

    Yields:
        Whether the call may raise; if not, what it raises all the same becomes a warning.
    """
    leaving = sys.exc_info()[1]
    may_raise = leaving is None or isinstance(leaving, Exception)
    try:
        yield may_raise
    except Exception as error:
        if may_raise:
            raise
        warn_user(f"{call} failed: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Closed:
    """What came of closing a recording: whether there was one, and what failed on the way that the user must hear of."""

    recorded: bool = False
    failure: BaseException | None = None
    whose: str = "the execution trace observer"


@dataclass(frozen=True)
class _Failure:
    """One exception, and whose it is."""

    whose: str
    error: BaseException


class Failures:
    """What failed during one transition of a session."""

    def __init__(self, on_error: OnError, step: int) -> None:
        """Begin without any; `step` is told in warnings."""
        self._on_error = on_error
        self._step = step
        self._waiting: list[_Failure] = []

    def note(self, whose: str, error: BaseException) -> None:
        """Keep an exception for the end, or make it a warning where that was asked for; an interrupt is always kept."""
        if self._on_error == "raise" or not isinstance(error, Exception):
            self._waiting.append(_Failure(whose, error))
        else:
            warn_user(
                f"{whose} failed at step {self._step}, profiling goes on: {type(error).__name__}: {error}"
            )

    def let_out(self, *, may_raise: bool) -> None:
        """Raise the first one, and tell of the others; where none may be raised, only an interrupt is."""
        out = next((one for one in self._waiting if may_raise or not isinstance(one.error, Exception)), None)
        for one in self._waiting:
            if one is not out:
                warn_user(f"{one.whose} failed: {type(one.error).__name__}: {one.error}")
        if out is not None:
            raise out.error
