"""Python's garbage collections as spans, for the native engine; torch's own collector records them itself."""

from __future__ import annotations

import gc
import threading
from typing import Any

from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from kinetoscope.model.nesting import GARBAGE_COLLECTION


class GarbageCollections:
    """Opens a range for every garbage collection, on the thread that runs it."""

    def __init__(self) -> None:
        """Begin closed."""
        self._of_thread = threading.local()

    def open(self) -> None:
        """Start; a second call does nothing."""
        if self._collects not in gc.callbacks:
            gc.callbacks.append(self._collects)

    def close(self) -> None:
        """Mark none any more."""
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def _collects(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._of_thread.range = begin_range(GARBAGE_COLLECTION)
            return
        begun = getattr(self._of_thread, "range", None)
        if begun is not None:
            self._of_thread.range = None
            end_range(begun)
