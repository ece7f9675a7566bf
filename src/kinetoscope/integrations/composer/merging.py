"""Merging the traces of ranks and cycles: from files, and at the end of each fit."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.collect import warn_user
from kinetoscope.combine.concatenate import concatenate
from kinetoscope.formats.chrome.write import write_chrome_events
from kinetoscope.formats.suffixes import WHOLE_TRACE, suffix_of
from kinetoscope.integrations.composer.files import TraceFiles
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace
from kinetoscope.trace.opening import merge


def merge_traces(output_file: str | os.PathLike[str], *trace_files: str | os.PathLike[str]) -> Path:
    """Merge traces into one file: those of each rank in sequence, and all ranks on one clock.

    How the clocks were brought together, and by how much they may be off, is in the table `processes` of the merged trace: see
    `kinetoscope.merge`.

    Args:
        output_file: Where to write; the suffix names the format, as for `Trace.save`. JSON is a list of events, as
            Composer's is.
        trace_files: Paths or URLs of the traces, in any order.

    Returns:
        The path of the merged trace.

    Raises:
        ArgumentError: There are no traces, or one is given twice, or some of several are of no rank or of several.
        FormatError: A file is no trace.
        OSError: A file cannot be read or written.
    """
    paths = [os.fspath(path) for path in trace_files]
    if not paths:
        raise ArgumentError("merge_traces: there are no traces to merge.")
    twice = sorted(path for path in paths if paths.count(path) > 1)
    if twice:
        raise ArgumentError(f"merge_traces: {twice[0]} is given twice.")
    return _merge_files(paths, output_file)


def _merge_files(
    paths: Iterable[str], output_file: str | os.PathLike[str], ranges: Sequence[dict[str, Any]] = ()
) -> Path:
    """Merge traces into one file; in Chrome's format it is a list of events, as Composer's is, with further ranges."""
    path = Path(output_file)
    with ExitStack() as opened:
        merged = _merged_by_rank([(name, opened.enter_context(open_trace(name))) for name in paths])
        if WHOLE_TRACE.get(suffix_of(path)) == "chrome":
            write_chrome_events(merged, path, _on_the_axis_of(merged, ranges))
        else:
            merged.save(path)
    return path


def _merged_by_rank(named: Sequence[tuple[str, Trace]]) -> Trace:
    """One trace of those of several cycles and ranks, each given with its name for messages."""
    of_rank: dict[int | None, list[Trace]] = {}
    for name, trace in named:
        rank = trace.run_info.rank
        ranks = sorted({rank for rank in trace.column("threads", "rank").tolist() if rank >= 0})
        if len(ranks) > 1 and len(named) > 1:
            raise ArgumentError(
                f"{name} is a merged trace of the ranks {', '.join(map(str, ranks))}: merge the original files."
            )
        if rank is None and len(named) > 1:
            raise ArgumentError(
                f"{name} does not state its rank, so its cycle cannot be assigned to one: merge traces that a "
                "JSONTraceHandler or TorchProfiler wrote, or use kinetoscope.merge with one trace for each process."
            )
        of_rank.setdefault(rank, []).append(trace)
    return merge([concatenate(sorted(traces, key=_began_ns)) for traces in of_rank.values()])


def _began_ns(trace: Trace) -> int:
    return trace.run_info.start_realtime_ns or 0


# The trace of all cycles of all ranks of a machine, which one of them writes at the end of each fit.
#
# Each rank stores its cycles in a hidden folder next to the traces until the run is closed, in our own format: exact, small, and
# still there when the traces themselves were deleted. So a second fit writes a merged trace of both. Ranks wait for each other
# only when a fit ends.

_CYCLES = ".cycles"
_NAME, _REMOTE_NAME = "merged_trace_filename", "merged_trace_remote_file_name"
_POLL_S = 0.1
clock, sleep = time.monotonic, time.sleep


class MergedTrace:
    """Gathers the traces of the ranks of a machine in a run, and merges them. What an earlier run left of this rank is deleted.

    Args:
        files: The files of the traces, which were started. Their folder, uploads and run are also those of the merged trace,
            and they have the names `merged_trace_filename` and, unless it is not uploaded, `merged_trace_remote_file_name`.
        patience_s: How many seconds the rank that merges waits for the others at the end.

    Raises:
        OSError: Old files cannot be deleted.
    """

    def __init__(self, files: TraceFiles, patience_s: float) -> None:
        self._files = files
        self._patience_s = patience_s
        self._number = 0
        self._ends = 0
        self._open: dict[str, dict[str, Any]] = {}
        self._around: list[dict[str, Any]] = []
        self._written: object = None
        ranks, together = files.ranks, files.ranks.of_this_machine()
        for old in self._place_of(ranks.rank).glob(f"rank{ranks.rank}.*"):
            old.unlink(missing_ok=True)
        if ranks.rank == together[0]:
            files.path(_NAME).unlink(missing_ok=True)
        remote = files.names[_REMOTE_NAME] if files.has_place(_REMOTE_NAME) else None
        several = ranks.world_size > len(together)
        if several and remote is not None and not remote.used & {"node_rank", "rank"}:
            warn_user(
                f"each machine merges the traces of its own ranks, and all upload to one name, {remote.text}: put "
                f"{{node_rank}} into {_REMOTE_NAME}."
            )

    def add(self, trace: Trace) -> None:
        """Keep the trace of a cycle of this rank.

        Raises:
            OSError: It cannot be written.
        """
        self._around += [user_range for user_range in self._open.values() if user_range not in self._around]
        self._number += 1
        rank = self._files.ranks.rank
        self._place_of(rank).mkdir(exist_ok=True)
        trace.save(self._place_of(rank) / f"rank{rank}.{self._number:06d}.ktrace")

    def note_range(self, name: str, is_start: bool) -> None:
        """Note the start or end of a range of the program. A range that outlasts a recording, such as an epoch, is not complete in any cycle.

        Args:
            name: What it is called.
            is_start: Whether it begins.
        """
        now_ns = time.monotonic_ns()
        if is_start:
            self._open[name] = {
                "name": name,
                "rank": self._files.ranks.rank,
                "tid": threading.get_native_id(),
                "begin_ns": now_ns,
                "end_ns": None,
            }
        elif (open_range := self._open.pop(name, None)) is not None:
            open_range["end_ns"] = now_ns

    def finish(self, *, last: bool) -> None:
        """Say that this rank is done; the first rank of a machine waits for the others, merges, and uploads.

        Args:
            last: Whether nothing more can come. Otherwise the cycles are kept, and a later call merges all of them again.

        Raises:
            KinetoscopeError: The traces cannot be merged. They are still there.
            OSError: A file cannot be read or written.
        """
        self._ends += 1
        rank, together = self._files.ranks.rank, self._files.ranks.of_this_machine()
        if rank == together[0]:
            self._merge(together, last)
            return
        end = self._end_of(rank)
        end.parent.mkdir(exist_ok=True)
        partial = end.with_suffix(".part")
        partial.write_text(json.dumps(self._around), encoding="utf-8")
        partial.replace(end)

    def _merge(self, ranks: range, last: bool) -> None:
        """Merge the traces of all ranks of this machine, unless they were merged already."""
        ends = {rank: self._end_of(rank) for rank in ranks[1:]}
        until_s = clock() + self._patience_s
        while (missing := [rank for rank, end in ends.items() if not end.exists()]) and clock() < until_s:
            sleep(_POLL_S)
        cycles = [
            path for rank in ranks for path in sorted(self._place_of(rank).glob(f"rank{rank}.*.ktrace"))
        ]
        ranges = [user_range.copy() for user_range in self._around]
        for end in (end for rank, end in ends.items() if rank not in missing):
            ranges += json.loads(end.read_text("utf-8"))
        if cycles and (cycles, ranges) != self._written:
            path = self._files.path(_NAME)
            path.parent.mkdir(parents=True, exist_ok=True)
            _merge_files(map(str, cycles), path, ranges)
            self._written = cycles, ranges
            if missing:
                warn_user(
                    f"the merged trace {path} may be missing cycles of rank {', '.join(map(str, missing))}, which did not finish within "
                    f"{self._patience_s:g} s."
                )
            self._files.upload(_REMOTE_NAME, path)
        if last:
            self._tidy_up(ranks, cycles)

    def _tidy_up(self, ranks: range, cycles: list[Path]) -> None:
        for path in cycles:
            path.unlink(missing_ok=True)
        for rank in ranks:
            folder = self._place_of(rank)
            for end in folder.glob(f"rank{rank}.*.end"):
                end.unlink(missing_ok=True)
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    def _place_of(self, rank: int) -> Path:
        return self._files.folder_of(rank) / _CYCLES

    def _end_of(self, rank: int) -> Path:
        """The file that says that a rank is done as often as this one. It has its ranges that last beyond the end of a recording."""
        return self._place_of(rank) / f"rank{rank}.{self._ends}.end"


def _on_the_axis_of(merged: Trace, ranges: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ranges with their moments from the start of a trace; none if the trace does not state its start."""
    run = merged.run_info
    origin_ns = run.start_monotonic_ns
    if origin_ns is None and run.start_realtime_ns is not None:
        # Files of other profilers know only this clock.
        origin_ns = run.start_realtime_ns - time.time_ns() + time.monotonic_ns()
    if origin_ns is None:
        return []
    return [
        user_range | {key: user_range[key] and user_range[key] - origin_ns for key in ("begin_ns", "end_ns")}
        for user_range in ranges
    ]
