"""Wait for the program to import a module.

A recording needs torch, and torch must not be imported before the program does it: programs set environment variables
that torch reads at its import, and many never import it. So it is with torch's compiler. `child_hook` also loads this file by
its path, in Pythons that may be older: it imports only what Python has loaded anyway, and needs no more than Python 3.7.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class AfterImport:
    """A module finder that calls a function once, right after the first import of a module."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then
        self._looking = False

    def wait(self) -> None:
        """Begin to wait; if the module is imported already, call the function now.

        While another thread is importing it, neither: in a forked child that thread is gone, and an import of a part of it never returns.
        """
        module = sys.modules.get(self._name)
        if module is None:
            sys.meta_path.insert(0, self)
        elif not getattr(getattr(module, "__spec__", None), "_initializing", False):
            self._then()

    def give_up(self) -> None:
        """Stop waiting."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Let the other finders find the module, and wrap its loader."""
        if fullname != self._name or self._looking:
            return None
        import importlib.util

        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Announcing(spec.loader, self)  # type: ignore[assignment]  # a loader by what it does
        return spec

    def announce(self) -> None:
        """Call the function: the module is imported."""
        self.give_up()
        self._then()


class _Announcing:
    """Loads a module with its own loader, and announces it afterwards."""

    def __init__(self, loader: Loader, waiting: AfterImport) -> None:
        self._loader = loader
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        """Return the attributes of the real loader."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with the real loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, with its real loader in it and not this one."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        # The module is complete. Announced now and not a moment later, because a thread that imports it too (the recorder tests
        # itself in one) would otherwise wait for this one, which waits for it.
        module.__spec__._initializing = False  # type: ignore[union-attr]  # noqa: SLF001  (Python's own)
        self._waiting.announce()
