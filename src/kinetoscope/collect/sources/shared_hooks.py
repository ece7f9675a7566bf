"""Hooks in code that is not ours, installed while at least one session needs them."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Any

from kinetoscope._replacements import Replacements


class SharedHooks(ABC):
    """Replaces what a subclass wants replaced from the first session that opens them to the last that closes them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Weak: if a session is garbage-collected without a stop(), nothing closes the hooks for it.
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replaced = Replacements()
        _LIVING.add(self)

    def open(self, session: object) -> None:
        """Install the hooks for a session, if they are not installed yet."""
        with self._lock:
            first = not self._sessions
            if first:
                self._restore()
            self._sessions.add(session)
            try:
                self._install(first)
            except BaseException:
                self.close(session)
                raise

    def close(self, session: object) -> None:
        """Remove the hooks after the last session; does nothing for one that did not open them."""
        with self._lock:
            self._sessions.discard(session)
            if not self._sessions:
                self._restore()

    def forget_sessions(self) -> None:
        """Remove the hooks: in a forked child, where the sessions are the parent's, one of whose threads may hold the lock."""
        self._lock = threading.RLock()
        self._sessions = weakref.WeakSet()
        self._restore()

    @abstractmethod
    def _install(self, first: bool) -> None:
        """Replace the hooked functions; called for each session, with whether it is the first."""

    def _restore(self) -> None:
        self._replaced.restore()


_LIVING: weakref.WeakSet[SharedHooks] = weakref.WeakSet()


def _forget_sessions() -> None:
    """In a forked child: remove all hooks."""
    for hooks in list(_LIVING):
        hooks.forget_sessions()


os.register_at_fork(after_in_child=_forget_sessions)
