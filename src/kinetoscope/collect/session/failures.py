"""Exceptions of user callbacks, which are raised only after the session has finished its transition."""

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
    """Keep a propagating KeyboardInterrupt from being replaced by an error of ours, as in `finally: prof.stop()`.

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
    """The result of closing a recording: whether one was active, and the exception to report to the user."""

    recorded: bool = False
    failure: BaseException | None = None
    whose: str = "the execution trace observer"


# The origin of an exception that a signal handler of the program raised.
HANDLER = "the handler of a signal"


@dataclass(frozen=True)
class _Failure:
    """An exception, and the name of the callback that raised it."""

    whose: str
    error: BaseException


class Failures:
    """The failures during one transition of a session."""

    def __init__(self, on_error: OnError, step: int) -> None:
        """Start with no failures; `step` is the step number in warnings."""
        self._on_error = on_error
        self._step = step
        self._stored: list[_Failure] = []

    def note(self, whose: str, error: BaseException) -> None:
        """Store an exception for `raise_first`, or warn of it at once if `on_error` is "warn".

        Interrupts and exceptions of the program's signal handlers are always stored.
        """
        if self._on_error == "raise" or not isinstance(error, Exception) or whose == HANDLER:
            self._stored.append(_Failure(whose, error))
        else:
            warn_user(
                f"{whose} failed at step {self._step}, profiling continues: {type(error).__name__}: {error}"
            )

    def raise_first(self, *, may_raise: bool) -> None:
        """Raise the first stored exception and warn of the others; with `may_raise=False` only an interrupt is raised."""
        raised = next(
            (entry for entry in self._stored if may_raise or not isinstance(entry.error, Exception)), None
        )
        for entry in self._stored:
            if entry is not raised:
                warn_user(f"{entry.whose} failed: {type(entry.error).__name__}: {entry.error}")
        if raised is not None:
            raise raised.error
