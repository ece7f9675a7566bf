"""How a program ends: an exception that nothing catches, and SIGTERM. What was there before is called as ever."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType


class Endings:
    """Tells of the end of a program before it ends."""

    def __init__(
        self, on_exception: Callable[[BaseException], object] | None, on_exit: Callable[[], object] | None
    ) -> None:
        """Prepare.

        Args:
            on_exception: Called with an exception that ends the program; None: not to be told.
            on_exit: Called on SIGTERM; None: not to be told.
        """
        self._on_exception = on_exception
        self._on_exit = on_exit
        self._process = os.getpid()
        self._hook: Any = None
        self._handler: Any = None

    def watch(self) -> None:
        """Begin to watch; of SIGTERM only where the program does not ignore it, and on the main thread."""
        if self._on_exception is not None:
            self._hook, sys.excepthook = sys.excepthook, self._ends_by_exception
        if self._on_exit is None or threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)
        if before is signal.SIG_IGN or before is None:
            return
        self._handler = before
        signal.signal(signal.SIGTERM, self._ends_by_signal)

    def stop(self) -> None:
        """Watch no longer, where nobody has taken our place meanwhile."""
        if self._hook is not None and sys.excepthook == self._ends_by_exception:
            sys.excepthook = self._hook
        on_main = threading.current_thread() is threading.main_thread()
        if self._handler is not None and on_main and signal.getsignal(signal.SIGTERM) == self._ends_by_signal:
            signal.signal(signal.SIGTERM, self._handler)
        self._on_exception = self._on_exit = None

    def _ends_by_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Tell of an exception, then do what is usual."""
        tell = self._on_exception
        if tell is not None and os.getpid() == self._process and not isinstance(error, KeyboardInterrupt):
            tell(error)
        self._hook(kind, error, trace)

    def _ends_by_signal(self, number: int, frame: FrameType | None) -> None:
        """Tell of SIGTERM, then do what would have been done."""
        tell = self._on_exit
        if tell is not None and os.getpid() == self._process:
            tell()
        if callable(self._handler):
            self._handler(number, frame)
        elif self._handler == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
