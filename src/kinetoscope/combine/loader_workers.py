"""Adds the workers of `DataLoader`s to a trace, as processes, from the rows about their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.combine.extend import extend
from kinetoscope.combine.processes import merge_processes
from kinetoscope.model import schema
from kinetoscope.model.losses import Loss, counted_losses
from kinetoscope.model.processes import MONOTONIC, Placement
from kinetoscope.model.rows import Rows
from kinetoscope.model.trace_data import AnyTrace
from kinetoscope.storage.appended_rows import AppendedRows

# The tables of a recording. Times are nanoseconds of the monotonic clock, 0 for what has not happened yet. The last row of a batch or a worker
# counts.
BATCHES, WORKERS, LOADERS = "loader_batches", "loader_workers", "loaders"
BATCH_COLUMNS = ("number", "begin_ns", "collate_ns", "collated_ns", "end_ns", "samples", "outcome")
WORKER_COLUMNS = ("begun_ns", "ended_ns", "worker", "lost", "killed")
_KEY = ("process", "loader")


@dataclass
class WorkerBatches:
    """What one worker did during a recording; times are nanoseconds of the monotonic clock.

    Attributes:
        process: Its process id.
        loader: The number of the loader it works for.
        worker: Its number among the workers of that loader.
        begun_ns: When it began.
        ended_ns: When it ended, 0 if it has not.
        rows: The values of `BATCH_COLUMNS` for each batch, the last of which may be unfinished.
        lost: The number of batches whose rows were overwritten.
        killed: Whether it ended without writing its end.
    """

    process: int
    loader: int
    worker: int
    begun_ns: int
    ended_ns: int
    rows: Rows
    lost: int
    killed: bool = False

    def column(self, name: str) -> Rows:
        """One number of every batch."""
        column: Rows = self.rows[:, BATCH_COLUMNS.index(name)]
        return column

    def and_later(self, later: WorkerBatches) -> WorkerBatches:
        """Merge with a later part; a batch in both was unfinished in the first."""
        again = np.isin(self.rows[:, 0], later.rows[:, 0])
        rows = np.concatenate([self.rows[~again], later.rows])
        return replace(later, rows=rows, lost=self.lost + later.lost)


def read_workers(rows: AppendedRows) -> list[WorkerBatches]:
    """The workers of a recording, by loader and number."""
    batches, _ = rows.columns(BATCHES, dict.fromkeys((*_KEY, *BATCH_COLUMNS), int))
    batches_of: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
    for process, loader, *batch in zip(*batches.values(), strict=True):
        batches_of.setdefault((process, loader), {})[batch[0]] = tuple(batch)
    stated, _ = rows.columns(WORKERS, dict.fromkeys((*_KEY, *WORKER_COLUMNS), int))
    workers = {}
    for process, loader, begun_ns, ended_ns, worker, lost, killed in zip(*stated.values(), strict=True):
        by_number = batches_of.get((process, loader), {})
        batches_made = np.array([by_number[number] for number in sorted(by_number)], dtype=np.int64)
        batches_made = batches_made.reshape(-1, len(BATCH_COLUMNS))
        # A worker makes one batch at a time: an earlier one without an end was overwritten, and is counted as lost.
        is_complete = (batches_made[:, 4] > 0) | (batches_made[:, 0] == batches_made[-1:, 0])
        workers[process, loader] = WorkerBatches(
            *(process, loader, worker, begun_ns, ended_ns), batches_made[is_complete], lost, bool(killed)
        )
    return sorted(workers.values(), key=lambda worker: (worker.loader, worker.worker, worker.process))


def with_workers(trace: AnyTrace, recordings: Sequence[AppendedRows], begin_ns: int) -> AnyTrace:
    """Return a trace with a process for each worker that its recordings have rows of.

    Args:
        trace: The trace; it is unchanged and shares its columns with the new one.
        recordings: The rows of its recordings, in order of time.
        begin_ns: When it began by the monotonic clock.
    """
    if not any(rows.has(BATCHES) for rows in recordings):
        return trace
    worker_of: dict[tuple[int, int], WorkerBatches] = {}
    loaders: dict[int, dict[str, Any]] = {}
    for rows in recordings:
        for worker in read_workers(rows):
            key = (worker.process, worker.loader)
            worker_of[key] = worker_of[key].and_later(worker) if key in worker_of else worker
        facts, _ = rows.columns(LOADERS, {"loader": int, "facts": dict})
        loaders.update(zip(facts["loader"], facts["facts"], strict=True))
    workers = list(worker_of.values())
    lost, killed = sum(worker.lost for worker in workers), sum(worker.killed for worker in workers)
    losses = counted_losses({"overwritten_worker_batches": lost, "killed_workers": killed})
    if not workers:
        # The name of the range that waits for batches shows whether a loader has workers.
        if any(text.startswith(schema.NEXT_BATCH) and "MultiProcessing" in text for text in trace.strings):
            losses.append(Loss.of("workers_not_recorded"))
        return extend(trace, losses=losses) if losses else trace
    on_the_wall_ns = (trace.run_info.start_realtime_ns or 0) - begin_ns
    described = [
        {
            "process": worker.process,
            "loader": worker.loader,
            "worker": worker.worker,
            "begun_realtime_ns": worker.begun_ns + on_the_wall_ns,
            "ended_realtime_ns": worker.ended_ns + on_the_wall_ns if worker.ended_ns else None,
        }
        for worker in workers
    ]
    # A loader may have begun before the recording, without a description.
    facts_of = {
        str(number): loaders.get(number, {}) for number in sorted({worker.loader for worker in workers})
    }
    parent = extend(
        trace, info={schema.LOADING_INFO: {"loaders": facts_of, "workers": described}}, losses=losses
    )
    worker_traces = [worker_trace(worker, begin_ns, parent) for worker in workers]
    # All read the same clock of the machine, one after the other.
    placements = [Placement(0, error_ns=0, clock="")]
    placements += [Placement(0, error_ns=_READING_ERROR_NS, clock=MONOTONIC) for _ in worker_traces]
    merged = merge_processes([parent, *worker_traces], placements)
    # All rows are from the file of the process.
    merged.path = trace.path
    return merged


_STRINGS = ["", schema.FETCH_BATCH, schema.COLLATE_BATCH]
_NEVER_NS = np.int64(2**62)
# Metadata that a worker shares with the process that started it.
_SHARED_FACTS = ("start_realtime_ns", "start_monotonic_ns", "boot_id", "host", "rank", "distributedInfo")
# How far readings of one clock by two processes can be apart.
_READING_ERROR_NS = 2_000


def worker_trace(worker: WorkerBatches, begin_ns: int, parent: AnyTrace) -> AnyTrace:
    """Make a trace with the same start and end as that of the process that started the worker.

    Args:
        worker: What it wrote.
        begin_ns: When the trace begins, by the steady clock.
        parent: The trace of that process.

    Returns:
        The trace, with a range for each batch, and one for collating inside it. Batches that cross an end are cut and
        flagged.
    """
    length_ns = max(parent.duration_ns, 1)
    name = f"DataLoader {worker.loader}, worker {worker.worker}"
    info = {key: parent.info[key] for key in _SHARED_FACTS if key in parent.info}
    info |= {"process": worker.process, "process_name": name, "stop_ns": length_ns}
    if (process := parent.run_info.process) is not None:
        info["parent_process"] = process
    thread: dict[str, Any] = {
        "index": [0],
        "os_tid": [worker.process],
        "torch_tid": [1],
        "name": [name],
        "process": [worker.process],
    }
    return parent.from_columns(
        {"threads": thread, "spans": _spans(worker, begin_ns, length_ns)}, strings=_STRINGS, info=info
    )


def _spans(worker: WorkerBatches, begin_ns: int, length_ns: int) -> dict[str, NDArray[Any]]:
    begin, end = worker.column("begin_ns"), _or_never(worker.column("end_ns"))
    collated = worker.column("collate_ns") > 0
    collate_end = np.minimum(_or_never(worker.column("collated_ns")), end)[collated]
    start = np.concatenate([begin, worker.column("collate_ns")[collated]]) - begin_ns
    stop = np.concatenate([end, collate_end]) - begin_ns
    name = np.repeat(np.array([1, 2], dtype=np.int32), [len(begin), len(collate_end)])
    recorded = np.flatnonzero((start < length_ns) & (stop > 0))
    start, stop, name = start[recorded], stop[recorded], name[recorded]
    flags = np.where(start < 0, schema.FLAG_BEGUN_BEFORE, 0) | np.where(
        stop > length_ns, schema.FLAG_UNFINISHED, 0
    )
    start, stop = np.maximum(start, 0), np.minimum(stop, length_ns)
    # The outer one first if two begin together.
    order = np.lexsort((name, -stop, start))
    return {
        "thread": np.zeros(len(order), dtype=np.int32),
        "start_ns": start[order],
        "duration_ns": (stop - start)[order],
        "name": name[order],
        "scope": np.full(len(order), schema.SCOPE_USER, dtype=np.uint8),
        "kind": np.full(len(order), schema.SpanKind.USER_ANNOTATION, dtype=np.uint8),
        "flags": flags[order].astype(np.uint8),
    }


def _or_never(time_ns: Rows) -> Rows:
    return np.where(time_ns > 0, time_ns, _NEVER_NS)
