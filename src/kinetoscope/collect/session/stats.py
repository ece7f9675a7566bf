"""Profiler overhead of a session's current or last cycle, with the attribute names of torch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class SessionStats:
    """Profiler overhead of one cycle; 0 for phases that it has not reached.

    Attributes:
        profiling_window_duration_sec: Length of the recorded window, in seconds.
        number_of_events: Number of spans in the trace; 0 until it is built.
        profiler_prepare_call_duration_us: Duration of `prepare_trace`, in microseconds.
        profiler_enable_call_duration_us: Duration of `start_trace`, in microseconds.
        profiler_disable_call_duration_us: Duration of `stop_trace`, in microseconds.
        parse_kineto_call_duration_us: Time to build the trace, in microseconds, with any engine.
        function_events_build_tree_call_duration_us: Duration of the last call of `events`, in microseconds, at least 1.
    """

    profiling_window_duration_sec: float = 0.0
    number_of_events: int = 0
    profiler_prepare_call_duration_us: int = 0
    profiler_enable_call_duration_us: int = 0
    profiler_disable_call_duration_us: int = 0
    parse_kineto_call_duration_us: int = 0
    function_events_build_tree_call_duration_us: int = 0


class Stopwatch:
    """Measures the phases of a cycle, and stores their durations in its `SessionStats`."""

    def __init__(self) -> None:
        """Start without stats: the first cycle was not prepared yet."""
        self.stats: SessionStats | None = None
        self._began_ns = 0

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Measure the preparation of a new cycle, whose stats begin here."""
        begin_ns = time.perf_counter_ns()
        yield
        self.stats = SessionStats(profiler_prepare_call_duration_us=_us_since(begin_ns))

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Measure the start of a recording; the recorded window begins when the block ends."""
        begin_ns = time.perf_counter_ns()
        yield
        self._began_ns = time.perf_counter_ns()
        if self.stats is not None:
            self.stats.profiler_enable_call_duration_us = _us_since(begin_ns)

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Measure the stop of a recording; the recorded window ends when the block begins."""
        begin_ns = time.perf_counter_ns()
        yield
        if self.stats is not None:
            self.stats.profiling_window_duration_sec = (begin_ns - self._began_ns) / 1e9
            self.stats.profiler_disable_call_duration_us = _us_since(begin_ns)

    @contextlib.contextmanager
    def listing(self) -> Iterator[None]:
        """Measure the creation of an event list."""
        begin_ns = time.perf_counter_ns()
        yield
        if self.stats is not None:
            self.stats.function_events_build_tree_call_duration_us = max(1, _us_since(begin_ns))


def _us_since(begin_ns: int) -> int:
    """Microseconds since a reading of `time.perf_counter_ns`, rounded down."""
    return (time.perf_counter_ns() - begin_ns) // 1000
