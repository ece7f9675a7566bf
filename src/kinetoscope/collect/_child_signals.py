"""The signal that a child process has ended, held back while a recording is closed.

torch's `DataLoader` has a handler for it that raises an error when a worker has died, wherever the program happens to be. If that
is in the middle of closing a recording, the trace of exactly that failure would be lost.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class ChildSignalsHeld:
    """While this is entered the program's handler is not called; afterwards it is, once, if the signal has come.

    Does nothing outside the main thread, where no handler is called, and where the program has none.

    Attributes:
        error: What the handler raised when it was called afterwards.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.error: Exception | None = None
        self._handler: Any = None
        self._holds = False
        self._came: list[tuple[Any, ...]] = []

    def __enter__(self) -> Self:
        number = getattr(signal, "SIGCHLD", None)
        if number is None or threading.current_thread() is not threading.main_thread():
            return self
        handler = signal.getsignal(number)
        if callable(handler):
            self._handler, self._holds = handler, True
            signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._holds:
            return
        # Somebody may have put another handler there meanwhile, which may call this one.
        if signal.getsignal(signal.SIGCHLD) == self._note:
            signal.signal(signal.SIGCHLD, self._handler)
        self._holds = False
        if self._came:
            try:
                self._handler(*self._came[-1])
            except Exception as raised:  # noqa: BLE001  (the caller decides whether it may come out)
                self.error = raised

    def _note(self, *arguments: Any) -> None:
        """Stand where the handler was."""
        if self._holds:
            self._came.append(arguments)
        else:
            self._handler(*arguments)
