"""The source that records how a `DataLoader` makes its batches, in this process and in workers."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.collect.process.clocks import ClockReading
from kinetoscope.collect.sources.loader_worker import HEADER, MAGIC, ROW, ROWS, NotedLoop, timed
from kinetoscope.collect.sources.ranges import begin_range, end_range
from kinetoscope.model.schema import (
    COLLATE_BATCH,
    FETCH_BATCH,
    FLAG_BEGUN_BEFORE,
    FLAG_UNFINISHED,
    LOADING_INFO,
    NEXT_BATCH,
    PIN_BATCH,
    SCOPE_USER,
    SpanKind,
)
from kinetoscope.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


# The files of workers as their parent reads them: which batches were made when, and which files are obsolete.

_FIELDS = ("number", "begin_ns", "collate_ns", "collated_ns", "end_ns", "samples", "outcome")


@dataclass
class WorkerBatches:
    """What one worker did during a recording; times are nanoseconds of the monotonic clock.

    Attributes:
        process: Its process id.
        loader: The number of the loader it works for.
        worker: Its number among the workers of that loader.
        begun_ns: When it began.
        ended_ns: When it ended, 0 if it has not.
        rows: The values of `_FIELDS` for each batch that it made or was making.
        lost: Batches of the recording that were overwritten by later ones.
        killed: It ended without writing its end.
    """

    process: int
    loader: int
    worker: int
    begun_ns: int
    ended_ns: int
    rows: NDArray[np.int64]
    lost: int
    killed: bool = False

    def column(self, name: str) -> NDArray[np.int64]:
        """One number of every batch."""
        column: NDArray[np.int64] = self.rows[:, _FIELDS.index(name)]
        return column

    def and_later(self, later: WorkerBatches) -> WorkerBatches:
        """This worker merged with its later part; a batch that is in both was being made in between."""
        again = np.isin(self.rows[:, 0], later.rows[:, 0])
        rows = np.concatenate([self.rows[~again], later.rows])
        return replace(later, rows=rows, lost=self.lost + later.lost)


def read_worker(data: bytes, begin_ns: int, end_ns: int) -> WorkerBatches | None:
    """What a worker wrote about a time window; None if the file is not a worker's, or the worker did not exist then.

    Args:
        data: Its file.
        begin_ns: The start of the window, by the monotonic clock.
        end_ns: Where it ends.
    """
    if len(data) < HEADER.size:
        return None
    magic, process, loader, worker, begun_ns, ended_ns = HEADER.unpack_from(data)
    if magic != MAGIC or begun_ns >= end_ns or 0 < ended_ns <= begin_ns:
        return None
    length = (len(data) - HEADER.size) // ROW.size
    width = ROW.size // 8
    rows = np.frombuffer(data, np.int64, length * width, HEADER.size).reshape(length, width)
    rows = rows[:, : len(_FIELDS)]
    rows = rows[(rows[:, 1] > 0) & (rows[:, 0] >= 0)]
    rows = rows[np.argsort(rows[:, 0])]
    oldest_ns = rows[0, 1] if len(rows) else 0
    # Overwritten rows are older than the oldest one; how many of them were in the window is unknown.
    overwritten = int(rows[0, 0]) if len(rows) else 0
    done = rows[:, 4]
    rows = rows[(rows[:, 1] < end_ns) & ((done == 0) | (done > begin_ns))]
    return WorkerBatches(
        process, loader, worker, begun_ns, ended_ns, rows, overwritten if oldest_ns > begin_ns else 0
    )


def read_all(folder: Path | None, begin_ns: int, end_ns: int) -> list[WorkerBatches]:
    """What workers wrote about a time window. Call `remove_of_the_gone` first: killed workers do not write their end."""
    found = []
    for path in _files(folder):
        # A worker may be about to create its file.
        with suppress(OSError):
            # Before its file is read: a worker that ends in between has written its end.
            runs = _may_go_on(path)
            worker = read_worker(path.read_bytes(), begin_ns, end_ns)
            if worker is not None:
                found.append(replace(worker, killed=not runs and worker.ended_ns == 0))
    return sorted(found, key=lambda worker: (worker.loader, worker.worker, worker.process))


def remove_of_the_gone(folder: Path | None) -> None:
    """Remove the files of workers that have ended."""
    for path in _files(folder):
        with suppress(OSError):
            if not _may_go_on(path):
                path.unlink()


def _files(folder: Path | None) -> list[Path]:
    return sorted(folder.glob("*.worker")) if folder is not None else []


def _may_go_on(path: Path) -> bool:
    """Whether a worker can still write to its file."""
    with path.open("rb", buffering=0) as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        return True
    _, process, _, _, _, ended_ns = HEADER.unpack(header)
    return ended_ns == 0 and _is_running(process)


def _is_running(process: int) -> bool:
    """Whether a process with this id runs; a zombie does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return state.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])


# Three functions of torch's `DataLoader`, replaced while a session records data loading.
#
# `_DatasetKind.create_fetcher` makes the fetcher of samples, in the loader's own process or in a worker;
# `_utils.worker._worker_loop` is what a worker process runs; `_utils.pin_memory.pin_memory` copies a batch to pinned memory.
# All three are called with unchanged arguments, and use no random numbers of ours. They are restored exactly as
# they were when the last session is over.

# For how many loops over loaders the loader is stored; the oldest is dropped first.
_REMEMBERED = 1_000


class LoaderHooks:
    """The replaced functions, for all sessions of the process."""

    def __init__(self) -> None:
        """Replace nothing."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()
        # A session that is dropped without a stop() drops its source, too.
        self._sources: weakref.WeakSet[object] = weakref.WeakSet()
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._recording = 0
        self._folder: Path | None = None
        # The number of the loader that this thread is starting the workers of.
        self._starting = threading.local()
        self._numbers = itertools.count()
        self.loaders: dict[int, dict[str, Any]] = {}

    @property
    def folder(self) -> Path | None:
        """The folder of the workers' files; None before a session records data loading."""
        return self._folder

    def open(self, source: object) -> None:
        """Record loaders that start from now on, for a session.

        Raises:
            AttributeError: This torch has no such functions.
            OSError: The folder of the workers' files cannot be created.
        """
        with self._lock:
            if not self._sources:
                if self._folder is None or not self._folder.is_dir():
                    self._folder = Path(tempfile.mkdtemp(prefix="kinetoscope-loading-"))
                    weakref.finalize(self, _remove_own, self._folder, os.getpid())
                self._put_back()
                try:
                    self._replace()
                except BaseException:
                    self._put_back()
                    raise
            self._sources.add(source)

    def close(self, source: object) -> None:
        """Stop recording loaders for the session."""
        with self._lock:
            self._sources.discard(source)
            if not self._sources:
                self._put_back()

    def record(self, change: int) -> None:
        """One recording more (1) or less (-1) is under way."""
        with self._lock:
            if change > 0:
                self._tidy()
            self._recording = max(0, self._recording + change)

    def _tidy(self) -> None:
        """Remove the files of ended workers, unless an active recording needs them."""
        with self._lock:
            if not self._recording:
                remove_of_the_gone(self._folder)

    def after_fork(self) -> None:
        """In a forked child nothing is recorded for the parent's sessions, except by workers, which record themselves."""
        replaced, starting = self._replaced, self._starting
        self._begin_anew()
        # A worker reads its loader's number from this; the loop that it runs was chosen before the fork.
        self._starting = starting
        self._replaced = replaced
        self._put_back()

    # What is replaced

    def _replace(self) -> None:
        """Replace torch's functions by ours."""
        from torch.utils.data import _utils, dataloader

        kind, many = dataloader._DatasetKind, dataloader._MultiProcessingDataLoaderIter
        self._put(kind, "create_fetcher", staticmethod(self._create_fetcher(kind.create_fetcher)))
        loop = NotedLoop(_utils.worker._worker_loop, str(self._folder), self._number)
        self._put(_utils.worker, "_worker_loop", loop)
        self._put(many, "__init__", self._numbered(many.__init__))
        self._put(_utils.pin_memory, "pin_memory", self._pinning(_utils.pin_memory.pin_memory))

    def _put(self, owner: Any, name: str, ours: Any) -> None:
        self._replaced.append((owner, name, vars(owner)[name], ours))
        setattr(owner, name, ours)

    def _put_back(self) -> None:
        """Restore torch's functions, unless other code has replaced them meanwhile."""
        while self._replaced:
            owner, name, before, ours = self._replaced[-1]
            if vars(owner).get(name) is ours:
                setattr(owner, name, before)
            # Last: what is interrupted in here, as by the handler of a signal, is gone on with by the next call.
            self._replaced.pop()

    def _create_fetcher(self, create: Callable[..., Any]) -> Callable[..., Any]:
        """Fetchers of this process mark ranges."""

        def create_timed(*arguments: Any, **keywords: Any) -> Any:
            return timed(create(*arguments, **keywords), _RANGES)

        return create_timed

    def _numbered(self, begin: Callable[..., None]) -> Callable[..., None]:
        """Each iterator with workers has a number, which identifies its workers."""

        def begin_numbered(iterator: Any, loader: Any, *arguments: Any, **keywords: Any) -> None:
            number = next(self._numbers)
            with suppress(Exception):  # whatever a loader of somebody's own answers
                self._remember(number, loader)
            outer, self._starting.number = self._number(), number
            try:
                begin(iterator, loader, *arguments, **keywords)
            finally:
                self._starting.number = outer

        return begin_numbered

    def _remember(self, number: int, loader: Any) -> None:
        """Store the facts of a loader, up to a limit: a session may last for many epochs."""
        self._tidy()
        self.loaders[number] = _described(loader)
        while len(self.loaders) > _REMEMBERED:
            del self.loaders[next(iter(self.loaders))]

    def _number(self) -> int:
        """The number of the loader whose workers this thread starts, -1 for none."""
        number: int = getattr(self._starting, "number", -1)
        return number

    def _pinning(self, pin: Callable[..., Any]) -> Callable[..., Any]:
        """Pinning a batch is a range; it calls itself for the parts of a batch."""
        inside = threading.local()

        def pin_timed(*arguments: Any, **keywords: Any) -> Any:
            if not self._recording or getattr(inside, "yes", False):
                return pin(*arguments, **keywords)
            inside.yes, opened = True, begin_range(PIN_BATCH)
            try:
                return pin(*arguments, **keywords)
            finally:
                end_range(opened)
                inside.yes = False

        return pin_timed


class _Ranges:
    """Opens ranges for the making of batches in the recording process."""

    def begin(self, samples: int) -> Any:
        return begin_range(FETCH_BATCH) if HOOKS._recording else None

    def finish(self, begun: Any, outcome: int) -> None:
        if begun is not None:
            end_range(begun)

    def begin_collating(self) -> Any:
        return begin_range(COLLATE_BATCH) if HOOKS._recording else None

    def finish_collating(self, begun: Any) -> None:
        if begun is not None:
            end_range(begun)


def _described(loader: Any) -> dict[str, Any]:
    """The facts of a loader for the trace, as plain values."""
    known = {}
    for name in ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory"):
        value = getattr(loader, name, None)
        known[name] = value if isinstance(value, (int, bool)) else None
    return {"dataset": type(getattr(loader, "dataset", None)).__name__, **known}


def _remove_own(folder: Path, process: int) -> None:
    """Remove the workers' files; a forked child inherits the finalizer, but not the files."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


_RANGES = _Ranges()
HOOKS = LoaderHooks()
os.register_at_fork(after_in_child=HOOKS.after_fork)


# The notes of a `DataLoader` worker, as the trace of its process.

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
