"""Python's garbage collections as spans, for the native engine; torch's own collector records them itself."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from kinetoscope.model.nesting import GARBAGE_COLLECTION


class GarbageCollections:
    """Opens a range for every garbage collection, on the thread that runs it, while any engine records them."""

    def __init__(self) -> None:
        """Start without engines."""
        self._of_thread = threading.local()
        # Weak: an engine may be garbage-collected without a stop().
        self._engines: weakref.WeakSet[object] = weakref.WeakSet()

    def open(self, engine: object) -> None:
        """Record garbage collections for an engine; a second call does nothing."""
        self._engines.add(engine)
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)

    def close(self, engine: object) -> None:
        """Stop recording them for an engine."""
        self._engines.discard(engine)
        if not self._engines:
            self._remove_callback()

    def forget_engines(self) -> None:
        """Stop recording them for all engines: at the exit of Python, and in a forked child, where they are those of the parent."""
        self._engines = weakref.WeakSet()
        self._remove_callback()

    def _remove_callback(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            if self._engines:
                self._of_thread.range = begin_range(GARBAGE_COLLECTION)
            return
        begun = getattr(self._of_thread, "range", None)
        if begun is not None:
            self._of_thread.range = None
            end_range(begun)


GARBAGE_COLLECTIONS = GarbageCollections()
os.register_at_fork(after_in_child=GARBAGE_COLLECTIONS.forget_engines)
