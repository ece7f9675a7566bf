"""The `data_loading` table: which loops waited for data, which workers loaded it, and how busy they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import is_outermost, lies_in, spans_named
from kinetoscope.model.processes import thread_processes
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.schema import COLLATE_BATCH, FETCH_BATCH, LOADING_INFO, NEXT_BATCH, PIN_BATCH, SpanKind
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.stored import processes, ranks


@dataclass(frozen=True)
class LoadingSpans:
    """Rows of data loading spans, each kind without nested spans of the same kind.

    Attributes:
        waits: The loop waits for its next batch.
        fetches: A batch is made.
        collates: Samples are collated, inside a fetch.
        pins: A batch is copied to pinned memory.
    """

    waits: Rows
    fetches: Rows
    collates: Rows
    pins: Rows


@derived
def loading_spans(trace: TraceData) -> LoadingSpans:
    """The data loading spans of a trace."""
    spans = trace.columns("spans")
    on_host = (spans["stream"] < 0) & (
        (spans["kind"] == SpanKind.USER_ANNOTATION) | (spans["kind"] == SpanKind.OPERATOR)
    )

    def outermost(named: Callable[[str], bool]) -> Rows:
        rows = np.flatnonzero(on_host & spans_named(trace, named))
        # A dataset may contain another loader.
        return rows[is_outermost(trace, rows)]

    return LoadingSpans(
        outermost(lambda text: text.startswith(NEXT_BATCH)),
        *(outermost(name.__eq__) for name in (FETCH_BATCH, COLLATE_BATCH, PIN_BATCH)),
    )


def waits_that_make(trace: TraceData) -> Rows:
    """Rows of the waits in which the loop makes the batch itself, without workers, by the name of torch's iterator."""
    waits = loading_spans(trace).waits
    return waits[spans_named(trace, lambda text: "_SingleProcess" in text)[waits]]


@derived
def in_waits(trace: TraceData) -> Mask:
    """Spans that are a wait for the next batch or run inside one on its thread: without workers, they make the batch."""
    return lies_in(trace, loading_spans(trace).waits)


ROLES = ("loop", "worker", "pinning")


# The numbers that a worker's entry in the metadata must have; its end on the same clock is optional.
_OF_WORKER = ("process", "loader", "worker", "begun_realtime_ns")


def data_loading(trace: TraceData) -> ArrowTable:
    """Return the `data_loading` table.

    torch itself marks the ranges of a loop. Everything else requires the source `DataLoading()`, which `kinetoscope.steps` adds.

    Args:
        trace: The trace.

    Returns:
        The table, loops first, then workers by loader and number; `docs/tables.md` describes its columns.
    """
    spans, process = trace.columns("spans"), processes(trace)
    by_thread = {
        name: (Groups(spans["thread"][rows], len(process)), spans["duration_ns"][rows])
        for name, rows in vars(loading_spans(trace)).items()
    }
    calls = {name: groups.sizes() for name, (groups, _) in by_thread.items()}
    total = {name: groups.sums(duration) for name, (groups, duration) in by_thread.items()}
    longest = {name: groups.maxima(duration) for name, (groups, duration) in by_thread.items()}
    of_process, is_loop = _workers(trace), calls["waits"] > 0
    workers = [
        {} if loops else of_process.get(pid, {})
        for pid, loops in zip(process.tolist(), is_loop.tolist(), strict=True)
    ]
    is_known, makes = np.array([bool(worker) for worker in workers], bool), calls["fetches"] > 0
    role = np.where(is_loop, 0, np.where(makes | is_known, 1, 2))
    alive_ns = np.array([_alive_ns(trace, thread, worker) for thread, worker in enumerate(workers)], np.int64)
    busy_ns = np.where(role == 1, total["fetches"], total["pins"])
    percent_ns = np.where(alive_ns > 0, alive_ns, np.nan) / 100.0
    fetched = makes | (role == 1)
    columns: dict[str, Any] = {
        "role": Labels(role, ROLES),
        **{
            name: np.array([worker.get(name, -1) for worker in workers], np.int64)
            for name in ("loader", "worker")
        },
        "process": process,
        "rank": ranks(trace),
        "thread_name": trace.columns("threads")["name"],
        # Collates count batches: a fetch may also find that none is left.
        "batches": np.where(fetched, calls["collates"], np.where(is_loop, calls["waits"], calls["pins"])),
        "alive_ns": alive_ns,
        "wait_ns": np.where(is_loop, total["waits"], -1),
        "longest_wait_ns": np.where(is_loop, longest["waits"], -1),
        "wait_percent": np.where(is_loop, total["waits"] / percent_ns, np.nan),
        "fetch_ns": np.where(fetched, total["fetches"] - total["collates"], -1),
        "collate_ns": np.where(fetched, total["collates"], -1),
        "longest_ns": np.where(makes, longest["fetches"], -1),
        "pin_ns": np.where(calls["pins"] > 0, total["pins"], -1),
        "busy_ns": np.where(is_loop, -1, busy_ns),
        "idle_ns": np.where(is_loop, -1, np.maximum(alive_ns - busy_ns, 0)),
        "busy_percent": np.where(is_loop, np.nan, busy_ns / percent_ns),
    }
    order = np.lexsort((columns["worker"], columns["loader"], role))
    has_row = is_known | np.logical_or.reduce([number > 0 for number in calls.values()])
    return to_arrow("data_loading", columns, order[has_row[order]])


def _workers(trace: TraceData) -> dict[int, dict[str, Any]]:
    """The recorded workers by process, over all cycles. The metadata is untrusted."""
    cycles = trace.info.get("cycles")
    by_process: dict[int, dict[str, Any]] = {}
    for entry in (trace.info, *(cycles if isinstance(cycles, list) else ())):
        loading = entry.get(LOADING_INFO) if isinstance(entry, dict) else None
        listed = loading.get("workers") if isinstance(loading, dict) else None
        for worker in listed if isinstance(listed, list) else ():
            if isinstance(worker, dict) and all(_is_number(worker.get(name)) for name in _OF_WORKER):
                before = by_process.get(worker["process"], {})
                if not _is_number(before.get("ended_realtime_ns")):
                    by_process[worker["process"]] = worker
    return by_process


def _is_number(value: object) -> bool:
    return type(value) is int and abs(value) < 2**62


def _alive_ns(trace: TraceData, thread: int, worker: Mapping[str, Any]) -> int:
    """How long a thread existed while its process was recorded; the whole recording if its lifetime is unknown."""
    start, end = _recorded(trace, thread)
    began = trace.run_info.start_realtime_ns
    if worker and began is not None:
        start = np.maximum(start, worker["begun_realtime_ns"] - began)
        if _is_number(worker.get("ended_realtime_ns")):
            end = np.minimum(end, worker["ended_realtime_ns"] - began)
    return int(np.maximum(end - start, 0).sum())


def _recorded(trace: TraceData, thread: int) -> tuple[Rows, Rows]:
    """When the process of a thread was recorded: in its own cycles or, for a worker, in those of the first process."""
    cycles, process = trace.columns("cycles"), thread_processes(trace)[thread]
    for whose in (process, 0):
        of_process = (
            cycles["process_row"] == whose if len(trace.columns("processes")) else cycles["number"] >= 0
        )
        if of_process.any():
            return cycles["start_ns"][of_process], (cycles["start_ns"] + cycles["duration_ns"])[of_process]
    return np.zeros(1, dtype=np.int64), np.array([trace.duration_ns])
