"""A session belongs to the process that made it; this decides what a fork of that process may do with it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kinetoscope.collect.process.user_warnings import warn_user

P = ParamSpec("P")


class _Owned(Protocol):
    """The part of a session that ownership needs."""

    _owner: Owner

    def _is_under_way(self) -> bool: ...

    def _reset_in_child(self) -> None: ...


S = TypeVar("S", bound=_Owned)


class Owner:
    """Which process a session belongs to."""

    def __init__(self) -> None:
        """The present process."""
        self.process = os.getpid()
        self._warned = False

    def refuses(self, session: _Owned, call: str) -> bool:
        """Whether a call must do nothing because it comes from a fork while the parent's session is active."""
        if self.process == os.getpid():
            return False
        if not session._is_under_way():
            # Nothing of the parent's is active: the child may use the session as its own, with nothing inherited.
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
    """Make a method do nothing in a fork of the process that owns the session."""
    call = method.__name__.strip("_")

    @functools.wraps(method)
    def checked(self: S, *args: P.args, **keywords: P.kwargs) -> None:
        if not self._owner.refuses(self, call):
            method(self, *args, **keywords)

    checked_method: Any = checked
    found: Callable[Concatenate[S, P], None] = checked_method
    return found
