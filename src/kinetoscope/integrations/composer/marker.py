"""Markers of the program: ranges, instants and counters in the traces of a profiler."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.collect import record_function
from kinetoscope.combine.sources import with_counters
from kinetoscope.storage.appended_rows import KeptRows

if TYPE_CHECKING:
    from kinetoscope.collect import AppendRows
    from kinetoscope.trace import Trace

# Composer marks its calls of callbacks. Inside of these calls of ours one step ends and the next one begins.
OURS = ("callback/TorchProfiler/", "callback/Profiler/")


class Ranges:
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
        """Note values as they are now. May be called by any thread."""
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
        """Nothing has to be made ready."""

    def start(self) -> None:
        """Discard values from before the recording."""
        self._kept = KeptRows()

    def write_to(self, append: AppendRows) -> None:
        """Write values into the recording that has begun, as they come."""
        self._append = append

    def stop(self) -> None:
        """Write no more."""
        self._append = None

    def close(self) -> None:
        """Nothing is left."""

    def added_to(self, trace: Trace) -> Trace:
        """The trace of the recording that has just ended with the values since the previous one, without a session."""
        kept, self._kept = self._kept, KeptRows()
        return with_counters(trace, kept.rows())


class Marker:
    """Marks ranges of the program, in the batches that the profiler's schedule selects. Made by `Profiler.marker`.

    It is also a context manager and a decorator. Its ranges are in the trace while a recording is active; trace handlers of
    other kinds are always called.

    Args:
        name: Its name in the trace.
        state: Returns the state of the training run.
        should_record: Returns for a state whether to mark anything.
        tell: Tells trace handlers: what they are to be called for, and with which arguments.
        counters: Gets the values of counters.
        record_instant_on_start: Also mark an instant when a range starts.
        record_instant_on_finish: Also mark an instant when a range ends.
        categories: To what it belongs, for the handlers.
    """

    def __init__(
        self,
        name: str,
        *,
        state: Callable[[], Any],
        should_record: Callable[[Any], bool],
        tell: Callable[..., None],
        counters: MarkedCounters,
        record_instant_on_start: bool = False,
        record_instant_on_finish: bool = False,
        categories: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.categories = categories
        self._state = state
        self._should_record = should_record
        self._tell_handlers = tell
        self._counters = counters
        self._instant_on_start = record_instant_on_start
        self._instant_on_finish = record_instant_on_finish
        self._ranges = Ranges()
        self._started = False
        self._recorded = False

    def start(self) -> None:
        """Begin a range.

        Raises:
            StateError: It has begun already.
        """
        if self._started:
            raise StateError(f"the marker {self.name!r} was started already: call finish() first.")
        self._started = True
        self._recorded = self._should_record(self._state())
        if self._recorded:
            self._ranges.begin(self.name)
            self._tell("process_duration_event", is_start=True)
            if self._instant_on_start:
                self._moment()

    def finish(self) -> None:
        """End the range.

        Raises:
            StateError: It has not begun.
        """
        if not self._started:
            raise StateError(f"the marker {self.name!r} was not started: call start() first.")
        if self._recorded:
            if self._instant_on_finish:
                self._moment()
            self._tell("process_duration_event", is_start=False)
            self._ranges.end(self.name)
        self._started = False

    def instant(self) -> None:
        """Mark an instant, as an empty range."""
        if self._should_record(self._state()):
            self._moment()

    def counter(self, values: dict[str, int | float]) -> None:
        """Note the values of counters; in the trace they are called `NAME/KEY`.

        Args:
            values: The value of each, by its key.

        Raises:
            ArgumentError: A value is no number, whether it would be recorded now or not.
        """
        for key, value in values.items():
            if not hasattr(type(value), "__float__"):
                raise ArgumentError(
                    f"the marker {self.name!r}: the counter {key!r} is {value!r}; need a number."
                )
        if self._should_record(self._state()):
            self._counters.add(self.name, values)
            self._tell("process_counter_event", values=values)

    def __enter__(self) -> Self:
        """Begin a range."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the range."""
        self.finish()

    def __call__(self, function: Callable[..., Any] | None = None) -> Any:
        """Mark each call of a function, as a decorator with parentheses or without.

        Args:
            function: The function.

        Returns:
            A function that does the same.
        """
        if function is None:
            return self

        @functools.wraps(function)
        def marked(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return marked

    def _moment(self) -> None:
        """Mark this moment."""
        with record_function(f"{self.name}#instant" if self._started else self.name):
            self._tell("process_instant_event")

    def _tell(self, what: str, **facts: Any) -> None:
        """Tell the handlers."""
        self._tell_handlers(
            what,
            name=self.name,
            categories=self.categories,
            timestamp=self._state().timestamp,
            wall_clock_time_ns=time.time_ns(),
            **facts,
        )
