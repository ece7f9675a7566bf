"""Runs the user's execution trace observer exactly while the session records."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.collect.request.options import TraceObserver


class ObserverWindow:
    """Starts and stops an observer once for each cycle, from any thread."""

    def __init__(self, observer: TraceObserver | None) -> None:
        """Store the observer, or None."""
        self.observer = observer
        self._is_open = False
        self._is_closing = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start the observer unless it is running; if its `start` raises, it counts as not running."""
        if self.observer is None:
            return
        with self._lock:
            if self._is_open:
                return
            # Set before the call: after an interrupt in the middle of it the observer may be running, and must be stopped.
            self._is_open = True
        try:
            self.observer.start()
        except Exception:
            self._is_open = False
            raise

    def close(self) -> BaseException | None:
        """Stop the observer if it is running; return its exception instead of raising it, so that the recording stops anyway.

        After an interrupt the observer may still be running; then another call stops it.
        """
        observer, closing_here = self.observer, False
        try:
            with self._lock:
                if observer is None or not self._is_open or self._is_closing:
                    return None
                self._is_closing = closing_here = True
            observer.stop()
            self._is_open = False
        except Exception as error:  # noqa: BLE001  (raised again by the caller)
            self._is_open = False
            return error
        except BaseException as error:  # noqa: BLE001  (likewise)
            return error
        finally:
            if closing_here:
                self._is_closing = False
        return None

    def cleanup(self) -> None:
        """Call the observer's `cleanup`."""
        if self.observer is not None:
            self.observer.cleanup()
