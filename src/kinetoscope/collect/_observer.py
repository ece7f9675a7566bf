"""The user's observer beside a recording: open for exactly the time in which the session records."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.collect._arguments import TraceObserver


class ObserverWindow:
    """Starts and stops an observer, each once for each cycle, whichever thread is first."""

    def __init__(self, observer: TraceObserver | None) -> None:
        """Keep the observer, or nothing."""
        self.observer = observer
        self._is_open = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start the observer, unless it runs; its exceptions come out, and then it does not run."""
        if self.observer is None:
            return
        with self._lock:
            if self._is_open:
                return
            # Before the call: an interrupt in the middle of it must find that the observer may be running.
            self._is_open = True
        try:
            self.observer.start()
        except Exception:
            self._is_open = False
            raise

    def close(self) -> BaseException | None:
        """Stop the observer if it runs; return its exception, for the recording must be closed all the same."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if not was_open or self.observer is None:
            return None
        try:
            self.observer.stop()
        except BaseException as error:  # noqa: BLE001  (raised again by whoever closes the recording)
            return error
        return None

    def cleanup(self) -> None:
        """Let the observer finish for good."""
        if self.observer is not None:
            self.observer.cleanup()
