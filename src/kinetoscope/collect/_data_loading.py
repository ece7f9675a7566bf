"""The source that tells how a `DataLoader` makes its batches, here and in its workers."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.collect._loader_hooks import HOOKS
from kinetoscope.collect._loader_worker import HEADER, MAGIC, ROW, ROWS
from kinetoscope.collect._sources import ClockReading
from kinetoscope.trace._loading_words import INFO, NEXT_BATCH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

# How far readings of one clock by two processes can be apart.
_READING_ERROR_NS = 2_000
_FIELDS = ("number", "begin_ns", "collate_ns", "collated_ns", "end_ns", "samples", "outcome")


class DataLoading:
    """How the batches of every `DataLoader` are made while a session records: for `profile(sources=[DataLoading()])`.

    In the process that records, making a batch is a range `DataLoader.fetch` with `DataLoader.collate` inside, and pinning
    it `DataLoader.pin`. Worker processes are processes of the trace, with the same ranges, on the same clock: those of every
    loop over a loader that begins after the session did, forked or spawned. The table `data_loading` adds it all up.

    The batches, their order and all random numbers are what they are without this.
    """

    def __init__(self) -> None:
        """Nothing happens before a session begins."""
        self._begun: ClockReading | None = None

    def open(self) -> None:
        """See to it that loaders tell; workers that exist already do not.

        Raises:
            AttributeError: This torch has no such loaders.
            OSError: There is no place for what workers write.
        """
        HOOKS.open(self)

    def start(self) -> None:
        """Begin to mark ranges."""
        self._begun = ClockReading.now()
        HOOKS.record(1)

    def stop(self) -> GatheredLoading:
        """End, and take what the workers have written until now."""
        begun, self._begun = self._begun or ClockReading.now(), None
        HOOKS.record(-1)
        end_ns = time.monotonic_ns()
        workers = _read_all(HOOKS.folder, begun.monotonic_ns, end_ns)
        loaders = {worker.loader: HOOKS.loaders.get(worker.loader, {}) for worker in workers}
        return GatheredLoading(begun, workers, loaders)

    def close(self) -> None:
        """Let loaders be as they were."""
        HOOKS.close(self)


@dataclass
class WorkerBatches:
    """What one worker did during a recording; times by the steady clock in nanoseconds.

    Attributes:
        process: Its process id.
        loader: The number of the loader it works for.
        worker: Its number among the workers of that loader.
        begun_ns: When it began.
        ended_ns: When it ended, 0 if it has not.
        rows: Of each batch that it made, or was making, what `_FIELDS` names.
        lost: Batches of the recording that were overwritten by later ones.
    """

    process: int
    loader: int
    worker: int
    begun_ns: int
    ended_ns: int
    rows: NDArray[np.int64]
    lost: int

    def column(self, name: str) -> NDArray[np.int64]:
        """One number of every batch."""
        column: NDArray[np.int64] = self.rows[:, _FIELDS.index(name)]
        return column

    def and_later(self, later: WorkerBatches) -> WorkerBatches:
        """This worker with what it did later; a batch that is in both was being made in between."""
        again = np.isin(self.rows[:, 0], later.rows[:, 0])
        rows = np.concatenate([self.rows[~again], later.rows])
        return replace(later, rows=rows, lost=self.lost + later.lost)


def read_worker(data: bytes, begin_ns: int, end_ns: int) -> WorkerBatches | None:
    """What a worker wrote about a stretch of time; None for what is no file of a worker, or of one that was not there then.

    Args:
        data: Its file.
        begin_ns: Where the stretch begins, by the steady clock.
        end_ns: Where it ends.
    """
    if len(data) < HEADER.size:
        return None
    magic, process, loader, worker, begun_ns, ended_ns, batches = HEADER.unpack_from(data)
    if magic != MAGIC or begun_ns >= end_ns or 0 < ended_ns <= begin_ns:
        return None
    length = (len(data) - HEADER.size) // ROW.size
    width = ROW.size // 8
    rows = np.frombuffer(data, np.int64, length * width, HEADER.size).reshape(length, width)
    rows = rows[:, : len(_FIELDS)]
    rows = rows[(rows[:, 1] > 0) & (rows[:, 0] < batches)]
    rows = rows[np.argsort(rows[:, 0])]
    oldest_ns = rows[0, 1] if len(rows) else 0
    # Rows that were overwritten are those before the oldest one there is; how many of them were in time nobody knows.
    overwritten = int(rows[0, 0]) if len(rows) and batches > ROWS else 0
    done = rows[:, 4]
    rows = rows[(rows[:, 1] < end_ns) & ((done == 0) | (done > begin_ns))]
    return WorkerBatches(
        process, loader, worker, begun_ns, ended_ns, rows, overwritten if oldest_ns > begin_ns else 0
    )


def _read_all(folder: Path | None, begin_ns: int, end_ns: int) -> list[WorkerBatches]:
    """What all workers wrote about a stretch of time. Files of workers that are gone and were not there then are removed."""
    found = []
    for path in sorted(folder.glob("*.worker")) if folder is not None else []:
        # A file may be gone, or its worker be about to begin it.
        with suppress(OSError):
            data = path.read_bytes()
            worker = read_worker(data, begin_ns, end_ns)
            if worker is not None and (len(worker.rows) or _is_alive(worker)):
                found.append(worker)
            elif len(data) >= HEADER.size and not _may_go_on(data):
                path.unlink()
    return sorted(found, key=lambda worker: (worker.loader, worker.worker, worker.process))


def _is_alive(worker: WorkerBatches) -> bool:
    """Whether a worker without batches was at least there to wait for some."""
    return worker.ended_ns > 0 or _is_running(worker.process)


def _may_go_on(data: bytes) -> bool:
    """Whether a worker can still write to its file."""
    _, process, _, _, _, ended_ns, _ = HEADER.unpack_from(data)
    return ended_ns == 0 and _is_running(process)


def _is_running(process: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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
        from kinetoscope.collect._worker_trace import worker_trace
        from kinetoscope.trace._beside import beside
        from kinetoscope.trace._more import Loss, with_more
        from kinetoscope.trace._placement import MONOTONIC, Placement

        begin_ns = self._begun.begin_of(trace)
        on_the_wall_ns = int(trace.info.get("start_realtime_ns") or 0) - begin_ns
        losses = []
        if lost := sum(worker.lost for worker in self._workers):
            why = f"A worker keeps its last {ROWS} batches; record for a shorter time, by a schedule."
            losses.append(Loss("batches that DataLoader workers made", lost, "processes", why))
        if not self._workers and _has_workers(trace):
            why = "They began before the session did: begin it before the loop over the loader."
            losses.append(Loss("what DataLoader workers did", 1, "processes", why))
        if not self._workers:
            return with_more(trace, losses=losses) if losses else trace
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
        own = with_more(trace, info={INFO: {"loaders": loaders, "workers": known}}, losses=losses)
        others = [worker_trace(worker, begin_ns, own) for worker in self._workers]
        # All read the same clock of the machine, one after the other.
        places = [Placement(0, error_ns=0, clock="")]
        places += [Placement(0, error_ns=_READING_ERROR_NS, clock=MONOTONIC) for _ in others]
        return beside([own, *others], places)

    def and_later(self, later: GatheredLoading) -> GatheredLoading:
        """This and what was gathered for a later recording, a worker that is in both once."""
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
