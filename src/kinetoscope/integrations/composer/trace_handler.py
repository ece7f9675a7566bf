"""Trace handlers: what gets the traces of a profiler, and marks, and writes them in a form of its own."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.combine.extend import extend
from kinetoscope.integrations.composer.files import TraceFiles, Uploads, check_suffix, check_url, is_url
from kinetoscope.integrations.composer.json_trace_merger import merged_by_rank, save_merged
from kinetoscope.integrations.composer.marker import OURS, MarkedCounters, Ranges
from kinetoscope.integrations.composer.names import FOLDER_VARIABLES, LoopState, NameTemplate, Ranks
from kinetoscope.integrations.composer.schedule import IS_THERE, TraceHandler
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace

# The trace of all cycles of all ranks of a machine, which one of them writes at the end of each fit.
#
# Each rank stores its cycles in a hidden folder next to the traces until the run is closed, in our own format: exact, small, and
# still there when the traces themselves were deleted. So a second fit writes a merged trace of both. Ranks wait for each other
# only when a fit ends.

_CYCLES = ".cycles"
_POLL_S = 0.1
# The ranks of a machine share both; the first is exact, but files of other profilers know only the second.
_CLOCKS: dict[str, Callable[[], int]] = {"monotonic": time.monotonic_ns, "realtime": time.time_ns}


class MergedTrace:
    """Gathers the traces of the ranks of a machine and merges them at the end of the run.

    Args:
        filename: Format of the merged trace's name in the folder of the traces.
        remote_file_name: Format of the name under which it is uploaded, None for no upload.
        overwrite: Whether remote files may be replaced.
        attempts: The number of attempts of an upload.
        patience_s: How many seconds the rank that merges waits for the others at the end.
        sleep: Waits a number of seconds.
        clock: Tells seconds.

    Raises:
        ArgumentError: A name has an unknown variable, or the suffix names no format.
        MissingDependencyError: A URL needs a package that is not installed.
    """

    def __init__(
        self,
        filename: str,
        remote_file_name: str | None,
        *,
        overwrite: bool,
        attempts: int,
        patience_s: float,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = NameTemplate("merged_trace_filename", filename, FOLDER_VARIABLES)
        check_suffix("merged_trace_filename", filename)
        self._remote: NameTemplate | None = None
        if remote_file_name is not None:
            self._remote = NameTemplate("merged_trace_remote_file_name", remote_file_name, FOLDER_VARIABLES)
            if is_url(remote_file_name):
                check_url("merged_trace_remote_file_name", remote_file_name)
        self._uploads = Uploads(overwrite=overwrite, attempts=attempts, sleep=sleep)
        self._patience_s = patience_s
        self._sleep = sleep
        self._clock = clock
        self._folder_of: Callable[[int], Path] | None = None
        self._number = 0
        self._ends = 0
        self._open: dict[str, dict[str, Any]] = {}
        self._around: list[dict[str, Any]] = []
        self._written: object = None
        self._run_name = ""
        self._logger: Any = None
        self._ranks = Ranks()

    def start(self, folder_of: Callable[[int], Path], run_name: str | None, logger: Any) -> None:
        """Make ready for a run; what an earlier run left of this rank goes.

        Args:
            folder_of: Tells the folder of the traces of a rank.
            run_name: Name of the run.
            logger: A trainer's logger, to upload through, or None.

        Raises:
            ArgumentError: A name contains `{run_name}`, and the run has none.
            OSError: Old files cannot be deleted.
        """
        for name in (self._name, self._remote_if_anywhere(logger)):
            if name is not None and "run_name" in name.used and not run_name:
                raise ArgumentError(
                    f"{name.what} contains {{run_name}}, and the run has no name: pass run_name=..., or a name without it."
                )
        self._run_name, self._logger = run_name or "", logger
        self._ranks = Ranks.of_this_process()
        self._folder_of, self._number, self._ends = folder_of, 0, 0
        self._open, self._around, self._written = {}, [], None
        rank, together = self._ranks.rank, self._ranks.of_this_machine()
        for old in self._place_of(rank).glob(f"rank{rank}.*"):
            old.unlink(missing_ok=True)
        if rank == together[0]:
            self._path().unlink(missing_ok=True)
        several = self._ranks.world_size > len(together)
        remote = self._remote_if_anywhere(logger)
        if several and remote is not None and not remote.used & {"node_rank", "rank"}:
            warnings.warn(
                f"each machine merges the traces of its own ranks, and all upload to one name, {remote.text}: put "
                "{node_rank} into merged_trace_remote_file_name.",
                stacklevel=4,
            )

    def add(self, trace: Trace) -> None:
        """Keep the trace of a cycle of this rank.

        Raises:
            OSError: It cannot be written.
        """
        if self._folder_of is None:
            return
        self._around += [
            one for one in self._open.values() if not any(one is known for known in self._around)
        ]
        self._number += 1
        place = self._place_of(self._ranks.rank)
        place.mkdir(exist_ok=True)
        trace.save(place / f"rank{self._ranks.rank}.{self._number:06d}.ktrace")

    def note_range(self, name: str, is_start: bool) -> None:
        """Note that a range of the program begins or ends. What lasts beyond the end of a recording, such as an epoch, is whole in no cycle.

        Args:
            name: What it is called.
            is_start: Whether it begins.
        """
        now_ns = {clock: read() for clock, read in _CLOCKS.items()}
        if is_start:
            self._open[name] = {
                "name": name,
                "rank": self._ranks.rank,
                "tid": threading.get_native_id(),
                **{clock: [ns, None] for clock, ns in now_ns.items()},
            }
        elif (one := self._open.pop(name, None)) is not None:
            for clock, ns in now_ns.items():
                one[clock][1] = ns

    def finish(self, *, last: bool = True) -> Path | None:
        """Say that this rank is done; the first rank of a machine waits for the others, merges, and uploads.

        Args:
            last: Whether nothing more can come. Otherwise the cycles are kept, and a later call merges all of them again.

        Returns:
            The path of the merged trace, None where another rank makes it or nothing was recorded.

        Raises:
            KinetoscopeError: The traces cannot be merged. They are still there.
            OSError: A file cannot be read or written.
        """
        if self._folder_of is None:
            return None
        together = self._ranks.of_this_machine()
        self._ends += 1
        try:
            if self._around:
                noted = self._ranges_of(self._ranks.rank)
                partial = noted.with_suffix(".part")
                partial.write_text(json.dumps(self._around), encoding="utf-8")
                partial.replace(noted)
            if self._ranks.rank == together[0]:
                return self._merged(together, last)
            end = self._end_of(self._ranks.rank)
            end.parent.mkdir(exist_ok=True)
            end.touch()
            return None
        finally:
            if last:
                self._folder_of = None
            self._uploads.close()

    def _merged(self, ranks: range, last: bool) -> Path | None:
        """Merge what all ranks of this machine have, unless that was merged already."""
        missing = self._awaited([rank for rank in ranks if rank != self._ranks.rank])
        cycles = [path for rank in ranks for path in self._cycles_of(rank)]
        ranges = [
            one
            for rank in ranks
            if (noted := self._ranges_of(rank)).exists()
            for one in json.loads(noted.read_text("utf-8"))
        ]
        path = self._path()
        if cycles and (cycles, ranges) != self._written:
            self._write(path, cycles, ranges)
            self._written = cycles, ranges
            if missing:
                warnings.warn(
                    f"the merged trace {path} may be missing cycles of rank {', '.join(map(str, missing))}, which did not finish within "
                    f"{self._patience_s:g} s.",
                    stacklevel=4,
                )
            self._upload(path)
        if last:
            self._tidy_up(ranks, cycles)
        return path if cycles else None

    @staticmethod
    def _write(path: Path, cycles: list[Path], ranges: list[dict[str, Any]]) -> None:
        """Write the merged trace; in Chrome's format it is a list of events, as Composer's is."""
        path.parent.mkdir(parents=True, exist_ok=True)
        named: list[tuple[str, Trace]] = []
        try:
            named += ((str(cycle), open_trace(cycle)) for cycle in cycles)
            merged = merged_by_rank(named)
            save_merged(merged, path, _on_the_axis_of(merged, ranges))
        finally:
            for _, trace in named:
                trace.close()

    def _awaited(self, others: list[int]) -> list[int]:
        """Wait until other ranks are done, and return those that are not in time."""
        until_s = self._clock() + self._patience_s
        while True:
            missing = [rank for rank in others if not self._end_of(rank).exists()]
            if not missing or self._clock() >= until_s:
                return missing
            self._sleep(_POLL_S)

    def _upload(self, path: Path) -> None:
        """Upload the merged trace to where its name says."""
        remote = self._remote_if_anywhere(self._logger)
        if remote is None:
            return
        name = remote.filled_in(self._run_name, self._ranks)
        if is_url(name):
            self._uploads.to_url(path, name, lambda _arrived: None)
        else:
            self._uploads.through(self._logger, path, name.lstrip("/"))

    def _remote_if_anywhere(self, logger: Any) -> NameTemplate | None:
        """The remote name, None if there is no place for it: a plain one needs a logger."""
        somewhere = self._remote is not None and (logger is not None or is_url(self._remote.text))
        return self._remote if somewhere else None

    def _tidy_up(self, ranks: range, cycles: list[Path]) -> None:
        """Delete what was merged."""
        for path in cycles:
            path.unlink(missing_ok=True)
        for rank in ranks:
            place = self._place_of(rank)
            for old in (self._ranges_of(rank), *place.glob(f"rank{rank}.*.end")):
                old.unlink(missing_ok=True)
            if place.exists() and not any(place.iterdir()):
                place.rmdir()

    def _path(self) -> Path:
        """Where the merged trace is written."""
        return self._place_of(self._ranks.rank).parent / self._name.filled_in(self._run_name, self._ranks)

    def _place_of(self, rank: int) -> Path:
        """The folder of the cycles of a rank."""
        if self._folder_of is None:
            raise StateError("the folder for traces is not ready: call start() before training begins.")
        return self._folder_of(rank) / _CYCLES

    def _cycles_of(self, rank: int) -> list[Path]:
        """The cycles of a rank, the oldest first."""
        return sorted(self._place_of(rank).glob(f"rank{rank}.*.ktrace"))

    def _ranges_of(self, rank: int) -> Path:
        """The file of the ranges of a rank that last beyond the end of a recording."""
        return self._place_of(rank) / f"rank{rank}.ranges.json"

    def _end_of(self, rank: int) -> Path:
        """The file that says that a rank is done as often as this one."""
        return self._place_of(rank) / f"rank{rank}.{self._ends}.end"


def _on_the_axis_of(merged: Trace, ranges: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ranges with their moments from the start of a trace; none if the trace does not state its start."""
    for clock in _CLOCKS:
        origin_ns: int | None = getattr(merged.run_info, f"start_{clock}_ns")
        if origin_ns is not None:
            return [
                {
                    "name": one["name"],
                    "rank": one["rank"],
                    "tid": one["tid"],
                    "begin_ns": one[clock][0] - origin_ns,
                    "end_ns": None if one[clock][1] is None else one[clock][1] - origin_ns,
                }
                for one in ranges
            ]
    return []


FOLDER = "{run_name}/traces"
FILENAME = "ep{epoch}-ba{batch}-rank{rank}.json"
REMOTE_FILE_NAME = "{run_name}/traces/ep{epoch}-ba{batch}-rank{rank}.json"
MERGED_FILENAME = "merged_trace.json"
MERGED_REMOTE_FILE_NAME = "{run_name}/traces/merged_trace.json"


class JSONTraceHandler(TraceHandler):
    """Writes a trace of each cycle with everything in it, and after each fit one of all cycles of all ranks of the machine.

    It is given to a `Profiler`, ours or Composer's. Operators, marks and counters are in one trace, on one axis of time.

    Args:
        folder: Format of the folder's name: see `TraceFiles`, also for the next two.
        filename: Format of the name of a trace.
        remote_file_name: Format of the name under which it is uploaded; None for no upload.
        merged_trace_filename: Format of the name of the merged trace in the folder, with the variables of a folder;
            None for none. The first rank of each machine writes it when a fit ends, and at the close if more was recorded since.
            In `.json` it is a list of events.
        merged_trace_remote_file_name: Format of the name under which that is uploaded; None for no upload.
        overwrite: Whether the folder may contain files, and remote files may be replaced.
        num_traces_to_keep: The number of traces to keep in the folder; -1 for all, 0 for none. The merged trace stays, and has all cycles.
        attempts: The number of attempts of an upload.
        patience_s: How many seconds the rank that merges waits for the others of its machine, at the end.
        sleep: Waits a number of seconds.
        clock: Tells seconds, for `patience_s`.

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
        merged_trace_filename: str | None = MERGED_FILENAME,
        merged_trace_remote_file_name: str | None = MERGED_REMOTE_FILE_NAME,
        *,
        overwrite: bool = False,
        num_traces_to_keep: int = -1,
        attempts: int = 3,
        patience_s: float = 60.0,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.files = TraceFiles(
            folder,
            filename,
            remote_file_name,
            overwrite=overwrite,
            num_traces_to_keep=num_traces_to_keep,
            attempts=attempts,
            sleep=sleep,
        )
        patience: object = patience_s
        if not isinstance(patience, (int, float)) or not patience >= 0:
            raise ArgumentError(f"patience_s={patience_s!r} is not valid: need a number of seconds.")
        self._merged: MergedTrace | None = None
        if merged_trace_filename is not None:
            self._merged = MergedTrace(
                merged_trace_filename,
                merged_trace_remote_file_name,
                overwrite=overwrite,
                attempts=attempts,
                patience_s=patience_s,
                sleep=sleep,
                clock=clock,
            )
        self._ranges = Ranges()
        self._counters = MarkedCounters()
        self._state: Any = None

    @property
    def saved_traces(self) -> list[tuple[Any, list[Path]]]:
        """The kept traces: timestamp and the path of each rank, the newest last."""
        return self.files.saved_traces

    @property
    def merges(self) -> bool:
        """Whether there is a merged trace at the end."""
        return self._merged is not None

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
        if callbacks is not None and not any(type(each).__name__ == "TorchProfiler" for each in callbacks):
            raise StateError(
                "JSONTraceHandler has nothing to write: Composer's Profiler makes no TorchProfiler when torch_prof_record_shapes, "
                "torch_prof_profile_memory, torch_prof_with_stack and torch_prof_with_flops are all off. Turn on at least one."
            )
        self.files.start(state.run_name, logger)
        if self._merged is not None:
            self._merged.start(self.files.folder_of, state.run_name, logger)
        all_ranks_are_here(state)
        self._state = state

    def fit_end(self, state: Any, logger: Any) -> None:
        """A fit is over, and another one may follow: merge what there is.

        Args:
            state: Not used.
            logger: Not used.
        """
        self._merge(last=False)

    def close(self, state: Any, logger: Any) -> None:
        """Training is over, or has failed: finish uploads, and merge.

        Args:
            state: Not used.
            logger: Not used.
        """
        self._merge(last=True)
        self.files.close()

    def note_range(self, name: str, is_start: bool) -> None:
        """Note a range. Those that last beyond the end of a recording are in the merged trace; calls of our own recorder are not.

        Args:
            name: What it is called.
            is_start: Whether it begins.
        """
        if self._merged is not None and not name.startswith(OURS):
            self._merged.note_range(name, is_start)

    def _merge(self, *, last: bool) -> None:
        """Merge; a failure is a warning."""
        if self._merged is None:
            return
        try:
            self._merged.finish(last=last)
        except Exception as error:  # noqa: BLE001  (a full disk must not end a training run)
            warnings.warn(f"traces were not merged: {type(error).__name__}: {error}", stacklevel=3)

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
            trace = extend(trace, info={"rank": Ranks.of_this_process().rank})
        self.files.save(trace, timestamp)
        if self._merged is not None:
            self._merged.add(trace)

    # ------------------------------------------------------------- what the markers of Composer's own profiler tell

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
        self.note_range(name, is_start)
        if is_start:
            self._ranges.begin(name)
        else:
            self._ranges.end(name)

    def process_instant_event(
        self, name: str, categories: Any, timestamp: Any, wall_clock_time_ns: int
    ) -> None:
        """Something of this name happened; it is in the trace as a range that is over at once.

        Args:
            name: What it is called.
            categories: Not used.
            timestamp: Not used.
            wall_clock_time_ns: Not used.
        """
        moment = Ranges()
        moment.begin(name)
        moment.end(name)

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
            warnings.warn(
                f"{type(handler).__name__} did not write a trace: {type(error).__name__}: {error}",
                stacklevel=2,
            )


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
