"""Record the ranges that a program marks for other tools, through ITT or NVTX, with any engine.

While a session records, torch's Python modules for ITT and NVTX call their library through a wrapper. It calls the library
first, so that the program gets its result or error, and then opens or closes a range like `record_function`. Afterwards the
modules are restored.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from kinetoscope.collect.request.activities import record_function
from kinetoscope.collect.sources.shared_hooks import SharedHooks


class LibraryRanges:
    """The open ranges of ITT or NVTX: a stack for each thread, and those that are closed by a handle."""

    def __init__(self) -> None:
        """Start without open ranges."""
        self.forget()

    def forget(self) -> None:
        """Close all open ranges, because their recording has ended; torch closes a range when its last reference is dropped."""
        self._of_thread = threading.local()
        self._by_handle: dict[object, Any] = {}

    @property
    def _stack(self) -> list[Any]:
        stack: list[Any] = vars(self._of_thread).setdefault("stack", [])
        return stack

    def open(self, name: object) -> None:
        """Open a range, nested in the thread's open ones."""
        self._stack.append(record_function(str(name)).__enter__())

    def close(self) -> None:
        """Close the thread's innermost range; without one, do nothing, as the libraries do."""
        if stack := self._stack:
            stack.pop().__exit__(None, None, None)

    def open_by_handle(self, handle: object, name: object) -> None:
        """Open a range that any thread may close."""
        self._by_handle[handle] = record_function(str(name)).__enter__()

    def close_by_handle(self, handle: object) -> None:
        """Close a range that was opened with a handle."""
        opened = self._by_handle.pop(handle, None)
        if opened is not None:
            opened.__exit__(None, None, None)

    def mark(self, name: object) -> None:
        """Record an instant, as an empty range."""
        with record_function(str(name)):
            return


ITT, NVTX = LibraryRanges(), LibraryRanges()


class _RecordedLibrary:
    """Wraps a library of ITT or NVTX: forwards all calls, and records the ranges."""

    def __init__(self, library: Any, ranges: LibraryRanges) -> None:
        self._library = library
        # Functions that are called after a function of the library, with its result and arguments.
        self._then: dict[str, Callable[..., None]] = {
            "rangePush": lambda _, name: ranges.open(name),
            "rangePushA": lambda _, name: ranges.open(name),
            "rangePop": lambda _: ranges.close(),
            "mark": lambda _, name: ranges.mark(name),
            "markA": lambda _, name: ranges.mark(name),
            "rangeStartA": ranges.open_by_handle,
            "rangeEnd": lambda _, handle: ranges.close_by_handle(handle),
        }

    def __getattr__(self, name: str) -> Any:
        """Look up an attribute of the library; functions for ranges are wrapped."""
        theirs, ours = getattr(self._library, name), self._then.get(name)
        if ours is None:
            return theirs

        def call(*arguments: Any, **keywords: Any) -> Any:
            answer = theirs(*arguments, **keywords)
            ours(answer, *arguments, *keywords.values())
            return answer

        return call


class Routes(SharedHooks):
    """Installs the wrappers in torch's modules for ITT and NVTX while a session records or `install` is active.

    For `install`, this object itself is one of the sessions.
    """

    # Module, its variable for the library, and the open ranges.
    _PLACES = (("torch.profiler.itt", "_itt", ITT), ("torch.cuda.nvtx", "_nvtx", NVTX))

    def install(self, installed: bool) -> None:
        """Record ranges permanently, for `install`, or stop doing so."""
        (super().open if installed else super().close)(self)

    def close(self, session: object) -> None:
        """Stop recording ranges for a session; does nothing if it did not record."""
        with self._lock:
            if session in self._sessions:
                super().close(session)
                if self._sessions <= {self}:
                    for _, _, ranges in self._PLACES:
                        ranges.forget()

    def forget_sessions(self) -> None:
        """In a forked child: remove the wrappers, unless they are permanent."""
        installed = self in self._sessions
        super().forget_sessions()
        if installed:
            self.install(True)

    def _install(self, first: bool) -> None:
        for name, variable, ranges in self._PLACES:
            module = sys.modules.get(name)
            library = getattr(module, variable, None)
            if library is not None and not isinstance(library, _RecordedLibrary):
                self._replaced.put(module, variable, _RecordedLibrary(library, ranges))


ROUTES = Routes()
