"""`Profiler`: API-compatible with Composer's class, with our recorder: markers, system counters, trace handlers."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.collect import SystemCounters
from kinetoscope.integrations.composer.callback import TorchProfiler
from kinetoscope.integrations.composer.files import FILENAME, FOLDER, REMOTE_FILE_NAME
from kinetoscope.integrations.composer.marker import MarkedCounters, Marker
from kinetoscope.integrations.composer.names import LoopState
from kinetoscope.integrations.composer.schedule import BatchSchedule, Callback, ProfilerAction
from kinetoscope.integrations.composer.trace_handler import JSONTraceHandler

_log = logging.getLogger("kinetoscope.integrations.composer")

_CALLS = (
    "init",
    "close",
    "process_duration_event",
    "process_instant_event",
    "process_counter_event",
    "process_chrome_json_trace_file",
)


class Profiler(Callback):
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
        torch_prof_folder: See `TorchProfiler`, also for the others.
        torch_prof_filename: Format of the name of a trace.
        torch_prof_remote_file_name: Format of the name under which it is uploaded; None for no upload.
        torch_prof_memory_filename: Format of the name of a memory timeline; None for none.
        torch_prof_memory_remote_file_name: Format of the name under which that is uploaded.
        torch_prof_overwrite: Whether the folder may contain files.
        torch_prof_use_gzip: Append `.gz` to the names.
        torch_prof_record_shapes: Record the input shapes of each operator.
        torch_prof_profile_memory: Record every allocation.
        torch_prof_with_stack: Record the Python stack of each operator.
        torch_prof_with_flops: Count operations.
        torch_prof_num_traces_to_keep: The number of traces to keep in the folder.
        run_name: Name of the run; None: that of Composer's run.
        clock: Returns seconds, for the timestamps of your own loop.
        **session: Further arguments of `TorchProfiler` and of `kinetoscope.profile`. Ranks align their clocks
            (`align_ranks`) where a `JSONTraceHandler` merges their traces, unless you say otherwise.

    Attributes:
        torch_profiler: Records and writes the traces.
        state: The state of the training run; None before there is one.
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
        torch_prof_folder: str = FOLDER,
        torch_prof_filename: str = FILENAME,
        torch_prof_remote_file_name: str | None = REMOTE_FILE_NAME,
        torch_prof_memory_filename: str | None = None,
        torch_prof_memory_remote_file_name: str | None = None,
        torch_prof_overwrite: bool = False,
        torch_prof_use_gzip: bool = False,
        torch_prof_record_shapes: bool = False,
        torch_prof_profile_memory: bool = True,
        torch_prof_with_stack: bool = False,
        torch_prof_with_flops: bool = True,
        torch_prof_num_traces_to_keep: int = -1,
        *,
        run_name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        **session: Any,
    ) -> None:
        if not callable(schedule):
            raise ArgumentError(
                f"schedule={schedule!r} is not valid: pass a callable such as cyclic_schedule(...)."
            )
        self.schedule = schedule
        self._handlers = _checked_handlers(trace_handlers)
        self._counters = MarkedCounters()
        self._markers: dict[str, Marker] = {}
        self._failed: set[int] = set()
        self._run_name = run_name
        self._clock = clock
        self.state: Any = None
        self.resumption_batch_idx = 0
        self.remote_filenames: list[str] = []
        sources = [*session.pop("sources", ()), self._counters]
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
        session.setdefault("align_ranks", any(handler.merges for handler in self._own_handlers()))
        self.torch_profiler = TorchProfiler(
            torch_prof_folder,
            torch_prof_filename,
            torch_prof_remote_file_name,
            memory_filename=torch_prof_memory_filename,
            memory_remote_file_name=torch_prof_memory_remote_file_name,
            overwrite=torch_prof_overwrite,
            use_gzip=torch_prof_use_gzip,
            record_shapes=torch_prof_record_shapes,
            profile_memory=torch_prof_profile_memory,
            with_stack=torch_prof_with_stack,
            with_flops=torch_prof_with_flops,
            num_traces_to_keep=torch_prof_num_traces_to_keep,
            schedule=schedule,
            run_name=run_name,
            clock=clock,
            sources=sources,
            **session,
        )

    @property
    def trace_handlers(self) -> list[Any]:
        """The handlers of markers and traces."""
        return self._handlers

    @trace_handlers.setter
    def trace_handlers(self, trace_handlers: Any) -> None:
        """Set the handlers of markers and traces."""
        self._handlers[:] = _checked_handlers(trace_handlers)

    @property
    def saved_traces(self) -> list[tuple[Any, list[Path]]]:
        """The traces of `torch_profiler` that are kept: timestamp and the path of each rank, the newest last."""
        return self.torch_profiler.saved_traces

    def marker(
        self,
        name: str,
        actions: Sequence[ProfilerAction] = (
            ProfilerAction.WARMUP,
            ProfilerAction.ACTIVE,
            ProfilerAction.ACTIVE_AND_SAVE,
        ),
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
                name,
                state=lambda: self.state,
                should_record=lambda state: self._wants_any_of(actions, state),
                tell=self._tell_others,
                counters=self._counters,
                record_instant_on_start=record_instant_on_start,
                record_instant_on_finish=record_instant_on_finish,
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

    # ------------------------------------------------------------------------------------------------ under Composer

    def bind_to_state(self, state: Any) -> None:
        """Follow a training run of Composer, whose `Trainer` calls this.

        Args:
            state: The state of the training run.
        """
        self.state = state
        state.callbacks.extend([self, self.torch_profiler, *self._handlers])

    def after_load(self, state: Any, logger: Any) -> None:
        """Note where a resumed run goes on.

        Args:
            state: The state of the training run.
            logger: Not used.
        """
        self.resumption_batch_idx = int(state.timestamp.batch_in_epoch)

    # ----------------------------------------------------------------------------------------------- loops of your own

    def start(self, *, dataloader_len: int | None = None) -> Self:
        """Begin to follow a loop of your own.

        Args:
            dataloader_len: Batches in each epoch, for schedules that want to know which one is the last.

        Returns:
            This object.

        Raises:
            StateError: It was started already.
            FolderNotEmptyError: There are files in a folder and `overwrite` is off. It is a `FileExistsError`.
            ArgumentError: A name has `{run_name}` and there is none.
        """
        if self.torch_profiler.profiler is not None:
            raise StateError("Profiler was started already: call stop() first.")
        loop = LoopState(self._run_name, dataloader_len, clock=self._clock, profiler=self)
        # What may be refused comes first: nothing is recorded then.
        for handler in self._handlers:
            handler.init(loop, None)
        self.torch_profiler.init(loop, None)
        self.state = loop
        self.torch_profiler.follow(loop)
        return self

    def step(self, *, samples: int = 0, tokens: int = 0) -> None:
        """Say that a batch is over, and that the next one begins.

        Args:
            samples: Samples it had, for names with `{sample}`.
            tokens: Tokens it had, for names with `{token}`.

        Raises:
            StateError: `start` was not called.
        """
        self.torch_profiler.step(samples=samples, tokens=tokens)

    def next_epoch(self) -> None:
        """Say that an epoch is over; schedules of this room begin anew.

        Raises:
            StateError: `start` was not called.
        """
        self.torch_profiler.next_epoch()

    def stop(self) -> None:
        """End: save what is recorded, merge, finish uploads. A second call does nothing."""
        loop, self.state = self.state, None
        if loop is None:
            return
        self.torch_profiler.stop()
        for handler in self._handlers:
            try:
                handler.close(loop, None)
            except Exception as error:  # noqa: BLE001  (the training is over, and has succeeded)
                warnings.warn(
                    f"{type(handler).__name__} was not closed: {type(error).__name__}: {error}", stacklevel=2
                )

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def _own_handlers(self) -> list[JSONTraceHandler]:
        """Those that get the traces themselves, in which the marks are."""
        return [handler for handler in self._handlers if isinstance(handler, JSONTraceHandler)]

    def _wants_any_of(self, actions: Sequence[ProfilerAction], state: Any) -> bool:
        """Whether the schedule returns one of these actions; a failing schedule, which the recorder reports, returns none."""
        try:
            return self.schedule(state) in actions
        except Exception as error:  # noqa: BLE001  (whatever it is, it is not the training's)
            _log.debug("the schedule failed: %s", error)
            return False

    def _tell_others(self, what: str, **facts: Any) -> None:
        """Call the handlers that do not get the markers with the traces; one that fails is not called again."""
        for handler in self._handlers:
            if isinstance(handler, JSONTraceHandler):
                if what == "process_duration_event":
                    handler.note_range(facts["name"], facts["is_start"])
                continue
            if id(handler) in self._failed:
                continue
            try:
                getattr(handler, what)(**facts)
            except Exception as error:  # noqa: BLE001  (whatever a handler does, training goes on)
                self._failed.add(id(handler))
                warnings.warn(
                    f"{type(handler).__name__} gets no more markers: {type(error).__name__}: {error}",
                    stacklevel=4,
                )


def _checked_handlers(trace_handlers: Any) -> list[Any]:
    """A list of trace handlers, or an error that says which is none."""
    handlers = list(trace_handlers) if isinstance(trace_handlers, (list, tuple)) else [trace_handlers]
    for handler in handlers:
        missing = [call for call in _CALLS if not callable(getattr(handler, call, None))]
        if isinstance(handler, type) or missing:
            hint = (
                "it is a class: make an object of it" if isinstance(handler, type) else f"no {missing[0]}()"
            )
            raise ArgumentError(
                f"trace_handlers: {handler!r} is not a trace handler ({hint}); pass JSONTraceHandler(...) or a TraceHandler."
            )
    return handlers
