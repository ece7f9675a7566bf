"""Who loaded data, who waited for it, and how busy they were."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import rows_to_arrow
from kinetoscope.model.dictionary import table_definition
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import is_outermost, lies_in
from kinetoscope.model.processes import thread_processes
from kinetoscope.model.schema import COLLATE_BATCH, FETCH_BATCH, LOADING_INFO, NEXT_BATCH, PIN_BATCH, SpanKind
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.stored import processes, ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

    Rows = NDArray[np.int64]


@dataclass(frozen=True)
class LoadingSpans:
    """Rows of spans, without those inside another one of their kind on the same thread.

    Attributes:
        waits: The loop waited for its next batch.
        fetches: A batch was made.
        collates: Samples were put together, inside of that.
        pins: A batch was copied to pinned memory.
    """

    waits: Rows
    fetches: Rows
    collates: Rows
    pins: Rows


@derived
def loading_spans(trace: TraceData) -> LoadingSpans:
    """Find them, once for a trace."""
    spans, texts = trace.columns("spans"), trace.strings
    on_host = (spans["stream"] < 0) & (
        (spans["kind"] == SpanKind.USER_ANNOTATION) | (spans["kind"] == SpanKind.OPERATOR)
    )

    def rows(*names: int) -> Rows:
        if not names:
            return np.zeros(0, dtype=np.int64)
        rows = np.flatnonzero(on_host & np.isin(spans["name"], names))
        # A dataset may use a loader of its own.
        return rows[is_outermost(trace, rows)]

    names_of: dict[str, list[int]] = {NEXT_BATCH: [], FETCH_BATCH: [], COLLATE_BATCH: [], PIN_BATCH: []}
    for index, text in enumerate(texts):
        if text in names_of:
            names_of[text].append(index)
        elif text.startswith(NEXT_BATCH):
            names_of[NEXT_BATCH].append(index)
    return LoadingSpans(
        *(rows(*names_of[name]) for name in (NEXT_BATCH, FETCH_BATCH, COLLATE_BATCH, PIN_BATCH))
    )


def waits_that_make(trace: TraceData) -> Rows:
    """Rows of the waits in which the loop makes the batch itself, without workers; torch names the iterator that does it."""
    spans, strings = trace.columns("spans"), trace.strings
    waits = loading_spans(trace).waits
    here = [name for name in np.unique(spans["name"][waits]).tolist() if "_SingleProcess" in strings[name]]
    return waits[np.isin(spans["name"][waits], here)]


@derived
def in_waits(trace: TraceData) -> NDArray[np.bool_]:
    """Which spans are a wait for the next batch, or ran in one on its thread: what makes the batch where no worker does."""
    return lies_in(trace, loading_spans(trace).waits)


ROLES = ("loop", "worker", "pinning")

DATA_LOADING_SCHEMA = table_definition("data_loading")


@dataclass(frozen=True)
class _Worker:
    """A worker: its process, and when it existed by the wall clock."""

    process: int
    loader: int
    worker: int
    begun_ns: int
    ended_ns: int | None


def data_loading(trace: TraceData) -> pyarrow.Table:
    """Return the `data_loading` table.

    Of a loop there are the ranges that torch itself marks; the rest is there if the session was given the source
    `DataLoading()`, as `kinetoscope.steps` does.

    Args:
        trace: The trace.

    Returns:
        The table, loops first, then workers by loader and number; the meaning of its columns is in `DATA_LOADING_SCHEMA`.
    """
    loading, workers = loading_spans(trace), _workers(trace)
    process, rank, names = processes(trace), ranks(trace), trace.columns("threads")["name"]
    kinds = {field.name: _OfThreads(trace, getattr(loading, field.name)) for field in fields(loading)}
    rows = []
    for thread in range(len(process)):
        calls = {name: kind.calls[thread] for name, kind in kinds.items()}
        worker = None if calls["waits"] else workers.get(int(process[thread]))
        if worker is None and not any(calls.values()):
            continue
        row = _row(trace, thread, {name: kind.of(thread) for name, kind in kinds.items()}, worker)
        rows.append(row | {"process": process[thread], "rank": rank[thread], "thread_name": names[thread]})
    rows.sort(key=lambda row: (ROLES.index(row["role"]), row["loader"], row["worker"]))
    return rows_to_arrow(DATA_LOADING_SCHEMA, rows)


@dataclass(frozen=True)
class _Calls:
    """The spans of one sort on one thread."""

    number: int
    total_ns: int
    longest_ns: int


class _OfThreads:
    """Spans of one sort, added up by thread."""

    def __init__(self, trace: TraceData, rows: NDArray[np.int64]) -> None:
        spans, count = trace.columns("spans"), len(trace.columns("threads"))
        by_thread, duration = Groups(spans["thread"][rows], count), spans["duration_ns"][rows]
        self.calls = by_thread.sizes()
        self._total = by_thread.sums(duration)
        self._longest = np.where(self.calls > 0, by_thread.maxima(duration), -1)

    def of(self, thread: int) -> _Calls:
        """The spans of one thread."""
        return _Calls(int(self.calls[thread]), int(self._total[thread]), int(self._longest[thread]))


def _row(trace: TraceData, thread: int, calls: Mapping[str, _Calls], known: _Worker | None) -> dict[str, Any]:
    waits, fetches, collates, pins = (calls[name] for name in ("waits", "fetches", "collates", "pins"))
    role = "loop" if waits.number else "worker" if fetches.number or known is not None else "pinning"
    alive_ns = _alive_ns(trace, thread, known)
    row: dict[str, Any] = dict.fromkeys(DATA_LOADING_SCHEMA.column_names, -1)
    row |= {"role": role, "alive_ns": alive_ns, "wait_percent": np.nan, "busy_percent": np.nan}
    # A batch that was made was put together; asking for one may also find that there is none left.
    row["batches"] = collates.number if fetches.number or role == "worker" else waits.number or pins.number
    if fetches.number or role == "worker":
        row["fetch_ns"] = fetches.total_ns - collates.total_ns
        row["collate_ns"], row["longest_ns"] = collates.total_ns, fetches.longest_ns
    if pins.number:
        row["pin_ns"] = pins.total_ns
    if role == "loop":
        row["wait_ns"], row["longest_wait_ns"] = waits.total_ns, waits.longest_ns
        row["wait_percent"] = _percent(waits.total_ns, alive_ns)
    else:
        busy_ns = fetches.total_ns if role == "worker" else pins.total_ns
        row |= {"busy_ns": busy_ns, "idle_ns": max(alive_ns - busy_ns, 0)}
        row["busy_percent"] = _percent(busy_ns, alive_ns)
    if known is not None:
        row |= {"loader": known.loader, "worker": known.worker}
    return row


def _percent(part_ns: int, whole_ns: int) -> float:
    return 100.0 * part_ns / whole_ns if whole_ns > 0 else np.nan


def _workers(trace: TraceData) -> dict[int, _Worker]:
    """The workers that the session recorded, by process; in a trace of several cycles, those of each cycle."""
    cycles = trace.info.get("cycles")
    entries = [trace.info.get(LOADING_INFO)]
    entries += (
        [cycle.get(LOADING_INFO) for cycle in cycles if isinstance(cycle, dict)]
        if isinstance(cycles, list)
        else []
    )
    by_process: dict[int, _Worker] = {}
    for entry in entries:
        listed = entry.get("workers") if isinstance(entry, dict) else None
        for worker in listed if isinstance(listed, list) else ():
            parsed = _worker(worker)
            if parsed is not None:
                before = by_process.get(parsed.process)
                by_process[parsed.process] = parsed if before is None or before.ended_ns is None else before
    return by_process


def _worker(entry: object) -> _Worker | None:
    """One worker, if its entry is valid: files can come from anywhere."""
    if not isinstance(entry, dict):
        return None
    numbers: list[Any] = [entry.get(name) for name in ("process", "loader", "worker", "begun_realtime_ns")]
    if not all(_is_number(number) for number in numbers):
        return None
    process, loader, worker, begun = numbers
    ended = entry.get("ended_realtime_ns")
    return _Worker(process, loader, worker, begun, ended if _is_number(ended) else None)


def _is_number(value: object) -> bool:
    return type(value) is int and abs(value) < 2**62


def _alive_ns(trace: TraceData, thread: int, known: _Worker | None) -> int:
    """How long a thread existed while its process was recorded; a thread of unknown lifetime counts for all of it."""
    start, end = _recorded(trace, thread)
    began = trace.run_info.start_realtime_ns
    if known is not None and began is not None:
        start = np.maximum(start, known.begun_ns - began)
        end = end if known.ended_ns is None else np.minimum(end, known.ended_ns - began)
    return int(np.maximum(end - start, 0).sum())


def _recorded(trace: TraceData, thread: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When the process of a thread was recorded: in its cycles or, as of a worker, those of the first process."""
    cycles, process = trace.columns("cycles"), thread_processes(trace)[thread]
    for whose in (process, 0):
        of_process = (
            cycles["process_row"] == whose if len(trace.columns("processes")) else cycles["number"] >= 0
        )
        if of_process.any():
            return cycles["start_ns"][of_process], (cycles["start_ns"] + cycles["duration_ns"])[of_process]
    return np.zeros(1, dtype=np.int64), np.array([trace.duration_ns])
