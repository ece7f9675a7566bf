"""Trace handlers: they receive the traces and marks of a profiler, and write them in their own format."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch.distributed

from kinetoscope._errors import StateError
from kinetoscope.collect import record_function, warn_user
from kinetoscope.combine.extend import extend
from kinetoscope.combine.sources import with_counters
from kinetoscope.integrations.composer.files import LoopState, TraceFiles
from kinetoscope.integrations.composer.schedule import IS_THERE, TraceHandler
from kinetoscope.storage.appended_rows import KeptRows
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace

FOLDER = "{run_name}/traces"
FILENAME = "ep{epoch}-ba{batch}-rank{rank}.json"
REMOTE_FILE_NAME = "{run_name}/traces/ep{epoch}-ba{batch}-rank{rank}.json"
# Composer marks its calls of callbacks. Inside of these calls of ours one step ends and the next one begins.
_OURS = "callback/TorchProfiler/"


class JSONTraceHandler(TraceHandler):
    """Writes a trace of each cycle with everything in it; `kinetoscope.merge` puts those of all ranks together.

    It is given to Composer's `Profiler`, after `install_composer`. Operators, marks and counters are in one trace, on one axis of time.

    Args:
        folder: Format of the folder's name: see `TraceFiles`, also for the next two.
        filename: Format of the name of a trace.
        remote_file_name: Format of the name under which it is uploaded; None for no upload.
        merged_trace_filename: An argument of Composer's class; nothing is merged while training runs, and a name warns of it.
        merged_trace_remote_file_name: The same.
        overwrite: Whether the folder may contain files, and remote files may be replaced.
        num_traces_to_keep: The number of traces to keep in the folder; -1 for all, 0 for none.

    Attributes:
        saved_traces: A pair for each trace that is kept, the newest last: its timestamp and a list of paths, one for each rank.

    Raises:
        ArgumentError: A name has an unknown variable (it lists the known ones), or an argument cannot be used.
        MissingDependencyError: A URL needs a package that is not installed.
    """

    def __init__(
        self,
        folder: str = FOLDER,
        filename: str = FILENAME,
        remote_file_name: str | None = REMOTE_FILE_NAME,
        merged_trace_filename: str | None = None,
        merged_trace_remote_file_name: str | None = None,
        *,
        overwrite: bool = False,
        num_traces_to_keep: int = -1,
    ) -> None:
        if merged := merged_trace_filename or merged_trace_remote_file_name:
            warn_user(
                f"JSONTraceHandler writes no merged trace {merged!r}: leave the name out, and merge the traces of all ranks with "
                "kinetoscope.merge, also those of several machines."
            )
        self.files = TraceFiles(
            folder,
            filename,
            remote_file_name,
            overwrite=overwrite,
            num_traces_to_keep=num_traces_to_keep,
        )
        # The open ranges by their names, and the values of counters since the last trace.
        self._ranges: dict[str, Any] = {}
        self._counters = KeptRows()
        self._state: Any = None

    @property
    def saved_traces(self) -> list[tuple[Any, list[Path]]]:
        """The kept traces: timestamp and the path of each rank, the newest last."""
        return self.files.saved_traces

    def init(self, state: Any, logger: Any) -> None:
        """Make the folder ready, before training begins.

        Args:
            state: The state of the training run.
            logger: Where traces are uploaded; None for none.

        Raises:
            StateError: There is no profiler that makes traces.
            FolderNotEmptyError: There are files in the folder and `overwrite` is off. It is a `FileExistsError`.
            ArgumentError: A name contains `{run_name}`, and the run has none.
        """
        if getattr(state, "profiler", None) is None:
            raise StateError(
                "JSONTraceHandler has no profiler to get traces from: pass it as Profiler(trace_handlers=[...]), and that "
                "to Composer's Trainer as profiler."
            )
        callbacks = getattr(state, "callbacks", None)
        kinds = {kind.__name__ for callback in callbacks or () for kind in type(callback).__mro__}
        if callbacks is not None and "TorchProfiler" not in kinds:
            raise StateError(
                "JSONTraceHandler has nothing to write: Composer's Profiler makes no TorchProfiler when torch_prof_record_shapes, "
                "torch_prof_profile_memory, torch_prof_with_stack and torch_prof_with_flops are all off. Turn on at least one."
            )
        self.files.start(state.run_name, logger)
        all_ranks_are_here(state)
        self._state = state

    def fit_end(self, state: Any, logger: Any) -> None:
        """A fit is over, and another one may follow, or the training is over, or has failed: finish uploads.

        Args:
            state: Not used.
            logger: Not used.
        """
        self.files.close()

    close = fit_end

    def take(self, trace: Trace, timestamp: Any) -> None:
        """Write the trace of a cycle.

        Args:
            trace: The trace.
            timestamp: Where training is.

        Raises:
            StateError: `init` was not called.
            OSError: A file cannot be written.
        """
        values, self._counters = self._counters, KeptRows()
        trace = with_counters(trace, values.rows())
        if trace.run_info.rank is None:
            trace = extend(trace, info={"rank": self.files.ranks.rank})
        self.files.save(trace, timestamp)

    def process_duration_event(
        self, name: str, categories: Any, is_start: bool, timestamp: Any, wall_clock_time_ns: int
    ) -> None:
        """A range of this name begins or ends; it is in the trace if a recording is under way. One of the same name is closed first.

        Args:
            name: What it is called.
            categories: Not used.
            is_start: Whether it begins.
            timestamp: Not used.
            wall_clock_time_ns: Not used: the recorder has a better clock.
        """
        begun = self._ranges.pop(name, None)
        if begun is not None:
            begun.__exit__(None, None, None)
        if is_start and not name.startswith(_OURS):
            self._ranges[name] = record_function(name)
            self._ranges[name].__enter__()

    def process_instant_event(
        self, name: str, categories: Any, timestamp: Any, wall_clock_time_ns: int
    ) -> None:
        """An instant of this name; the trace shows it as an empty range.

        Args:
            name: What it is called.
            categories: Not used.
            timestamp: Not used.
            wall_clock_time_ns: Not used.
        """
        with record_function(name):
            pass

    def process_counter_event(
        self, name: str, categories: Any, wall_clock_time_ns: int, timestamp: Any, values: dict[str, Any]
    ) -> None:
        """Counters have these values now; in the trace they are called `NAME/KEY`. Thread-safe.

        Args:
            name: What they are called together.
            categories: Not used.
            wall_clock_time_ns: Not used.
            timestamp: Not used.
            values: The value of each counter.
        """
        columns: dict[str, list[Any]] = {
            "monotonic_ns": [time.monotonic_ns()] * len(values),
            "name": [f"{name}/{key}" for key in values],
            "value": [float(value) for value in values.values()],
        }
        self._counters("counters", columns)

    def process_chrome_json_trace_file(self, filepath: Any) -> None:
        """Something else wrote a trace, such as Composer's own `TorchProfiler`: write it as those of ours.

        Args:
            filepath: Where, in Chrome's format.
        """
        with open_trace(filepath) as trace:
            self.take(trace, self._state.timestamp)


def tell_handlers(profiler: Any, trace: Trace, timestamp: Any, path: Path) -> None:
    """Give a trace to the handlers of a profiler: to ours itself, to others the file, if it is one that they can read."""
    handlers = getattr(profiler, "trace_handlers", ())
    for handler in handlers:
        try:
            if isinstance(handler, JSONTraceHandler):
                handler.take(trace, timestamp)
            elif path.name.lower().endswith((".json", ".json.gz")):
                handler.process_chrome_json_trace_file(path)
        except Exception as error:  # noqa: BLE001  (whatever a handler does, training goes on)
            warn_user(f"{type(handler).__name__} did not write a trace: {type(error).__name__}: {error}")


def all_ranks_are_here(state: Any) -> None:
    """Wait for all ranks of Composer's run: none may write before all have seen that a folder is empty."""
    distributed = torch.distributed
    if (
        IS_THERE
        and not isinstance(state, LoopState)
        and distributed.is_available()
        and distributed.is_initialized()
    ):
        from composer.utils import dist

        dist.barrier()
