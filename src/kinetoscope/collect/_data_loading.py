"""The source that tells how a `DataLoader` makes its batches, here and in its workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kinetoscope.collect._loader_files import WorkerBatches, read_all
from kinetoscope.collect._loader_hooks import HOOKS
from kinetoscope.collect._loader_worker import ROWS
from kinetoscope.collect._sources import ClockReading
from kinetoscope.trace._loading_words import INFO, NEXT_BATCH

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

# How far readings of one clock by two processes can be apart.
_READING_ERROR_NS = 2_000


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
        workers = read_all(HOOKS.folder, begun.monotonic_ns, end_ns)
        loaders = {worker.loader: HOOKS.loaders.get(worker.loader, {}) for worker in workers}
        return GatheredLoading(begun, workers, loaders)

    def close(self) -> None:
        """Let loaders be as they were."""
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
        if killed := sum(worker.killed for worker in self._workers):
            why = "It was killed: what it did last is shown until the end of the trace, though it ended before that."
            losses.append(Loss("the end of a DataLoader worker", killed, "processes", why))
        if not self._workers and _has_workers(trace):
            why = "They began before the session did (begin it before the loop over the loader), or are not torch's own."
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
