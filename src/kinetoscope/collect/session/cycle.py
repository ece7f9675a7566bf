"""The cycles of a session: their overhead, and the finished recordings with metadata added after their files were written."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, overload

from kinetoscope._errors import ArgumentError, StateError

if TYPE_CHECKING:
    from kinetoscope.collect.session.source_window import SourcedRecording
    from kinetoscope.storage.appended_rows import AppendedRows
    from kinetoscope.trace import Trace


CycleChoice = int | Literal["all"] | None


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
    def measuring(self, phase: Literal["prepare", "enable", "disable"]) -> Iterator[None]:
        """Measure a phase: the first begins new stats, and the recorded window lasts from the end of the second to the begin of the third."""
        begin_ns = time.perf_counter_ns()
        yield
        if phase == "prepare":
            self.stats = SessionStats()
        elif phase == "enable":
            self._began_ns = time.perf_counter_ns()
        elif self.stats is not None:
            self.stats.profiling_window_duration_sec = (begin_ns - self._began_ns) / 1e9
        if self.stats is not None:
            setattr(self.stats, f"profiler_{phase}_call_duration_us", us_since(begin_ns))


def us_since(begin_ns: int) -> int:
    """Microseconds since a reading of `time.perf_counter_ns`, rounded down."""
    return (time.perf_counter_ns() - begin_ns) // 1000


# A trace and its computed results refer to each other, so that a dropped trace stays in memory until Python's garbage collector runs, and
# forever if the job has turned the collector off.
_SPANS_BETWEEN_COLLECTIONS = 500_000
_spans_read = 0


def _free_dropped_traces() -> None:
    """Collect garbage if the traces read since the last collection may take about 100 MB."""
    global _spans_read
    if _spans_read > _SPANS_BETWEEN_COLLECTIONS:
        _spans_read = 0
        gc.collect()


@dataclass(eq=False)
class Cycle:
    """A recording that becomes a trace on first use.

    Attributes:
        unread: The recording, until it was read.
        info: JSON texts that are added to the trace's metadata.
        counts: Whether this is a recorded cycle of the schedule; a warm-up that no active step followed is not.
        number: The number of the cycle.
        stats: The overhead of recording and reading.
    """

    unread: SourcedRecording | None
    info: dict[str, str]
    counts: bool
    number: int
    stats: SessionStats | None
    _trace: Trace | None = field(default=None, init=False)
    _parts: tuple[Trace, list[AppendedRows]] = field(init=False)
    _held: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def worth_reading(self) -> bool:
        """Whether dropping the cycle would lose data: it was recorded, and nothing has read or reserved it yet."""
        return self.counts and self._trace is None and not self._held

    def trace(self) -> Trace:
        """Return the trace; the first call reads the recording and builds it."""
        global _spans_read
        from kinetoscope.combine.sources import with_rows

        if self.unread is not None:
            _free_dropped_traces()
        with self._lock:
            if self.unread is not None:
                begin_ns = time.perf_counter_ns()
                self._parts = without_rows, rows = self.unread.read()
                without_rows.info.update(_values(self.info))
                self._trace, self.unread = with_rows(without_rows, rows), None
                spans = len(self._trace.columns("spans"))
                _spans_read += spans
                if self.stats is not None:
                    self.stats.number_of_events = spans
                    self.stats.parse_kineto_call_duration_us = us_since(begin_ns)
            return self._trace  # type: ignore[return-value]

    @property
    def parts(self) -> tuple[Trace, list[AppendedRows]]:
        """The trace without the rows that our sources appended, and these rows."""
        self.trace()
        return self._parts

    def add_info(self, info: Mapping[str, str]) -> None:
        """Add JSON texts to the trace's metadata, also after the trace was built."""
        with self._lock:
            self.info.update(info)
            if self._trace is not None:
                self._trace.info.update(_values(info))
                self._parts[0].info.update(_values(info))

    def hold(self) -> None:
        """Keep the recording's files even if the session drops the cycle, because another reader still needs them."""
        self._held = True

    def discard(self) -> None:
        """Delete the recording and its files, unless `hold` was called."""
        if not self._held and self.unread is not None:
            self.unread.discard()


class Cycles(Sequence["Trace"]):
    """The traces of a session's finished cycles that are stored, the oldest first; each is built when it is taken.

    With `acc_events=True` all cycles are stored, else the last one.
    """

    def __init__(self, stored: Sequence[Cycle], join: Callable[[], Trace]) -> None:
        """Wrap the stored cycles; `join` merges them into one trace."""
        self._stored = tuple(stored)
        self._join = join

    def __len__(self) -> int:
        return len(self._stored)

    @overload
    def __getitem__(self, index: int) -> Trace: ...
    @overload
    def __getitem__(self, index: slice) -> list[Trace]: ...
    def __getitem__(self, index: int | slice) -> Trace | list[Trace]:
        """Return the trace at an index, or the list of traces of a slice."""
        if isinstance(index, slice):
            return [cycle.trace() for cycle in self._stored[index]]
        try:
            return self._stored[index].trace()
        except IndexError:
            raise IndexError(f"cycles[{index}]: there are {len(self)}") from None

    def together(self) -> Trace:
        """Merge all stored cycles into one trace on one time axis; its table `cycles` says which spans came from which.

        Raises:
            StateError: No cycle has finished.
        """
        if not self._stored:
            raise StateError("there are no cycles to merge: none has finished.")
        return self._join()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the stored cycles, counted from 0 over all cycles of the session, also those no longer stored."""
        return tuple(cycle.number for cycle in self._stored)

    def __repr__(self) -> str:
        """The numbers of the stored cycles."""
        return f"<Cycles {', '.join(map(str, self.numbers)) or '(none)'}>"


class FinishedCycles:
    """The finished cycles that a session stores: the last one or, with `acc_events=True`, all."""

    def __init__(self, *, keep_all: bool) -> None:
        """Start with no cycles; `keep_all` is the session's `acc_events`."""
        self._keep_all = keep_all
        self._stored: tuple[Cycle, ...] = ()
        self._joined: tuple[tuple[Cycle, ...], Trace] | None = None
        self.finished = 0

    @property
    def last(self) -> Cycle | None:
        """The cycle that finished last, or None."""
        return self._stored[-1] if self._stored else None

    @property
    def shown(self) -> Cycles:
        """The recorded cycles, as the user's sequence `prof.cycles`."""
        stored = tuple(cycle for cycle in self._stored if cycle.counts)
        return Cycles(stored, lambda: self._all(stored))

    def add(self, cycle: Cycle) -> tuple[Cycle, ...]:
        """Store a finished cycle; return the earlier cycles that are no longer stored."""
        dropped = tuple(old for old in self._stored if not (self._keep_all and old.counts))
        self._stored = (*(old for old in self._stored if old not in dropped), cycle)
        self.finished += cycle.counts
        return dropped

    def add_info(self, info: Mapping[str, str]) -> None:
        """Add JSON texts to the metadata of the cycle that finished last."""
        self._stored[-1].add_info(info)
        self._joined = None

    def trace(self, choice: CycleChoice) -> Trace | None:
        """Return the trace of the last cycle (None), of the cycle with a number, or of all merged; None if none is stored.

        Raises:
            ArgumentError: No such cycle is stored.
        """
        stored = self._stored
        if isinstance(choice, bool) or not (choice is None or choice == "all" or isinstance(choice, int)):
            raise ArgumentError(f"cycle={choice!r} is not valid: {self._valid(stored)}.")
        if not stored:
            return None
        if choice is None:
            return stored[-1].trace()
        if choice == "all":
            return self._all(stored)
        for cycle in stored:
            if cycle.counts and cycle.number == choice:
                return cycle.trace()
        raise ArgumentError(f"cycle={choice!r} is not available: {self._valid(stored)}.")

    def _all(self, stored: tuple[Cycle, ...]) -> Trace:
        from kinetoscope.combine.concatenate import concatenate
        from kinetoscope.combine.sources import with_rows

        counting = tuple(cycle for cycle in stored if cycle.counts) or stored
        if len(counting) == 1:
            return counting[0].trace()
        if self._joined is None or self._joined[0] != counting:
            traces, rows = zip(*(cycle.parts for cycle in counting), strict=True)
            self._joined = counting, with_rows(concatenate(traces), [*chain(*rows)])
        return self._joined[1]

    def _valid(self, stored: tuple[Cycle, ...]) -> str:
        numbers = ", ".join(str(cycle.number) for cycle in stored if cycle.counts) or "none yet"
        hint = "" if self._keep_all else " (acc_events=True keeps them all)"
        return f"choose 'all', None for the last one, or the number of a stored cycle: {numbers}{hint}"


def _values(info: Mapping[str, str]) -> dict[str, Any]:
    return {key: json.loads(text) for key, text in info.items()}
