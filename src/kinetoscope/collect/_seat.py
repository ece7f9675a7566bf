"""The one seat of a recording session in a process: two at a time would mix their records."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING

from kinetoscope._errors import KinetoscopeError, StateError

if TYPE_CHECKING:
    from kinetoscope.collect._engine import Engine
    from kinetoscope.collect._low_level import _KinetoProfile


class Seat:
    """Who records in this process now."""

    def __init__(self) -> None:
        """Begin empty."""
        self._lock = threading.RLock()
        self._session: weakref.ref[_KinetoProfile] | None = None
        self._engine: Engine | None = None

    def take(self, session: _KinetoProfile, engine: Engine) -> None:
        """Sit down, or raise StateError when somebody else sits there; a session that sits already may stay."""
        with self._lock:
            sitting = self.taken_by()
            if sitting is session:
                return
            if sitting is not None:
                raise StateError(
                    "another Kinetoscope session is already recording in this process: stop it before starting a "
                    "second one."
                )
            abandoned, self._engine = self._engine, None
            if abandoned is not None:
                # Its session was dropped without stop(): nobody can ask for the recording any more.
                with contextlib.suppress(KinetoscopeError):
                    abandoned.stop().discard()
            self._session, self._engine = weakref.ref(session), engine

    def leave(self, session: _KinetoProfile) -> None:
        """Stand up; harmless for a session that does not sit here."""
        with self._lock:
            if self.taken_by() is session:
                self._session = self._engine = None

    def taken_by(self) -> _KinetoProfile | None:
        """The session that records, or None."""
        return self._session() if self._session is not None else None

    def empty_in_child(self) -> None:
        """Forget the parent's session after a fork, with a lock that no thread of the parent can be holding."""
        self.__init__()  # type: ignore[misc]


SEAT = Seat()
os.register_at_fork(after_in_child=SEAT.empty_in_child)
