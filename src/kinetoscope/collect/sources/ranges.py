"""Record the ranges that a program marks for other tools, through ITT or NVTX, with any engine.

While a session records, torch's Python modules for ITT and NVTX call their library through a wrapper. It calls the library
first, so that the program gets its result or error, and then opens or closes a range like `record_function`. Afterwards the
modules are restored.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from kinetoscope.collect.request.activities import record_function


class LibraryRanges:
    """The open ranges of ITT or NVTX: a stack for each thread, and those that are closed by a handle."""

    def __init__(self) -> None:
        """Start without open ranges."""
        self._reset()

    def _reset(self) -> None:
        # Open ranges do not belong to later recordings; torch closes a range when its last reference is dropped.
        self._of_thread = threading.local()
        self._by_handle: dict[object, Any] = {}

    def forget(self) -> None:
        """Close all open ranges, because their recording has ended."""
        self._reset()

    def open(self, name: object) -> None:
        """Open a range, nested in the thread's open ones."""
        opened = record_function(str(name))
        opened.__enter__()
        self._stack().append(opened)

    def close(self) -> None:
        """Close the thread's innermost range; without one, do nothing, as the libraries do."""
        stack = self._stack()
        if stack:
            stack.pop().__exit__(None, None, None)

    def open_by_handle(self, handle: object, name: object) -> None:
        """Open a range that any thread may close."""
        opened = record_function(str(name))
        opened.__enter__()
        self._by_handle[handle] = opened

    def close_by_handle(self, handle: object) -> None:
        """Close a range that was opened with a handle."""
        opened = self._by_handle.pop(handle, None)
        if opened is not None:
            opened.__exit__(None, None, None)

    def mark(self, name: object) -> None:
        """Record an instant, as an empty range."""
        with record_function(str(name)):
            return

    def _stack(self) -> list[Any]:
        """This thread's open ranges."""
        stack: list[Any] | None = getattr(self._of_thread, "stack", None)
        if stack is None:
            stack = self._of_thread.stack = []
        return stack


ITT, NVTX = LibraryRanges(), LibraryRanges()


class _RecordedLibrary:
    """Wraps a library of ITT or NVTX: forwards all calls, and records the ranges."""

    def __init__(self, library: Any, ranges: LibraryRanges) -> None:
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
        """Look up an attribute of the library; functions for ranges are wrapped."""
        function = getattr(self._library, name)
        if name == "rangeStartA":
            return self._start(function)
        wrap = self._calls.get(name)
        return function if wrap is None else wrap(function)

    @staticmethod
    def _then(ours: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator: the library's function is called, then ours with the same arguments."""

        def wrap(theirs: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                answer = theirs(*arguments, **keywords)
                ours(*arguments, *keywords.values())
                return answer

            return call

        return wrap

    def _start(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the function that opens a range and returns its handle."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            handle = theirs(*arguments, **keywords)
            self._ranges.open_by_handle(handle, *arguments, *keywords.values())
            return handle

        return call


class Routes:
    """Installs the wrappers in torch's modules for ITT and NVTX while a session records or `install` is active."""

    # Module, its variable for the library, and the open ranges.
    _PLACES = (("torch.profiler.itt", "_itt", ITT), ("torch.cuda.nvtx", "_nvtx", NVTX))

    def __init__(self) -> None:
        """Start without wrappers."""
        self._lock = threading.RLock()
        self._sessions: weakref.WeakSet[object] = weakref.WeakSet()
        self._installed = False

    def open(self, session: object) -> None:
        """Record ranges for a session."""
        with self._lock:
            self._sessions.add(session)
            self._apply()

    def close(self, session: object) -> None:
        """Stop recording ranges for a session; does nothing if it did not record."""
        with self._lock:
            if session in self._sessions:
                self._sessions.discard(session)
                if not self._sessions:
                    for _, _, ranges in self._PLACES:
                        ranges.forget()
            self._apply()

    def install(self, installed: bool) -> None:
        """Record ranges permanently, for `install`, or stop doing so."""
        with self._lock:
            self._installed = installed
            self._apply()

    def after_fork(self) -> None:
        """In a forked child: remove the wrappers, and replace the lock, which a thread of the parent may hold."""
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
            if wanted and not isinstance(library, _RecordedLibrary):
                setattr(module, variable, _RecordedLibrary(library, ranges))
            elif not wanted and isinstance(library, _RecordedLibrary):
                setattr(module, variable, library._library)


ROUTES = Routes()
os.register_at_fork(after_in_child=ROUTES.after_fork)
