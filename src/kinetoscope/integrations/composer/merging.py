"""The traces of several ranks and cycles as one, from their files."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from kinetoscope._errors import ArgumentError
from kinetoscope.combine.concatenate import concatenate
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace
from kinetoscope.trace.opening import merge


def merge_traces(output_file: str | os.PathLike[str], *trace_files: str | os.PathLike[str]) -> Path:
    """Merge traces into one file: those of each rank in sequence, and all ranks on one clock.

    How the clocks were brought together, and by how much they may be off, is in the table `processes` of the merged trace: see
    `kinetoscope.merge`.

    Args:
        output_file: Where to write; the suffix names the format, as for `Trace.save`.
        trace_files: Paths or URLs of the traces, in any order.

    Returns:
        The path of the merged trace.

    Raises:
        ArgumentError: There are no traces, one is given twice, or one of several is of no rank or of several.
        FormatError: A file is no trace.
        OSError: A file cannot be read or written.
    """
    paths = [os.fspath(path) for path in trace_files]
    if not paths:
        raise ArgumentError("merge_traces: there are no traces to merge.")
    twice = sorted(path for path in paths if paths.count(path) > 1)
    if twice:
        raise ArgumentError(f"merge_traces: {twice[0]} is given twice.")
    of_rank: dict[int | None, list[Trace]] = {}
    with ExitStack() as opened:
        for path in paths:
            trace = opened.enter_context(open_trace(path))
            rank = trace.run_info.rank
            if rank is None and len(paths) > 1:
                raise ArgumentError(
                    f"{path} does not state its rank, so its cycle cannot be assigned to one: merge traces that a "
                    "JSONTraceHandler or TorchProfiler wrote, or use kinetoscope.merge with one trace for each process."
                )
            of_rank.setdefault(rank, []).append(trace)
        cycles = [concatenate(sorted(traces, key=_began_ns)) for traces in of_rank.values()]
        merge(cycles).save(Path(output_file))
    return Path(output_file)


def _began_ns(trace: Trace) -> int:
    return trace.run_info.start_realtime_ns or 0
