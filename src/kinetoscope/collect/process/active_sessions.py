"""The sessions that record in this process: any number on our recorder, and one on each other engine, because two would mix their
records.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Protocol

from kinetoscope._errors import KinetoscopeError, StateError


class Stopped(Protocol):
    """What an engine leaves behind."""

    def discard(self) -> None:
        """Forget it."""
        ...


class ActiveEngine(Protocol):
    """The part of an engine that matters here."""

    @property
    def name(self) -> str:
        """Which engine it is."""
        ...

    def stop(self) -> Stopped:
        """End its recording."""
        ...


class ActiveSession(Protocol):
    """The part of a session that the rooms below it need."""

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace that records now."""
        ...


class ActiveSessions:
    """The active sessions of this process, each with its engine."""

    def __init__(self) -> None:
        """Begin empty."""
        self._lock = threading.RLock()
        self._sessions: list[tuple[weakref.ref[ActiveSession], ActiveEngine]] = []

    def acquire(self, session: ActiveSession, engine: ActiveEngine) -> None:
        """Make a session active; StateError if another one takes its engine. A second call does nothing."""
        with self._lock:
            self._stop_abandoned()
            if why := self.why_not(session, engine):
                raise StateError(
                    f"another Kinetoscope session is already recording in this process: {why}. Stop it before starting a second "
                    "one."
                )
            if all(found() is not session for found, _ in self._sessions):
                self._sessions.append((weakref.ref(session), engine))

    def release(self, session: ActiveSession) -> None:
        """Make a session inactive; does nothing if it is not active."""
        # Before the lock: Python 3.12 does not release a lock if an interrupt hits a comprehension with a condition.
        own = [one for one in list(self._sessions) if one[0]() is session]
        with self._lock:
            for one in own:
                if one in self._sessions:
                    self._sessions.remove(one)

    def why_not(self, session: ActiveSession, engine: ActiveEngine) -> str:
        """Why a session cannot record with an engine while other sessions are active; empty if it can."""
        others = [other for found, other in list(self._sessions) if found() not in (None, session)]
        same = any(other.name == engine.name for other in others)
        if not same or getattr(engine, "joins_others", False):
            return ""
        return f"the engine {engine.name!r} makes one recording at a time"

    def current(self) -> ActiveSession | None:
        """The active session that began first; None if there is none."""
        active = (found() for found, _ in list(self._sessions))
        return next((session for session in active if session is not None), None)

    def reset_in_child(self) -> None:
        """Forget the parent's sessions after a fork, with a new lock."""
        self.__init__()  # type: ignore[misc]

    def _stop_abandoned(self) -> None:
        """Stop the recordings of sessions that were dropped without stop(): nobody can reach them."""
        for one in list(self._sessions):
            if one[0]() is None:
                self._sessions.remove(one)
                with contextlib.suppress(KinetoscopeError):
                    one[1].stop().discard()


ACTIVE_SESSIONS = ActiveSessions()
os.register_at_fork(after_in_child=ACTIVE_SESSIONS.reset_in_child)
