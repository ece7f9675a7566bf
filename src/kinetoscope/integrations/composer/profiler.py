"""`Profiler`: API-compatible with Composer's class, with our recorder: markers, system counters, trace handlers."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.collect import SystemCounters, record_function, warn_user
from kinetoscope.integrations.composer.callback import TorchProfiler
from kinetoscope.integrations.composer.marker import MarkedCounters, MarkerRanges
from kinetoscope.integrations.composer.schedule import BatchSchedule, ProfilerAction
from kinetoscope.integrations.composer.trace_handler import JSONTraceHandler

_log = logging.getLogger("kinetoscope.integrations.composer")
_MARKED = (ProfilerAction.WARMUP, ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)


@dataclass(eq=False)
class Marker(ContextDecorator):
    """Marks ranges of the program, in the batches that the profiler's schedule selects. Made by `Profiler.marker`.

    It is also a context manager and a decorator. Its ranges are in the trace while a recording is active; trace handlers of
    other kinds are always called.

    Args:
        profiler: The profiler it belongs to.
        name: Its name in the trace.
        actions: It marks batches for which the schedule wants one of these.
        record_instant_on_start: Also mark an instant when a range starts.
        record_instant_on_finish: Also mark an instant when a range ends.
        categories: To what it belongs, for the handlers.
    """

    profiler: Profiler
    name: str
    actions: Sequence[ProfilerAction]
    record_instant_on_start: bool
    record_instant_on_finish: bool
    categories: Sequence[str] = ()
    _ranges: MarkerRanges = field(default_factory=MarkerRanges, init=False)
    _started: bool = field(default=False, init=False)
    _recorded: bool = field(default=False, init=False)

    def start(self) -> None:
        """Begin a range.

        Raises:
            StateError: It has begun already.
        """
        if self._started:
            raise StateError(f"the marker {self.name!r} was started already: call finish() first.")
        self._started = True
        self._recorded = self._is_recorded()
        if self._recorded:
            self._ranges.begin(self.name)
            self._tell("process_duration_event", is_start=True)
            if self.record_instant_on_start:
                self._moment()

    def finish(self) -> None:
        """End the range.

        Raises:
            StateError: It has not begun.
        """
        if not self._started:
            raise StateError(f"the marker {self.name!r} was not started: call start() first.")
        if self._recorded:
            if self.record_instant_on_finish:
                self._moment()
            self._tell("process_duration_event", is_start=False)
            self._ranges.end(self.name)
        self._started = False

    def instant(self) -> None:
        """Mark an instant, as an empty range."""
        if self._is_recorded():
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
        if self._is_recorded():
            self.profiler.counters.add(self.name, values)
            self._tell("process_counter_event", values=values)

    def __enter__(self) -> Self:
        """Begin a range."""
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """End the range."""
        self.finish()

    def __call__(self, func: Any = None) -> Any:
        """Mark each call of a function, as a decorator with parentheses or without.

        Args:
            func: The function.

        Returns:
            A function that does the same.
        """
        return self if func is None else super().__call__(func)

    def _is_recorded(self) -> bool:
        """Whether the schedule asks for this batch; a failing one, which the recorder reports, asks for none."""
        try:
            return self.profiler.schedule(self.profiler.state) in self.actions
        except Exception as error:  # noqa: BLE001  (whatever it is, it is not the training's)
            _log.debug("the schedule failed: %s", error)
            return False

    def _moment(self) -> None:
        with record_function(f"{self.name}#instant" if self._started else self.name):
            self._tell("process_instant_event")

    def _tell(self, what: str, **facts: Any) -> None:
        self.profiler.tell_handlers(
            what,
            name=self.name,
            categories=self.categories,
            timestamp=self.profiler.state.timestamp,
            wall_clock_time_ns=time.time_ns(),
            **facts,
        )


class Profiler(TorchProfiler):
    """Profiles a training run: operators, the program's markers and system counters, in one trace for each cycle.

    Under Composer it is the `profiler` of the `Trainer`, whose arguments it has:

        Trainer(..., profiler=Profiler(schedule=cyclic_schedule(wait=5, active=2), trace_handlers=[JSONTraceHandler()]))

    In a loop of your own it is a context manager, like `TorchProfiler`.

    Args:
        schedule: A callable from a training state to a `ProfilerAction`, such as `cyclic_schedule(...)` makes.
        trace_handlers: One or several: `JSONTraceHandler`, or others of Composer's kind.
        sys_prof_cpu: Record CPU utilization: see `kinetoscope.SystemCounters`, also for the others. With any of
            them, NVIDIA GPUs are recorded if available.
        sys_prof_memory: Record memory in use.
        sys_prof_disk: Record disk throughput.
        sys_prof_net: Record network throughput.
        sys_prof_stats_thread_interval_seconds: Seconds between two samples.
        **options: Arguments of `TorchProfiler`: those that Composer has, with `torch_prof_` before their names, such as
            `torch_prof_folder` and `torch_prof_with_stack`; `run_name`; and those of `kinetoscope.profile`. Ranks align their
            clocks (`align_ranks`) where there is a `JSONTraceHandler`, so that its traces can be merged, unless you say otherwise.

    Attributes:
        torch_profiler: Records and writes the traces: this object itself.
        resumption_batch_idx: How many batches of the epoch were over when the run was resumed.
        remote_filenames: Empty: URLs are uploaded to through fsspec, without an uploader of Composer's.

    Raises:
        ArgumentError: An argument or a trace handler is not valid.
        MissingDependencyError: psutil, or the package for a URL, is not installed.
    """

    def __init__(
        self,
        schedule: BatchSchedule,
        trace_handlers: Any = (),
        sys_prof_cpu: bool = True,
        sys_prof_memory: bool = False,
        sys_prof_disk: bool = False,
        sys_prof_net: bool = False,
        sys_prof_stats_thread_interval_seconds: float = 0.5,
        **options: Any,
    ) -> None:
        self.schedule = schedule
        self._handlers = _checked_handlers(trace_handlers)
        self.counters = MarkedCounters()
        self._markers: dict[str, Marker] = {}
        self._failed: set[int] = set()
        self.resumption_batch_idx = 0
        self.remote_filenames: list[str] = []
        sources = [*options.pop("sources", ()), self.counters]
        if sys_prof_cpu or sys_prof_memory or sys_prof_disk or sys_prof_net:
            sources.append(
                SystemCounters(
                    cpu=sys_prof_cpu,
                    memory=sys_prof_memory,
                    disk=sys_prof_disk,
                    network=sys_prof_net,
                    interval_s=sys_prof_stats_thread_interval_seconds,
                )
            )
        has_files = any(isinstance(handler, JSONTraceHandler) for handler in self._handlers)
        options = {name.removeprefix("torch_prof_"): value for name, value in options.items()}
        super().__init__(schedule=schedule, sources=sources, **{"align_ranks": has_files, **options})

    @property
    def torch_profiler(self) -> Self:
        """This object, under the name that it has in Composer's class."""
        return self

    @property
    def trace_handlers(self) -> list[Any]:
        """The handlers of markers and traces."""
        return self._handlers

    @trace_handlers.setter
    def trace_handlers(self, trace_handlers: Any) -> None:
        """Set the handlers of markers and traces."""
        self._handlers[:] = _checked_handlers(trace_handlers)

    def marker(
        self,
        name: str,
        actions: Sequence[ProfilerAction] = _MARKED,
        record_instant_on_start: bool = False,
        record_instant_on_finish: bool = False,
        categories: Sequence[str] = (),
    ) -> Marker:
        """Find the marker of a name, or make it.

        Args:
            name: Its name in the trace.
            actions: It marks batches for which the schedule wants one of these.
            record_instant_on_start: Also mark an instant when a range starts.
            record_instant_on_finish: Also mark an instant when a range ends.
            categories: To what it belongs, for the handlers.

        Returns:
            The marker; the same one for the same name.

        Raises:
            StateError: There is no training run yet.
        """
        if self.state is None:
            raise StateError(
                "the profiler is not attached to a training run: pass it to Composer's Trainer, or call start(), before marker()."
            )
        if name not in self._markers:
            self._markers[name] = Marker(
                self, name, actions, record_instant_on_start, record_instant_on_finish
            )
        self._markers[name].categories = categories
        return self._markers[name]

    def record_chrome_json_trace_file(self, filepath: str | Path) -> None:
        """Let all trace handlers read a trace that something else wrote.

        Args:
            filepath: Where it is, in Chrome's format.
        """
        for handler in self._handlers:
            handler.process_chrome_json_trace_file(Path(filepath))

    def bind_to_state(self, state: Any) -> None:
        """Follow a training run of Composer, whose `Trainer` calls this.

        Args:
            state: The state of the training run.
        """
        self.state = state
        state.callbacks.extend([self, *self._handlers])

    def after_load(self, state: Any, logger: Any) -> None:
        """Note the position at which a resumed run continues.

        Args:
            state: The state of the training run.
            logger: Not used.
        """
        self.resumption_batch_idx = int(state.timestamp.batch_in_epoch)

    def tell_handlers(self, what: str, **facts: Any) -> None:
        """Call the handlers that do not get the markers with the traces; one that fails is not called again.

        Args:
            what: The method to call.
            facts: Its arguments.
        """
        for handler in self._handlers:
            if isinstance(handler, JSONTraceHandler) or id(handler) in self._failed:
                continue
            try:
                getattr(handler, what)(**facts)
            except Exception as error:  # noqa: BLE001  (whatever a handler does, training goes on)
                self._failed.add(id(handler))
                warn_user(f"{type(handler).__name__} gets no more markers: {type(error).__name__}: {error}")


def _checked_handlers(trace_handlers: Any) -> list[Any]:
    """A list of trace handlers, or an error that says which is none."""
    handlers = list(trace_handlers) if isinstance(trace_handlers, (list, tuple)) else [trace_handlers]
    for handler in handlers:
        hint = "it is a class: make an object of it" if isinstance(handler, type) else "no init()"
        if isinstance(handler, type) or not hasattr(handler, "init"):
            raise ArgumentError(
                f"trace_handlers: {handler!r} is not a trace handler ({hint}); pass JSONTraceHandler(...) or a TraceHandler."
            )
    return handlers
