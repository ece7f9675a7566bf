"""Trace handlers: they receive the traces and marks of a profiler, and write them in their own format."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch.distributed

from kinetoscope._errors import StateError
from kinetoscope.collect import record_function, warn_user
from kinetoscope.combine.extend import extend
from kinetoscope.integrations.composer.files import FOLDER_VARIABLES, LoopState, TraceFiles
from kinetoscope.integrations.composer.marker import MarkedCounters, MarkerRanges
from kinetoscope.integrations.composer.merging import merge_traces
from kinetoscope.integrations.composer.schedule import IS_THERE, TraceHandler
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace

FOLDER = "{run_name}/traces"
FILENAME = "ep{epoch}-ba{batch}-rank{rank}.json"
REMOTE_FILE_NAME = "{run_name}/traces/ep{epoch}-ba{batch}-rank{rank}.json"
MERGED_FILENAME = "merged_trace.json"
MERGED_REMOTE_FILE_NAME = "{run_name}/traces/merged_trace.json"
_MERGED, _MERGED_REMOTE = "merged_trace_filename", "merged_trace_remote_file_name"
# How long the rank that merges waits for the files of the others of its machine.
_PATIENCE_S = 60.0
_POLL_S = 0.1
clock, sleep = time.monotonic, time.sleep


class JSONTraceHandler(TraceHandler):
    """Writes a trace of each cycle with everything in it, and after each fit one of those that are kept of all ranks of the machine.

    It is given to a `Profiler`, ours or Composer's. Operators, marks and counters are in one trace, on one axis of time.

    Args:
        folder: Format of the folder's name: see `TraceFiles`, also for the next two.
        filename: Format of the name of a trace.
        remote_file_name: Format of the name under which it is uploaded; None for no upload.
        merged_trace_filename: Format of the name of the merged trace in the folder, with the variables of a folder;
            None for none. The first rank of each machine writes it when a fit ends, and at the close if more was recorded since:
            see `merge_traces`. It needs traces that `kinetoscope.open` reads.
        merged_trace_remote_file_name: Format of the name under which that is uploaded; None for no upload.
        overwrite: Whether the folder may contain files, and remote files may be replaced.
        num_traces_to_keep: The number of traces to keep in the folder; -1 for all, 0 for none. The merged trace stays.

    Attributes:
        merges: Whether there is a merged trace at the end.
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
        merged_trace_filename: str | None = MERGED_FILENAME,
        merged_trace_remote_file_name: str | None = MERGED_REMOTE_FILE_NAME,
        *,
        overwrite: bool = False,
        num_traces_to_keep: int = -1,
    ) -> None:
        self.files = TraceFiles(
            folder,
            filename,
            remote_file_name,
            overwrite=overwrite,
            num_traces_to_keep=num_traces_to_keep,
        )
        self.merges = merged_trace_filename is not None
        if self.merges:
            self.files.add_name(_MERGED, merged_trace_filename, FOLDER_VARIABLES)
            self.files.add_name(_MERGED_REMOTE, merged_trace_remote_file_name, FOLDER_VARIABLES)
        # The traces that were merged last, and the files of earlier runs with the times of their last change.
        self._merged: list[Path] = []
        self._earlier_ns: dict[Path, int] = {}
        self._ranges = MarkerRanges()
        self._counters = MarkedCounters()
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
        if callbacks is not None and not any(_makes_traces(callback) for callback in callbacks):
            raise StateError(
                "JSONTraceHandler has nothing to write: Composer's Profiler makes no TorchProfiler when torch_prof_record_shapes, "
                "torch_prof_profile_memory, torch_prof_with_stack and torch_prof_with_flops are all off. Turn on at least one."
            )
        self.files.start(state.run_name, logger)
        if self.merges:
            self._prepare_to_merge()
        all_ranks_are_here(state)
        self._state = state

    def fit_end(self, state: Any, logger: Any) -> None:
        """A fit is over, and another one may follow, or the training is over, or has failed: merge what there is, and finish uploads.

        Args:
            state: Not used.
            logger: Not used.
        """
        if self.merges and self._state is not None:
            try:
                self._merge()
            except Exception as error:  # noqa: BLE001  (a full disk must not end a training run)
                warn_user(f"traces were not merged: {type(error).__name__}: {error}")
        self.files.close()

    close = fit_end

    def _prepare_to_merge(self) -> None:
        files, together = self.files, self.files.ranks.of_this_machine()
        if files.ranks.rank == together[0]:
            files.path(_MERGED).unlink(missing_ok=True)
            earlier = (path for rank in together for path in files.folder_of(rank).rglob("*"))
            self._earlier_ns = {path: path.stat().st_mtime_ns for path in earlier}
        remote = files.names[_MERGED_REMOTE] if files.has_place(_MERGED_REMOTE) else None
        several = files.ranks.world_size > len(together)
        if several and remote is not None and not remote.used & {"node_rank", "rank"}:
            warn_user(
                f"each machine merges the traces of its own ranks, and all upload to one name, {remote.text}: put "
                f"{{node_rank}} into {_MERGED_REMOTE}."
            )

    def _merge(self) -> None:
        """On the first rank of a machine, merge the traces that its ranks keep, unless they were merged already."""
        together = self.files.ranks.of_this_machine()
        rank_of = {paths[rank]: rank for _, paths in self.saved_traces for rank in together}
        if self.files.ranks.rank != together[0] or self._merged == [*rank_of]:
            return
        until_s = clock() + _PATIENCE_S
        while (missing := [path for path in rank_of if not self._is_written(path)]) and clock() < until_s:
            sleep(_POLL_S)
        path = self.files.path(_MERGED)
        path.parent.mkdir(parents=True, exist_ok=True)
        merge_traces(path, *(trace_path for trace_path in rank_of if trace_path not in missing))
        self._merged = [*rank_of]
        if missing:
            ranks = sorted({rank_of[trace_path] for trace_path in missing})
            warn_user(
                f"the merged trace {path} is missing traces of rank {', '.join(map(str, ranks))}, which were not written within "
                f"{_PATIENCE_S:g} s."
            )
        self.files.upload(_MERGED_REMOTE, path)

    def _is_written(self, path: Path) -> bool:
        """Whether a trace of this run is there."""
        return path.exists() and path.stat().st_mtime_ns != self._earlier_ns.get(path)

    def take(self, trace: Trace, timestamp: Any) -> None:
        """Write the trace of a cycle.

        Args:
            trace: The trace.
            timestamp: Where training is.

        Raises:
            StateError: `init` was not called.
            OSError: A file cannot be written.
        """
        trace = self._counters.added_to(trace)
        if trace.run_info.rank is None:
            trace = extend(trace, info={"rank": self.files.ranks.rank})
        self.files.save(trace, timestamp)

    def process_duration_event(
        self, name: str, categories: Any, is_start: bool, timestamp: Any, wall_clock_time_ns: int
    ) -> None:
        """A range of this name begins or ends; it is in the trace if a recording is under way.

        Args:
            name: What it is called.
            categories: Not used.
            is_start: Whether it begins.
            timestamp: Not used.
            wall_clock_time_ns: Not used: the recorder has a better clock.
        """
        if is_start:
            self._ranges.begin(name)
        else:
            self._ranges.end(name)

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
        """Counters have these values now; in the trace they are called `NAME/KEY`.

        Args:
            name: What they are called together.
            categories: Not used.
            wall_clock_time_ns: Not used.
            timestamp: Not used.
            values: The value of each counter.
        """
        self._counters.add(name, values)

    def process_chrome_json_trace_file(self, filepath: Any) -> None:
        """Something else wrote a trace, such as Composer's own `TorchProfiler`: write it as those of ours.

        Args:
            filepath: Where, in Chrome's format.
        """
        with open_trace(filepath) as trace:
            self.take(trace, self._state.timestamp)


def _makes_traces(callback: Any) -> bool:
    return any(kind.__name__ == "TorchProfiler" for kind in type(callback).__mro__)


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
