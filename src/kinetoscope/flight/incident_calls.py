"""Functions that are called with each incident: on a thread of their own, as they may take long and the program must not wait."""

from __future__ import annotations

import contextvars
import queue
import threading
from typing import TYPE_CHECKING

from kinetoscope.collect import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_END = "end"
# How long a program that ends waits, in seconds: one that is terminated has little time.
_WAIT_S = {"crash": 30.0, "oom": 30.0, _END: 30.0, "exit": 5.0}


class IncidentCalls:
    """Calls functions with the recordings of incidents."""

    def __init__(self) -> None:
        self._calls: list[tuple[contextvars.Context, Callable[[Path], object]]] = []
        # Of a kind that a signal handler may put to while the thread that it interrupts does.
        self._waiting: queue.SimpleQueue[tuple[Path | None, threading.Event]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, call: Callable[[Path], object]) -> None:
        """Call a function from now on, in the context variables of this caller."""
        self._calls.append((contextvars.copy_context(), call))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kinetoscope-incidents", daemon=True)
            self._thread.start()

    def tell(self, path: Path | None, reason: str) -> None:
        """Have the functions called with a recording, if there is one; wait for them, but not for long, where the program ends."""
        if path is not None:
            self._put(path, reason)

    def finish(self) -> None:
        """End the thread, and wait for what is under way, but not for long."""
        self._put(None, _END)
        self._thread = None

    def _put(self, path: Path | None, reason: str) -> None:
        if self._thread is None or not self._thread.is_alive():
            return
        done = threading.Event()
        self._waiting.put((path, done))
        if reason in _WAIT_S and threading.current_thread() is not self._thread:
            done.wait(_WAIT_S[reason])

    def _run(self) -> None:
        while True:
            path, done = self._waiting.get()
            if path is None:
                done.set()
                return
            for context, call in list(self._calls):
                try:
                    context.run(call, path)
                except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
                    _warn(f"the incident {path} was not passed on: {type(error).__name__}: {error}")
            done.set()


def _warn(text: str) -> None:
    """Warn; where warnings are errors, the thread still must not end."""
    try:
        warn_user(text)
    except Warning:
        return
