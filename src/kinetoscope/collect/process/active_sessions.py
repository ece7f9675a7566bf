"""The sessions that are recording in this process.

Several can share the native recorder. Every other engine records for one session at a time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any

from kinetoscope._errors import KinetoscopeError, StateError


class ActiveSessions:
    """The sessions that are recording in this process, each with its engine."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sessions: list[tuple[weakref.ref[Any], Any]] = []

    def acquire(self, session: Any, engine: Any) -> None:
        """Make a session active, or raise StateError if another one is using its engine. A second call does nothing."""
        with self._lock:
            self._stop_abandoned()
            engines = [other for reference, other in self._sessions if reference() not in (None, session)]
            same = any(other.name == engine.name for other in engines)
            if same and not getattr(engine, "joins_others", False):
                raise StateError(
                    f"another Kinetoscope session is already recording in this process: the engine {engine.name!r} makes one "
                    "recording at a time. Stop it before starting a second one."
                )
            if all(reference() is not session for reference, _ in self._sessions):
                self._sessions.append((weakref.ref(session), engine))

    def release(self, session: Any) -> None:
        """Make a session inactive; does nothing if it is not active."""
        # Before taking the lock: Python 3.12 does not release it if an interrupt comes during a comprehension with a condition.
        entries = [entry for entry in list(self._sessions) if entry[0]() is session]
        with self._lock:
            for entry in entries:
                if entry in self._sessions:
                    self._sessions.remove(entry)

    def current(self) -> Any:
        """Return the active session that was started first, or None."""
        active = (reference() for reference, _ in list(self._sessions))
        return next((session for session in active if session is not None), None)

    def _stop_abandoned(self) -> None:
        """Stop the engines of sessions that were garbage-collected without a call of stop()."""
        for entry in list(self._sessions):
            if entry[0]() is None:
                self._sessions.remove(entry)
                with contextlib.suppress(KinetoscopeError):
                    entry[1].stop().discard()


ACTIVE_SESSIONS = ActiveSessions()
# In a forked child: remove the parent's sessions, and replace the lock.
os.register_at_fork(after_in_child=ACTIVE_SESSIONS.__init__)  # type: ignore[misc]
