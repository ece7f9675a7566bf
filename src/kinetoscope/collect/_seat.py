"""Who records in this process: one session with each engine, for two of one kind would mix their records."""

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


class Seats:
    """Who records in this process now, by the name of the engine."""

    def __init__(self) -> None:
        """Begin empty."""
        self._lock = threading.RLock()
        self._taken: dict[str, tuple[weakref.ref[_KinetoProfile], Engine]] = {}

    def take(self, session: _KinetoProfile, engine: Engine) -> None:
        """Sit down, or raise StateError when somebody else sits there; a session that sits already may stay."""
        with self._lock:
            if self.is_taken_by_another(session, engine.name):
                raise StateError(
                    "another Kinetoscope session is already recording in this process: stop it before starting a "
                    "second one."
                )
            if self._sits(session, engine.name):
                return
            _, abandoned = self._taken.pop(engine.name, (None, None))
            if abandoned is not None:
                # Its session was dropped without stop(): nobody can ask for the recording any more.
                with contextlib.suppress(KinetoscopeError):
                    abandoned.stop().discard()
            self._taken[engine.name] = weakref.ref(session), engine

    def leave(self, session: _KinetoProfile) -> None:
        """Stand up; harmless for a session that does not sit here."""
        # Looked up before: Python 3.12 keeps a lock whose holder is interrupted in a comprehension with a condition.
        own = [name for name in list(self._taken) if self._sits(session, name)]
        with self._lock:
            for name in own:
                self._taken.pop(name, None)

    def is_taken_by_another(self, session: _KinetoProfile, name: str) -> bool:
        """Whether a living session other than this one records with an engine of this name."""
        taken = self._taken.get(name)
        return taken is not None and taken[0]() not in (None, session)

    def is_taken(self, name: str) -> bool:
        """Whether any living session records with an engine of this name."""
        taken = self._taken.get(name)
        return taken is not None and taken[0]() is not None

    def taken_by(self) -> _KinetoProfile | None:
        """The session that records, the first one where there are two; None where there is none."""
        sitting = (session() for session, _ in list(self._taken.values()))
        return next((session for session in sitting if session is not None), None)

    def empty_in_child(self) -> None:
        """Forget the parent's sessions after a fork, with a lock that no thread of the parent can be holding."""
        self.__init__()  # type: ignore[misc]

    def _sits(self, session: _KinetoProfile, name: str) -> bool:
        """Whether this session sits on the seat of that name."""
        return name in self._taken and self._taken[name][0]() is session


SEATS = Seats()
os.register_at_fork(after_in_child=SEATS.empty_in_child)
