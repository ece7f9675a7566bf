"""The finished recordings of a session, with the metadata that came too late for their files."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.collect.sources.source import Parts, SourcedRecording, together

if TYPE_CHECKING:
    from kinetoscope.collect.session.options import Recording
    from kinetoscope.trace import Trace


# What a session itself cost in its present or last cycle, under the names that torch uses for it.


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


CycleChoice = int | Literal["all"] | None


class Cycle:
    """A recording that is turned into a trace when somebody asks."""

    def __init__(
        self,
        recording: Recording,
        info: Mapping[str, str],
        *,
        worth_reading: bool,
        number: int = 0,
        stats: SessionStats | None = None,
    ) -> None:
        """Keep the recording; `info` are JSON texts whose values join the trace's own."""
        self._recording = recording
        self._info = dict(info)
        self._worth_reading = worth_reading
        self._trace: Trace | None = None
        self._stats = stats
        self._held = False
        self._lock = threading.Lock()
        self.number = number

    @property
    def worth_reading(self) -> bool:
        """Whether something would be lost that nobody has looked at yet."""
        return self._worth_reading and self._trace is None and not self._held

    @property
    def counts(self) -> bool:
        """Whether it is one of the session's cycles; a warm-up that led nowhere is none."""
        return self._worth_reading

    def trace(self) -> Trace:
        """The trace, built on the first call."""
        with self._lock:
            if self._trace is None:
                begin_ns = time.perf_counter_ns()
                trace = self._recording.trace()
                trace.info.update(_values(self._info))
                self._trace = trace
                if self._stats is not None:
                    self._stats.number_of_events = len(trace.columns("spans"))
                    self._stats.parse_kineto_call_duration_us = (time.perf_counter_ns() - begin_ns) // 1000
            return self._trace

    def parts(self) -> Parts:
        """The engine's trace and what sources have beside it; where these are not apart, the trace alone."""
        with self._lock:
            apart = self._recording.parts() if isinstance(self._recording, SourcedRecording) else None
            if apart is not None:
                apart.trace.info.update(_values(self._info))
        return Parts(self.trace()) if apart is None else apart

    def add_info(self, info: Mapping[str, str]) -> None:
        """Let JSON texts join the trace, built or not."""
        with self._lock:
            self._info.update(info)
            if self._trace is not None:
                self._trace.info.update(_values(info))

    def hold(self) -> None:
        """Keep the recording, whatever the session does with it: somebody else will read it."""
        self._held = True

    def discard(self) -> None:
        """Forget the recording and its files, unless it is held."""
        if not self._held:
            self._recording.discard()


class Cycles(Sequence["Trace"]):
    """The traces of a session's finished cycles that are kept, the oldest first; each is built when it is taken.

    With `acc_events=True` all cycles are kept, else the last one.
    """

    def __init__(self, kept: Sequence[Cycle], join: Callable[[], Trace]) -> None:
        """Show these; `join` makes one trace of them."""
        self._kept = tuple(kept)
        self._join = join

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    @overload
    def __getitem__(self, place: int) -> Trace: ...
    @overload
    def __getitem__(self, place: slice) -> list[Trace]: ...
    def __getitem__(self, place: int | slice) -> Trace | list[Trace]:
        """The trace at a place of this sequence, or the traces of several."""
        if isinstance(place, slice):
            return [cycle.trace() for cycle in self._kept[place]]
        try:
            return self._kept[place].trace()
        except IndexError:
            raise IndexError(f"cycles[{place}]: {len(self)} are kept") from None

    def __iter__(self) -> Iterator[Trace]:
        """The traces one after the other."""
        return (cycle.trace() for cycle in self._kept)

    def together(self) -> Trace:
        """All of them as one trace, on one time axis; its spans and its table `cycles` tell them apart.

        Raises:
            StateError: There are none yet.
        """
        if not self._kept:
            raise StateError("there are no cycles to put together yet: none has ended.")
        return self._join()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each, counted from 0 over all cycles of the session, kept or not."""
        return tuple(cycle.number for cycle in self._kept)

    def __repr__(self) -> str:
        """Which ones they are."""
        return f"<Cycles {', '.join(map(str, self.numbers)) or '(none)'}>"


class KeptCycles:
    """The cycles a session holds on to: the last one or, if it shall accumulate, all."""

    def __init__(self, *, keep_all: bool) -> None:
        """Begin without any."""
        self._keep_all = keep_all
        self._kept: tuple[Cycle, ...] = ()
        self._joined: tuple[tuple[Cycle, ...], Trace] | None = None
        self.finished = 0

    @property
    def last(self) -> Cycle | None:
        """The one that ended last."""
        return self._kept[-1] if self._kept else None

    @property
    def shown(self) -> Cycles:
        """The ones that count, for the user."""
        kept = tuple(cycle for cycle in self._kept if cycle.counts)
        return Cycles(kept, lambda: self._all(kept))

    def add(self, cycle: Cycle) -> tuple[Cycle, ...]:
        """Hold on to one more; return those that are let go of."""
        let_go = tuple(old for old in self._kept if not (self._keep_all and old.counts))
        self._kept = (*(old for old in self._kept if old not in let_go), cycle)
        self.finished += cycle.counts
        return let_go

    def add_info(self, info: Mapping[str, str]) -> None:
        """Let JSON texts join the trace of the cycle that ended last."""
        if self._kept:
            self._kept[-1].add_info(info)
            self._joined = None

    def trace(self, choice: CycleChoice) -> Trace | None:
        """The trace of the last cycle (None), of the one of a number, or of all together; None without any.

        Raises:
            ArgumentError: No such cycle is kept.
        """
        kept = self._kept
        if isinstance(choice, bool) or not (choice is None or choice == "all" or isinstance(choice, int)):
            raise ArgumentError(f"cycle={choice!r} is not valid: {self._valid(kept)}.")
        if not kept:
            return None
        if choice is None:
            return kept[-1].trace()
        if choice == "all":
            return self._all(kept)
        for cycle in kept:
            if cycle.counts and cycle.number == choice:
                return cycle.trace()
        raise ArgumentError(f"cycle={choice!r} is not kept: {self._valid(kept)}.")

    def _all(self, kept: tuple[Cycle, ...]) -> Trace:
        """All cycles as one trace, put together once."""
        from kinetoscope.combine.concatenate import concatenate

        counting = tuple(cycle for cycle in kept if cycle.counts) or kept
        if len(counting) == 1:
            return counting[0].trace()
        if self._joined is None or self._joined[0] != counting:
            self._joined = counting, together([cycle.parts() for cycle in counting], concatenate)
        return self._joined[1]

    def _valid(self, kept: tuple[Cycle, ...]) -> str:
        """Which choices there are."""
        numbers = ", ".join(str(cycle.number) for cycle in kept if cycle.counts) or "none yet"
        hint = "" if self._keep_all else " (acc_events=True keeps them all)"
        return f"choose 'all', None for the last one, or the number of a kept cycle: {numbers}{hint}"


def _values(info: Mapping[str, str]) -> dict[str, Any]:
    """What JSON texts mean."""
    return {key: json.loads(text) for key, text in info.items()}
