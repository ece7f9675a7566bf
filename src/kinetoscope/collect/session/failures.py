"""Keep exceptions of user callbacks and signals from breaking a recording: they are raised when the session has finished its transition.

Signal handlers are deferred while a recording is prepared, started or stopped. torch's `DataLoader` handles SIGCHLD: the handler raises an
error if a worker has died, at any point of the program. In the middle of `stop()` that would lose the trace of this very failure, and a
KeyboardInterrupt would leave the recorder running. Also, most failures of the recording become warnings, and an exception of the program's
own handlers, such as the TimeoutError of an alarm, must not be taken for one.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Self

from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.options import OnError

# Interrupts first, so that none arrives while the other signals are being deferred.
_SIGNALS = [signal.SIGINT, *(signal.valid_signals() - {signal.SIGINT})]


class DeferredSignals:
    """A context manager that defers signal handlers; on exit, it calls the handler of each signal that arrived, once.

    A second SIGINT is not deferred, so that pressing Ctrl+C twice works. Has no effect outside the main thread, because Python
    calls handlers in the main thread only, and on signals without a Python handler.

    Attributes:
        error: The exception that a deferred handler raised; if several did, a KeyboardInterrupt takes precedence.
    """

    def __init__(self, *, interrupts: bool = True) -> None:
        """With `interrupts=False`, SIGINT is not deferred."""
        self._signals = _SIGNALS if interrupts else _SIGNALS[1:]
        self.error: BaseException | None = None
        self._handlers: dict[int, Any] = {}
        self._deferring = False
        self._arrived: dict[int, tuple[Any, ...]] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._deferring = True
        try:
            for number in self._signals:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._deferring:
            return
        self._restore()
        for number, arguments in self._arrived.items():
            try:
                self._handlers[number](*arguments)
            except BaseException as raised:  # noqa: BLE001  (the caller decides whether it may come out)
                if self.error is None or not isinstance(raised, Exception):
                    self.error = raised
        if error is not None and self.error is not None and not isinstance(self.error, Exception):
            # The block was left by an exception, so the caller cannot check `error`.
            raise self.error

    def _restore(self) -> None:
        for number, handler in reversed(self._handlers.items()):
            # Unless another handler was installed meanwhile, which may call ours.
            if signal.getsignal(number) == self._note:
                signal.signal(number, handler)
        self._deferring = False

    def raise_error(self) -> None:
        """Raise the exception of a deferred handler, if there was one."""
        if self.error is not None:
            raise self.error

    def _note(self, number: int, *rest: Any) -> None:
        if self._deferring and not (number == signal.SIGINT and number in self._arrived):
            self._arrived[number] = (number, *rest)
        else:
            self._handlers[number](number, *rest)


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


@dataclass
class Failures:
    """The failures during one transition of a session.

    Attributes:
        on_error: The option of the session.
        step: The step number in warnings.
    """

    HANDLER: ClassVar = "the handler of a signal"
    OBSERVER: ClassVar = "the execution trace observer"
    on_error: OnError
    step: int
    _stored: list[tuple[str, BaseException]] = field(default_factory=list)

    def note(self, whose: str, error: BaseException | None) -> None:
        """Store an exception, if there is one, for `raise_first`, or warn of it at once if `on_error` is "warn".

        Interrupts and exceptions of the program's signal handlers are always stored.
        """
        if error is None:
            return
        if self.on_error == "raise" or not isinstance(error, Exception) or whose == self.HANDLER:
            self._stored.append((whose, error))
        else:
            warn_user(
                f"{whose} failed at step {self.step}, profiling continues: {type(error).__name__}: {error}"
            )

    def raise_first(self, *, may_raise: bool) -> None:
        """Raise the first stored exception and warn of the others; with `may_raise=False` only an interrupt is raised."""
        raised = None
        for whose, error in self._stored:
            if raised is None and (may_raise or not isinstance(error, Exception)):
                raised = error
            else:
                warn_user(f"{whose} failed: {type(error).__name__}: {error}")
        if raised is not None:
            raise raised
