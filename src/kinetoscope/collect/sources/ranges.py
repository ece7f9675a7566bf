"""Ranges that a program marks for other tools, through ITT or NVTX; recorded with every engine.

While a session records, torch's Python modules for them reach their library through a wrapper of ours. It calls the library
first, so that the program gets the library's result or error; then it opens or closes a range like `record_function`.
Afterwards the modules are exactly as before.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from kinetoscope.collect.request.activities import record_function


class Ranges:
    """The open ranges of each thread, as a stack, and those that are closed by a handle."""

    def __init__(self) -> None:
        """Begin without any."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        # Open ranges do not belong to later recordings; torch ends a range when its last reference goes.
        self._of_thread = threading.local()
        self._by_handle: dict[object, Any] = {}

    def forget(self) -> None:
        """Drop the open ranges, because their recording is over."""
        self._begin_anew()

    def open(self, name: object) -> None:
        """Open a range inside the thread's open ones."""
        opened = record_function(str(name))
        opened.__enter__()
        self._stack().append(opened)

    def close(self) -> None:
        """Close the thread's innermost range; without one do nothing, as the libraries do."""
        stack = self._stack()
        if stack:
            stack.pop().__exit__(None, None, None)

    def open_by_handle(self, handle: object, name: object) -> None:
        """Begin a range that any thread may end."""
        opened = record_function(str(name))
        opened.__enter__()
        self._by_handle[handle] = opened

    def close_by_handle(self, handle: object) -> None:
        """End a range that was begun with a handle."""
        opened = self._by_handle.pop(handle, None)
        if opened is not None:
            opened.__exit__(None, None, None)

    def mark(self, name: object) -> None:
        """Record an instant as an empty range."""
        with record_function(str(name)):
            return

    def _stack(self) -> list[Any]:
        """This thread's open ranges."""
        stack: list[Any] | None = getattr(self._of_thread, "stack", None)
        if stack is None:
            stack = self._of_thread.stack = []
        return stack


ITT, NVTX = Ranges(), Ranges()


class _Shim:
    """Wraps a library: the same calls and results, and ranges are recorded too."""

    def __init__(self, library: Any, ranges: Ranges) -> None:
        """Wrap `library`."""
        self._library = library
        self._ranges = ranges
        self._calls = {
            "rangePush": self._then(ranges.open),
            "rangePushA": self._then(ranges.open),
            "rangePop": self._then(lambda *_: ranges.close()),
            "mark": self._then(ranges.mark),
            "markA": self._then(ranges.mark),
            "rangeEnd": self._then(ranges.close_by_handle),
        }

    def __getattr__(self, name: str) -> Any:
        """The library's attribute of this name; range calls are followed by our own."""
        found = getattr(self._library, name)
        if name == "rangeStartA":
            return self._start(found)
        wrap = self._calls.get(name)
        return found if wrap is None else wrap(found)

    @staticmethod
    def _then(ours: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A wrapper that calls the library's function, then ours with the same arguments."""

        def wrap(theirs: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                answer = theirs(*arguments, **keywords)
                ours(*arguments, *keywords.values())
                return answer

            return call

        return wrap

    def _start(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        """The call that returns a handle."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            handle = theirs(*arguments, **keywords)
            self._ranges.open_by_handle(handle, *arguments, *keywords.values())
            return handle

        return call


class Routes:
    """Routes torch's ITT and NVTX calls through our wrappers while a session records or `install` is active."""

    # Module, its variable for the library, and the ranges that are kept.
    _PLACES = (("torch.profiler.itt", "_itt", ITT), ("torch.cuda.nvtx", "_nvtx", NVTX))

    def __init__(self) -> None:
        """Begin with torch as it is."""
        self._lock = threading.RLock()
        self._sessions: weakref.WeakSet[object] = weakref.WeakSet()
        self._installed = False

    def open(self, session: object) -> None:
        """Record ranges while a session records."""
        with self._lock:
            self._sessions.add(session)
            self._apply()

    def close(self, session: object) -> None:
        """The session has stopped; does nothing for one that did not record."""
        with self._lock:
            if session in self._sessions:
                self._sessions.discard(session)
                if not self._sessions:
                    for _, _, ranges in self._PLACES:
                        ranges.forget()
            self._apply()

    def install(self, installed: bool) -> None:
        """Record ranges permanently, or no longer."""
        with self._lock:
            self._installed = installed
            self._apply()

    def after_fork(self) -> None:
        """The parent's session does not record this process; replace the lock, which a thread of the parent may hold."""
        self._lock = threading.RLock()
        self._sessions = weakref.WeakSet()
        self._apply()

    def _apply(self) -> None:
        """Install or remove the wrappers where needed."""
        wanted = self._installed or len(self._sessions) > 0
        for name, variable, ranges in self._PLACES:
            module = sys.modules.get(name)
            library = getattr(module, variable, None)
            if library is None:
                continue
            if wanted and not isinstance(library, _Shim):
                setattr(module, variable, _Shim(library, ranges))
            elif not wanted and isinstance(library, _Shim):
                setattr(module, variable, library._library)


ROUTES = Routes()
os.register_at_fork(after_in_child=ROUTES.after_fork)
