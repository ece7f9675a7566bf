"""Exceptions of user callbacks, raised only after the session has finished its own work."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetoscope.collect.process.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kinetoscope.collect.request.options import OnError


@contextmanager
def yielding_to_interrupts(call: str) -> Iterator[bool]:
    """While an interrupt propagates, as in `finally: prof.stop()`, do not replace it by an error of ours.

    Yields:
        Whether the call may raise; if not, its exception becomes a warning.
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
    """The result of closing a recording: whether there was one, and which failure to report to the user."""

    recorded: bool = False
    failure: BaseException | None = None
    whose: str = "the execution trace observer"


# Whose failure the exception of a program's signal handler is.
HANDLER = "the handler of a signal"


@dataclass(frozen=True)
class _Failure:
    """An exception, and which callback raised it."""

    whose: str
    error: BaseException


class Failures:
    """What failed during one transition of a session."""

    def __init__(self, on_error: OnError, step: int) -> None:
        """Begin without any; `step` appears in warnings."""
        self._on_error = on_error
        self._step = step
        self._waiting: list[_Failure] = []

    def note(self, whose: str, error: BaseException) -> None:
        """Store an exception until the end, or make it a warning if `on_error` says so; interrupts are always stored.

        So is what a handler of a signal raised, which is the program's own affair.
        """
        if self._on_error == "raise" or not isinstance(error, Exception) or whose == HANDLER:
            self._waiting.append(_Failure(whose, error))
        else:
            warn_user(
                f"{whose} failed at step {self._step}, profiling continues: {type(error).__name__}: {error}"
            )

    def raise_first(self, *, may_raise: bool) -> None:
        """Raise the first exception and warn of the others; if none may be raised, raise interrupts only."""
        out = next((one for one in self._waiting if may_raise or not isinstance(one.error, Exception)), None)
        for one in self._waiting:
            if one is not out:
                warn_user(f"{one.whose} failed: {type(one.error).__name__}: {one.error}")
        if out is not None:
            raise out.error
