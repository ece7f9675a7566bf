"""What the session itself cost in its current or last cycle, under torch's names."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class SessionStats:
    """Costs of one cycle; what has not happened yet is 0.

    Attributes:
        profiling_window_duration_sec: How long was recorded, in seconds.
        number_of_events: Spans of the trace, once it was built.
        profiler_prepare_call_duration_us: What `prepare_trace` took, in microseconds.
        profiler_enable_call_duration_us: What `start_trace` took, in microseconds.
        profiler_disable_call_duration_us: What `stop_trace` took, in microseconds.
        parse_kineto_call_duration_us: What building the trace took, in microseconds, whichever engine recorded.
        function_events_build_tree_call_duration_us: What the last call of `events` took, in microseconds, at least 1.
    """

    profiling_window_duration_sec: float = 0.0
    number_of_events: int = 0
    profiler_prepare_call_duration_us: int = 0
    profiler_enable_call_duration_us: int = 0
    profiler_disable_call_duration_us: int = 0
    parse_kineto_call_duration_us: int = 0
    function_events_build_tree_call_duration_us: int = 0


class Stopwatch:
    """Fills the stats of a cycle while it goes through its stations."""

    def __init__(self) -> None:
        """Begin with a cycle that was not prepared."""
        self.stats: SessionStats | None = None
        self._began_ns = 0

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Time the preparation of a new cycle."""
        begin_ns = time.perf_counter_ns()
        yield
        self.stats = SessionStats(profiler_prepare_call_duration_us=_us_since(begin_ns))

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Time the start; the recorded window begins at its end."""
        begin_ns = time.perf_counter_ns()
        yield
        self._began_ns = time.perf_counter_ns()
        if self.stats is not None:
            self.stats.profiler_enable_call_duration_us = _us_since(begin_ns)

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Time the stop; the recorded window ends at its beginning."""
        begin_ns = time.perf_counter_ns()
        yield
        if self.stats is not None:
            self.stats.profiling_window_duration_sec = (begin_ns - self._began_ns) / 1e9
            self.stats.profiler_disable_call_duration_us = _us_since(begin_ns)

    @contextlib.contextmanager
    def listing(self) -> Iterator[None]:
        """Time the making of a list of events."""
        begin_ns = time.perf_counter_ns()
        yield
        if self.stats is not None:
            self.stats.function_events_build_tree_call_duration_us = max(1, _us_since(begin_ns))


def _us_since(begin_ns: int) -> int:
    """Whole microseconds from a reading of the performance counter to now."""
    return (time.perf_counter_ns() - begin_ns) // 1000
