"""Merges the traces of ranks, of one cycle or of many, into one file.

python -m kinetoscope.integrations.composer.json_trace_merger -o merged.json run/traces/*.json
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope.combine.concatenate import concatenate
from kinetoscope.formats.chrome.write import write_chrome_events
from kinetoscope.formats.suffixes import WHOLE_TRACE, suffix_of
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
    given = [os.fspath(path) for path in trace_files]
    if not given:
        raise ArgumentError("merge_traces: there are no traces to merge.")
    twice = sorted(path for path in given if given.count(path) > 1)
    if twice:
        raise ArgumentError(f"merge_traces: {twice[0]} is given twice.")
    merged = merged_by_rank([(path, open_trace(path)) for path in given])
    return save_merged(merged, output_file)


def save_merged(
    merged: Trace, output_file: str | os.PathLike[str], ranges: Iterable[dict[str, Any]] = ()
) -> Path:
    """Write a merged trace; in Chrome's format as a list of events, which Composer's readers expect.

    Args:
        merged: The trace.
        output_file: Where to write; the suffix names the format.
        ranges: Further ranges for a list of events, as `write_chrome_events` takes them.

    Returns:
        The path.

    Raises:
        ArgumentError: The suffix names no format.
        OSError: The file cannot be written.
    """
    path = Path(output_file)
    if WHOLE_TRACE.get(suffix_of(path)) == "chrome":
        write_chrome_events(merged, path, ranges)
    else:
        merged.save(path)
    return path


def merged_by_rank(named: Sequence[tuple[str, Trace]]) -> Trace:
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
    """When a trace began, by the real-time clock."""
    return trace.run_info.start_realtime_ns or 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Merge the files that the command line names; the exit code is 1 if they cannot be merged."""
    parser = argparse.ArgumentParser(
        prog="python -m kinetoscope.integrations.composer.json_trace_merger",
        description="Merge the traces of ranks and cycles into one file.",
    )
    parser.add_argument("input_files", nargs="+", help="the traces")
    parser.add_argument(
        "-o", "--output_file", required=True, help="where to write; the suffix names the format"
    )
    parsed = parser.parse_args(arguments)
    try:
        merge_traces(parsed.output_file, *parsed.input_files)
    except (KinetoscopeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
