"""Signals that are deferred while a recording is prepared, started or stopped.

torch's `DataLoader` has a handler for the end of a child process that raises an error when a worker has died, wherever the program
happens to be. If that is in the middle of closing a recording, the trace of exactly that failure would be lost. An interrupt
from the keyboard there would leave the recorder running. What a program's own handler raises, such as the TimeoutError of an
alarm, must not be taken for a failure of a recording, of which most are warnings.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


_NAMES = [
    "SIGALRM",
    "SIGCHLD",
    "SIGCONT",
    "SIGHUP",
    "SIGIO",
    "SIGPROF",
    "SIGQUIT",
    "SIGTERM",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
]


class DeferredSignals:
    """Defer the program's signal handlers: on exit each one is called once if its signal arrived.

    A second interrupt is not deferred, so that Ctrl+C pressed twice works. Does nothing outside the main thread, where no
    handler is called, and for signals that the program does not handle.

    Attributes:
        error: What a handler raised when it was called afterwards; an interrupt rather than an error.
    """

    def __init__(self, *, interrupts: bool = True) -> None:
        """Defer nothing yet; without `interrupts`, the one of the keyboard is never deferred."""
        self._names = [*_NAMES, "SIGINT"] if interrupts else _NAMES
        self.error: BaseException | None = None
        self._handlers: dict[int, Any] = {}
        self._holds = False
        self._came: dict[int, tuple[Any, ...]] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._holds = True
        for number in (getattr(signal, name) for name in self._names if hasattr(signal, name)):
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._holds:
            return
        for number, handler in self._handlers.items():
            # Another handler may have been installed meanwhile, which may call this one.
            if signal.getsignal(number) == self._note:
                signal.signal(number, handler)
        self._holds = False
        for number, came in self._came.items():
            try:
                self._handlers[number](*came)
            except BaseException as raised:  # noqa: BLE001  (the caller decides whether it may come out)
                if self.error is None or not isinstance(raised, Exception):
                    self.error = raised
        if error is not None and self.error is not None and not isinstance(self.error, Exception):
            # The caller does not get to read it.
            raise self.error

    def raise_error(self) -> None:
        """Raise what a handler raised, if one did."""
        if self.error is not None:
            raise self.error

    def _note(self, number: int, *rest: Any) -> None:
        """The handler while signals are deferred."""
        if self._holds and not (number == signal.SIGINT and number in self._came):
            self._came[number] = (number, *rest)
        else:
            self._handlers[number](number, *rest)
