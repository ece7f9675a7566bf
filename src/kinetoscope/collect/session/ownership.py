"""A session belongs to the process that created it; this decides what a forked child process may do with it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kinetoscope.collect.process.user_warnings import warn_user

P = ParamSpec("P")


class _Owned(Protocol):
    _owner: SessionOwner

    def _is_under_way(self) -> bool: ...

    def _reset_in_child(self) -> None: ...


S = TypeVar("S", bound=_Owned)


class SessionOwner:
    """The process that a session belongs to."""

    def __init__(self) -> None:
        """Make the current process the owner."""
        self.process = os.getpid()
        self._warned = False

    def refuses(self, session: _Owned, call: str) -> bool:
        """Whether a method must do nothing, because a forked child calls it on the active session of its parent.

        If the session is not active, the child becomes its owner.
        """
        if self.process == os.getpid():
            return False
        if not session._is_under_way():
            # The parent had no active recording at the fork: the child may use its copy of the session.
            self.process = os.getpid()
            session._reset_in_child()
            return False
        if not self._warned:
            self._warned = True
            warn_user(
                f"{call}() was called in process {os.getpid()}, a fork of process {self.process}, which owns "
                "this session: the call has no effect. Create a session in the child to record it."
            )
        return True


def by_owner(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Make a method do nothing, with a warning, in a forked child of the process that owns the active session."""
    call = method.__name__.strip("_")

    @functools.wraps(method)
    def checked(self: S, *args: P.args, **keywords: P.kwargs) -> None:
        if not self._owner.refuses(self, call):
            method(self, *args, **keywords)

    checked_method: Any = checked
    typed: Callable[Concatenate[S, P], None] = checked_method
    return typed
