"""Python's garbage collections as spans, for the native engine; torch's own collector records them itself."""

from __future__ import annotations

import gc
import threading
from typing import Any

from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from kinetoscope.collect.sources.shared_hooks import SharedHooks
from kinetoscope.model.nesting import GARBAGE_COLLECTION


class GarbageCollections(SharedHooks):
    """Opens a range for every garbage collection, on the thread that runs it, while any engine records them."""

    def __init__(self) -> None:
        """Start without engines."""
        super().__init__()
        self._of_thread = threading.local()

    def _install(self, first: bool) -> None:
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)

    def _restore(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            if self._sessions:
                self._of_thread.range = begin_range(GARBAGE_COLLECTION)
            return
        begun = getattr(self._of_thread, "range", None)
        if begun is not None:
            self._of_thread.range = None
            end_range(begun)


GARBAGE_COLLECTIONS = GarbageCollections()
