"""The source that records how a `DataLoader` makes its batches, in this process and in workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.collect.process.clocks import ClockReading
from kinetoscope.collect.sources.loader_hooks import HOOKS
from kinetoscope.collect.sources.loader_worker import ROWS
from kinetoscope.collect.sources.worker_batches import WorkerBatches, read_all
from kinetoscope.model.schema import (
    COLLATE_BATCH,
    FETCH_BATCH,
    FLAG_BEGUN_BEFORE,
    FLAG_UNFINISHED,
    LOADING_INFO,
    NEXT_BATCH,
    SCOPE_USER,
    SpanKind,
)
from kinetoscope.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray


_STRINGS = ["", FETCH_BATCH, COLLATE_BATCH]
_NEVER_NS = np.int64(2**62)
# Metadata that a worker shares with the process that started it.
_SHARED_FACTS = ("start_realtime_ns", "start_monotonic_ns", "boot_id", "host", "rank", "distributedInfo")


def worker_trace(worker: WorkerBatches, begin_ns: int, parent: Trace) -> Trace:
    """Make a trace with the same start and end as that of the process that started the worker.

    Args:
        worker: What it wrote.
        begin_ns: When the trace begins, by the steady clock.
        parent: The trace of that process.

    Returns:
        The trace: a range for each batch, with another one for collating inside. What began earlier or went on is cut and
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
    return Trace.from_columns(
        {"threads": thread, "spans": _spans(worker, begin_ns, length_ns)}, strings=_STRINGS, info=info
    )


def _spans(worker: WorkerBatches, begin_ns: int, length_ns: int) -> dict[str, NDArray[Any]]:
    """The ranges of a worker, in the order of spans."""
    begin, end = worker.column("begin_ns"), _or_never(worker.column("end_ns"))
    collated = worker.column("collate_ns") > 0
    collate_end = np.minimum(_or_never(worker.column("collated_ns")), end)[collated]
    start = np.concatenate([begin, worker.column("collate_ns")[collated]]) - begin_ns
    stop = np.concatenate([end, collate_end]) - begin_ns
    name = np.repeat(np.array([1, 2], dtype=np.int32), [len(begin), len(collate_end)])
    kept = np.flatnonzero((start < length_ns) & (stop > 0))
    start, stop, name = start[kept], stop[kept], name[kept]
    flags = np.where(start < 0, FLAG_BEGUN_BEFORE, 0) | np.where(stop > length_ns, FLAG_UNFINISHED, 0)
    start, stop = np.maximum(start, 0), np.minimum(stop, length_ns)
    # The outer one first if two begin together.
    order = np.lexsort((name, -stop, start))
    return {
        "thread": np.zeros(len(order), dtype=np.int32),
        "start_ns": start[order],
        "duration_ns": (stop - start)[order],
        "name": name[order],
        "scope": np.full(len(order), SCOPE_USER, dtype=np.uint8),
        "kind": np.full(len(order), SpanKind.USER_ANNOTATION, dtype=np.uint8),
        "flags": flags[order].astype(np.uint8),
    }


def _or_never(time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Times; those that have not happened yet are far in the future."""
    return np.where(time_ns > 0, time_ns, _NEVER_NS)


# How far readings of one clock by two processes can be apart.
_READING_ERROR_NS = 2_000


class DataLoading:
    """Records how every `DataLoader` makes its batches: for `profile(sources=[DataLoading()])`.

    In the recording process, making a batch is a range `DataLoader.fetch` with `DataLoader.collate` inside, and pinning
    it is `DataLoader.pin`. Worker processes become processes of the trace, with the same ranges, on the same clock, for every
    loop over a loader that starts after the session, forked or spawned. The table `data_loading` has the sums.

    The batches, their order and all random numbers are unchanged.
    """

    def __init__(self) -> None:
        """Nothing happens before a session begins."""
        self._begun: ClockReading | None = None

    def open(self) -> None:
        """Start to record loaders; workers that exist already are not recorded.

        Raises:
            AttributeError: This torch has no such loaders.
            OSError: The folder of the workers' files cannot be created.
        """
        HOOKS.open(self)

    def start(self) -> None:
        """Begin to mark ranges."""
        self._begun = ClockReading.now()
        HOOKS.record(1)

    def stop(self) -> GatheredLoading:
        """Stop, and read what the workers have written so far."""
        begun, self._begun = self._begun or ClockReading.now(), None
        HOOKS.record(-1)
        end_ns = time.monotonic_ns()
        workers = read_all(HOOKS.folder, begun.monotonic_ns, end_ns)
        loaders = {worker.loader: HOOKS.loaders.get(worker.loader, {}) for worker in workers}
        return GatheredLoading(begun, workers, loaders)

    def close(self) -> None:
        """Stop recording loaders."""
        HOOKS.close(self)


class GatheredLoading:
    """What workers did during one recording, or several."""

    def __init__(
        self,
        begun: ClockReading,
        workers: list[WorkerBatches],
        loaders: dict[int, dict[str, Any]],
    ) -> None:
        """Keep what was found, and when the recording began."""
        self._begun = begun
        self._workers = workers
        self._loaders = loaders

    def add_to(self, trace: Trace) -> Trace:
        """Return the trace with a process for each worker."""
        from kinetoscope.combine.extend import extend
        from kinetoscope.combine.processes import merge_processes
        from kinetoscope.model.losses import Loss
        from kinetoscope.model.processes import MONOTONIC, Placement

        begin_ns = self._begun.begin_of(trace)
        on_the_wall_ns = (trace.run_info.start_realtime_ns or 0) - begin_ns
        losses = []
        if lost := sum(worker.lost for worker in self._workers):
            why = f"A worker keeps its last {ROWS} batches; record for a shorter time, by a schedule."
            losses.append(Loss.of("overwritten_worker_batches", lost, why=why))
        if killed := sum(worker.killed for worker in self._workers):
            losses.append(Loss.of("killed_workers", killed))
        if not self._workers and _has_workers(trace):
            losses.append(Loss.of("workers_not_recorded"))
        if not self._workers:
            return extend(trace, losses=losses) if losses else trace
        known = [
            {
                "process": worker.process,
                "loader": worker.loader,
                "worker": worker.worker,
                "begun_realtime_ns": worker.begun_ns + on_the_wall_ns,
                "ended_realtime_ns": worker.ended_ns + on_the_wall_ns if worker.ended_ns else None,
            }
            for worker in self._workers
        ]
        loaders = {str(number): described for number, described in sorted(self._loaders.items())}
        own = extend(trace, info={LOADING_INFO: {"loaders": loaders, "workers": known}}, losses=losses)
        others = [worker_trace(worker, begin_ns, own) for worker in self._workers]
        # All read the same clock of the machine, one after the other.
        places = [Placement(0, error_ns=0, clock="")]
        places += [Placement(0, error_ns=_READING_ERROR_NS, clock=MONOTONIC) for _ in others]
        return merge_processes([own, *others], places)

    def and_later(self, later: GatheredLoading) -> GatheredLoading:
        """Merge with what was gathered for a later recording; a worker that is in both is listed once."""
        workers = {(worker.process, worker.loader): worker for worker in self._workers}
        for worker in later._workers:
            key = (worker.process, worker.loader)
            workers[key] = workers[key].and_later(worker) if key in workers else worker
        return GatheredLoading(self._begun, list(workers.values()), self._loaders | later._loaders)

    def discard(self) -> None:
        """Forget it."""
        self._workers = []


def _has_workers(trace: Trace) -> bool:
    """Whether the loop got batches from workers."""
    return any(text.startswith(NEXT_BATCH) and "MultiProcessing" in text for text in trace.strings)
