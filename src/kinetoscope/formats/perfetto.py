"""Perfetto's own format: the protocol buffers that ui.perfetto.dev and its trace processor read fastest.

Every thread of the host is a track of its process, every stream a track of its device, and spans that nest with
nothing lie on tracks of their own beside these. A span is a slice that shows what is known of it as debug annotations,
under the names that Kineto gives these facts; arrows lead from calls to the device work that they launched, and from
forward operators to their backward functions. Allocations are instants named `[memory]`, and counters show the memory
of each device and what else was sampled. What is known of the run, and what is missing, is in the trace's metadata.

Times count from the start of the trace; a snapshot of clocks leads from there to the time on the wall.
Texts stand in the file once for each thread. Shapes and other lists are JSON texts.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope.formats._block_file import write_blocks
from kinetoscope.formats._perfetto_counters import counter_series
from kinetoscope.formats._perfetto_facts import allocation_facts, span_facts
from kinetoscope.formats._perfetto_spans import chosen_slices
from kinetoscope.formats._perfetto_tracks import lay_out
from kinetoscope.tables.shown_stacks import shown_stacks

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

_BLOCK_BYTES = 4 << 20
# Perfetto's trace processor of 2025 writes over its memory where a name of metadata is some ten thousand bytes long.
_LONGEST_KEY = 200


def write_perfetto(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace for Perfetto.

    Args:
        trace: The trace.
        path: The file; a name that ends in `.gz` is compressed, and Perfetto opens it so. It appears under its name
            only when it is whole.

    Raises:
        OSError: The file cannot be written; nothing is left of it.
    """
    write_blocks(perfetto_writer(trace), path)


def perfetto_writer(trace: Trace, block_bytes: int = _BLOCK_BYTES) -> _core.PerfettoWriter:
    """Return what makes the file of a trace, block by block.

    Args:
        trace: The trace.
        block_bytes: How long blocks are at least.

    Returns:
        The native writer: an iterator of bytes.
    """
    stacks = shown_stacks(trace)
    slices = chosen_slices(trace, stacks)
    rows = slices.shown.rows
    tracks = lay_out(trace, slices.native)
    counters = counter_series(trace, tracks)
    frames, allocations = trace.columns("frames"), trace.columns("allocations")
    moments: dict[str, Any] = {"name": "[memory]", "category": "cpu_instant_event"}
    # What was live when a window of a longer trace began has no moment to be shown at.
    shown = slice(int(np.searchsorted(allocations["time_ns"], 0)), None)
    if len(allocations):
        moments |= {name: allocations[name][shown] for name in ("time_ns", "thread")}
    launches, forward = trace.columns("launches"), trace.column("spans", "forward")
    caused = np.flatnonzero(forward >= 0).astype(np.int32)
    return _core.PerfettoWriter(
        spans=slices.native,
        span_facts=span_facts(trace, slices),
        moments=moments,
        moment_facts=allocation_facts(trace, stacks, shown) if len(allocations) else [],
        counters=counters,
        arrows=[
            (rows(launches["host"]), rows(launches["device"])),
            (rows(forward[caused]), rows(caused)),
        ],
        strings=slices.shown.strings,
        categories=slices.categories,
        stacks={
            "parent": stacks.parent,
            "frame": np.ascontiguousarray(trace.column("stacks", "frame")),
            "function": frames["function"],
            "file": stacks.file,
            "line": frames["line"],
        },
        tracks=tracks.tracks,
        thread_first_track=tracks.first_of_thread,
        metadata=_metadata(trace),
        realtime_ns=_realtime_ns(trace),
        identity=_identity(trace),
        block_bytes=block_bytes,
    )


def _metadata(trace: Trace) -> list[tuple[str, str]]:
    """What is known of the run and what is missing, as texts."""
    known = {str(key): value for key, value in trace.info.items()}
    if not trace.complete:
        known["losses"] = trace.losses
    return [
        (key[:_LONGEST_KEY], value if isinstance(value, str) else _json(value))
        for key, value in known.items()
    ]


def _realtime_ns(trace: Trace) -> int:
    """The time on the wall at the start of the trace; 0 where it is not known or cannot be."""
    known = trace.info.get("start_realtime_ns")
    return known if isinstance(known, int) and 0 < known < 1 << 62 else 0


def _identity(trace: Trace) -> int:
    """A number from which the tracks of this trace are counted, and those of another, such as another rank's, are not."""
    known = [
        trace.info.get(key) for key in ("host", "process", "start_realtime_ns", "distributedInfo", "trace_id")
    ]
    digest = hashlib.blake2b(repr(known).encode("utf-8", "replace"), digest_size=6).digest()
    return int.from_bytes(digest, "little")


def _json(value: Any) -> str:
    """Compact JSON of any value; what has no JSON becomes text."""
    try:
        return json.dumps(value, default=str, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return str(value)
