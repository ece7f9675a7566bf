"""What markers put into the traces of a profiler: ranges and counters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kinetoscope.collect import record_function
from kinetoscope.combine.sources import with_counters
from kinetoscope.storage.appended_rows import KeptRows

if TYPE_CHECKING:
    from kinetoscope.collect import AppendRows
    from kinetoscope.trace import Trace

# Composer marks its calls of callbacks. Inside of these calls of ours one step ends and the next one begins.
OURS = ("callback/TorchProfiler/", "callback/Profiler/")


class MarkerRanges:
    """The open ranges of the active recording, by name."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}

    def begin(self, name: str) -> None:
        """Open a range; one of the same name is closed first. Calls of our own callbacks are skipped."""
        self.end(name)
        if name.startswith(OURS):
            return
        self._open[name] = record_function(name)
        self._open[name].__enter__()

    def end(self, name: str) -> None:
        """Close a range, if it is open."""
        begun = self._open.pop(name, None)
        if begun is not None:
            begun.__exit__(None, None, None)


class MarkedCounters:
    """The counters of markers, as a source of a session: `counters` has a row for each value recorded."""

    def __init__(self) -> None:
        # Between sessions the values are kept for whoever asks next.
        self._kept = KeptRows()
        self._append: AppendRows | None = None

    def add(self, name: str, values: dict[str, Any]) -> None:
        """Record the current values. Thread-safe."""
        now_ns = time.monotonic_ns()
        numbers = {f"{name}/{key}": float(value) for key, value in values.items()}
        columns: dict[str, list[Any]] = {
            "monotonic_ns": [now_ns] * len(numbers),
            "name": list(numbers),
            "value": list(numbers.values()),
        }
        if self._append is None or not self._append("counters", columns):
            self._kept("counters", columns)

    def open(self) -> None:
        """Do nothing."""

    def start(self) -> None:
        """Discard values from before the recording."""
        self._kept = KeptRows()

    def write_to(self, append: AppendRows) -> None:
        """Write values into the started recording as they arrive."""
        self._append = append

    def stop(self) -> None:
        """Stop writing."""
        self._append = None

    def close(self) -> None:
        """Do nothing."""

    def added_to(self, trace: Trace) -> Trace:
        """The trace of the recording that has just ended with the values since the previous one, without a session."""
        values, self._kept = self._kept, KeptRows()
        return with_counters(trace, values.rows())
