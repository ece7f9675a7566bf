"""The source that records how a `DataLoader` loads its batches, in this process and in workers."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from kinetoscope.collect.request.options import AppendRows
from kinetoscope.collect.sources.loader_worker import HEADER, MAGIC, ROW, ROWS, RecordedLoop, timed
from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from kinetoscope.collect.sources.shared_hooks import SharedHooks
from kinetoscope.combine.loader_workers import (
    BATCH_COLUMNS,
    BATCHES,
    LOADERS,
    WORKER_COLUMNS,
    WORKERS,
)
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import (
    COLLATE_BATCH,
    FETCH_BATCH,
    PIN_BATCH,
)
from kinetoscope.storage.live_recording import is_alive

_WIDTH = ROW.size // 8


class WorkerFile:
    """The file of one worker; each call of `read` returns its new rows.

    Attributes:
        process: The id of the worker's process; -1, as the two below, before `read` has found the header.
        loader: The number of its loader.
        worker: Its number among the workers of that loader.
        begun_ns: Start of its loop, by the monotonic clock; 0 before `read` has found the header.
        ended_ns: End of its loop; 0 if it has not ended.
        lost: Number of batches of the recording that were overwritten before they were read.
        killed: Whether the process ended without writing the end of its loop.
        is_done: Whether the process has ended, so that there will be no new rows.
    """

    def __init__(self, path: Path, begin_ns: int) -> None:
        """Prepare to read batches that ended after `begin_ns` of the monotonic clock."""
        self._path = path
        self._begin_ns = begin_ns
        self._next = -1
        self._last: list[int] = []
        self.process = self.loader = self.worker = -1
        self.begun_ns = self.ended_ns = self.lost = 0
        self.killed = self.is_done = False

    @property
    def is_of_recording(self) -> bool:
        """Whether the worker was running when the recording began, or started later."""
        return self.process >= 0 and not 0 < self.ended_ns <= self._begin_ns

    def read(self) -> Rows:
        """Return the batches that were started or finished since the last call, in order; columns as in `BATCH_COLUMNS`.

        Raises:
            OSError: The file does not exist.
        """
        # Checked before the file is read, because a worker that ends in between has written the end of its loop.
        runs = _may_still_write(self._path)
        with self._path.open("rb", buffering=0) as file:
            header = os.pread(file.fileno(), HEADER.size, 0)
            if len(header) < HEADER.size or HEADER.unpack(header)[0] != MAGIC:
                return _rows(b"")
            _, self.process, self.loader, self.worker, self.begun_ns, self.ended_ns = HEADER.unpack(header)
            batches = self._new(_rows(os.pread(file.fileno(), ROWS * ROW.size, HEADER.size)))
        self.killed, self.is_done = not runs and self.ended_ns == 0, not runs
        if len(batches) and batches[0].tolist() == self._last:
            batches = batches[1:]
        if len(batches):
            self._last = batches[-1].tolist()
            self._next = self._last[0] + (self._last[4] > 0)
        return batches

    def _new(self, rows: Rows) -> Rows:
        """The rows of the recording from the next batch on, in order."""
        rows = rows[(rows[:, 1] > 0) & (rows[:, 0] >= max(self._next, 0))]
        rows = rows[np.argsort(rows[:, 0])]
        first = int(rows[0, 0]) if len(rows) else 0
        if self._next >= 0:
            self.lost += max(first - self._next, 0)
            return rows
        self._next = int(rows[-1, 0]) + 1 if len(rows) else 0
        # Overwritten rows are older than the oldest one. How many of them belonged to the recording is unknown: count all.
        self.lost = first if len(rows) and rows[0, 1] > self._begin_ns else 0
        of_recording: Rows = rows[(rows[:, 4] == 0) | (rows[:, 4] > self._begin_ns)]
        return of_recording


def _rows(data: bytes) -> Rows:
    length = len(data) // ROW.size
    return np.frombuffer(data, np.int64, length * _WIDTH).reshape(length, _WIDTH)[:, : len(BATCH_COLUMNS)]


def remove_obsolete(folder: Path | None) -> None:
    """Remove the files of workers that have ended."""
    for path in files_in(folder):
        with suppress(OSError):
            if not _may_still_write(path):
                path.unlink()


def files_in(folder: Path | None) -> list[Path]:
    """List the files of workers in a folder; empty for None."""
    return sorted(folder.glob("*.worker")) if folder is not None else []


def _may_still_write(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        return True
    _, process, _, _, began_ns, ended_ns = HEADER.unpack(header)
    return ended_ns == 0 and is_alive(process, began_ns)


# Number of loops over loaders whose loader is described; older ones are dropped.
_MOST_LOADERS = 1_000


class LoaderHooks(SharedHooks):
    """Hooks in torch's `DataLoader`, shared by all sessions of the process, and removed when the last one ends.

    `_DatasetKind.create_fetcher` creates the fetcher of samples, in the loader's own process or in a worker;
    `_utils.worker._worker_loop` runs in a worker process; `_utils.pin_memory.pin_memory` copies a batch to pinned memory. All three
    are called with unchanged arguments, and no random numbers are used.
    """

    def __init__(self) -> None:
        super().__init__()
        # Per thread, the number of the loader whose workers it is starting.
        self._starting = threading.local()
        self._forget_loaders()

    def _forget_loaders(self) -> None:
        # The sources that are recording now.
        self.recording: list[DataLoading] = []
        # The folder of the workers' files; None before a session records data loading.
        self.folder: Path | None = None
        self._numbers = itertools.count()
        self.loaders: dict[int, dict[str, Any]] = {}

    def begin(self, source: DataLoading) -> None:
        """Start to record for a source, and tell it when a loop with workers begins."""
        with self._lock:
            self._remove_obsolete()
            self.recording.append(source)

    def end(self, source: DataLoading) -> None:
        """Stop recording for a source; does nothing in a forked child, where no source records."""
        with self._lock, suppress(ValueError):
            self.recording.remove(source)

    def _remove_obsolete(self) -> None:
        with self._lock:
            if not self.recording:
                remove_obsolete(self.folder)

    def forget_sessions(self) -> None:
        """In a forked child: the parent's sessions do not record this process, except workers, which write their own files.

        A worker still needs the number of its loader; the function that it runs was replaced before the fork.
        """
        super().forget_sessions()
        self._forget_loaders()

    def _install(self, first: bool) -> None:
        """Replace torch's functions, and create the workers' folder; AttributeError if torch lacks the functions, OSError if that fails."""
        if not first:
            return
        from torch.utils.data import _utils, dataloader

        if self.folder is None or not self.folder.is_dir():
            self.folder = Path(tempfile.mkdtemp(prefix="kinetoscope-loading-"))
            weakref.finalize(self, _remove_own, self.folder, os.getpid())
        kind, workers_iterator = dataloader._DatasetKind, dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001  (torch's own)
        create = kind.create_fetcher

        def create_timed(*arguments: Any, **keywords: Any) -> Any:
            return timed(create(*arguments, **keywords), _RANGES)

        self._replaced.put(kind, "create_fetcher", staticmethod(create_timed))
        loop = RecordedLoop(_utils.worker._worker_loop, str(self.folder), self._number)  # noqa: SLF001  (torch's own)
        self._replaced.put(_utils.worker, "_worker_loop", loop)
        self._replaced.put(workers_iterator, "__init__", self._numbered(workers_iterator.__init__))
        self._replaced.put(_utils.pin_memory, "pin_memory", self._pinning(_utils.pin_memory.pin_memory))

    def _numbered(self, begin: Callable[..., None]) -> Callable[..., None]:
        def begin_numbered(iterator: Any, loader: Any, *arguments: Any, **keywords: Any) -> None:
            number = next(self._numbers)
            with suppress(Exception):  # a user's loader class may raise anything
                self._add_loader(number, loader)
            outer, self._starting.number = self._number(), number
            try:
                begin(iterator, loader, *arguments, **keywords)
            finally:
                self._starting.number = outer
            for source in tuple(self.recording):
                with suppress(Exception):  # for example if no thread can be started
                    source.loop_begins()

        return begin_numbered

    def _add_loader(self, number: int, loader: Any) -> None:
        """Describe a loader, up to a limit, because a session may last for many epochs."""
        self._remove_obsolete()
        self.loaders[number] = _described(loader)
        while len(self.loaders) > _MOST_LOADERS:
            del self.loaders[next(iter(self.loaders))]

    def _number(self) -> int:
        """The number of the loader whose workers this thread is starting, or -1."""
        number: int = getattr(self._starting, "number", -1)
        return number

    def _pinning(self, pin: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `pin_memory` in a range; recursive calls, for parts of a batch, get none."""
        inside = threading.local()

        def pin_timed(*arguments: Any, **keywords: Any) -> Any:
            if not self.recording or getattr(inside, "yes", False):
                return pin(*arguments, **keywords)
            inside.yes, opened = True, begin_range(PIN_BATCH)
            try:
                return pin(*arguments, **keywords)
            finally:
                end_range(opened)
                inside.yes = False

        return pin_timed


class _Ranges:
    """The listener in the recording process, which opens ranges."""

    def begin(self, samples: int) -> Any:
        return begin_range(FETCH_BATCH) if HOOKS.recording else None

    def begin_collating(self) -> Any:
        return begin_range(COLLATE_BATCH) if HOOKS.recording else None

    def finish(self, begun: Any, outcome: int | None = None) -> None:
        if begun is not None:
            end_range(begun)

    finish_collating = finish


def _described(loader: Any) -> dict[str, Any]:
    settings = {}
    for name in ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory"):
        value = getattr(loader, name, None)
        settings[name] = value if isinstance(value, (int, bool)) else None
    return {"dataset": type(getattr(loader, "dataset", None)).__name__, **settings}


def _remove_own(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


_RANGES = _Ranges()
HOOKS = LoaderHooks()


class WorkerRows:
    """Copies rows from the files of loader workers to a recording: regularly on a thread, and on each call of `move`."""

    def __init__(self, begin_ns: int, append: AppendRows) -> None:
        """Prepare to copy what workers do after `begin_ns` of the monotonic clock."""
        self._begin_ns = begin_ns
        self._append = append
        self._files: dict[Path, WorkerFile] = {}
        self._known: dict[Path, list[int]] = {}
        self._loaders: set[int] = set()
        self._moving = threading.Lock()  # guards all fields above
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # An empty table says that workers were recorded, but there were none so far.
        append(BATCHES, {"process": [], "loader": [], **{name: [] for name in BATCH_COLUMNS}}, buffered=True)

    def loop_begins(self) -> None:
        """Start the thread that copies rows, when a loop with workers begins."""
        with self._moving:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="kinetoscope workers", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and copy the remaining rows."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
        self.move()

    def move(self) -> None:
        """Copy new rows of all workers to the recording."""
        with self._moving:
            for path in files_in(HOOKS.folder):
                worker = self._files.setdefault(path, WorkerFile(path, self._begin_ns))
                if not worker.is_done:
                    # The worker may still be creating its file.
                    with suppress(OSError):
                        self._move(path, worker)

    def _move(self, path: Path, worker: WorkerFile) -> None:
        rows = worker.read()
        if not worker.is_of_recording:
            return
        if worker.loader not in self._loaders:
            self._loaders.add(worker.loader)
            facts = HOOKS.loaders.get(worker.loader, {})
            self._append(LOADERS, {"loader": [worker.loader], "facts": [facts]}, buffered=True)
        state = [worker.begun_ns, worker.ended_ns, worker.worker, worker.lost, int(worker.killed)]
        key = {"process": worker.process, "loader": worker.loader}
        if self._known.get(path) != state:
            self._known[path] = state
            columns = {**key, **dict(zip(WORKER_COLUMNS, state, strict=True))}
            self._append(WORKERS, {name: [value] for name, value in columns.items()}, buffered=True)
        # In parts, because the recorder limits the size of what is appended at once.
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[first : first + _ROWS_AT_ONCE]
            batches = {name: [value] * len(part) for name, value in key.items()}
            batches |= dict(zip(BATCH_COLUMNS, part.T.tolist(), strict=True))
            self._append(BATCHES, batches, buffered=True)

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL_S):
            try:
                self.move()
            except Exception:  # noqa: BLE001  (the job must go on; `stop` tries again, and raises the error)
                return


# Seconds between copies. If the process is killed, the rows of this time are lost.
_INTERVAL_S = 0.5
_ROWS_AT_ONCE = 4_096
_PATIENCE_S = 5.0


class DataLoading:
    """Records how every `DataLoader` loads its batches: for `profile(sources=[DataLoading()])`.

    In the recording process, loading a batch is a range `DataLoader.fetch` with `DataLoader.collate` inside, and pinning it is
    `DataLoader.pin`. Worker processes, forked or spawned, become processes of the trace, with the same ranges on the same clock,
    if the loop over the loader starts after the session. The table `data_loading` has sums.

    The batches, their order and all random numbers are unchanged.
    """

    def __init__(self) -> None:
        """Start without a session."""
        self._begin_ns = 0
        self._rows: WorkerRows | None = None

    def open(self) -> None:
        """Install the hooks in `DataLoader`; workers that exist already are not recorded.

        Raises:
            AttributeError: This release of torch does not have the hooked functions.
            OSError: The folder of the workers' files cannot be created.
        """
        HOOKS.open(self)

    def start(self) -> None:
        """Start to record ranges."""
        self._begin_ns = time.monotonic_ns()
        HOOKS.begin(self)

    def write_to(self, append: AppendRows) -> None:
        """Copy what workers do to the recording, at least once a second."""
        self._rows = WorkerRows(self._begin_ns, append)
        if files_in(HOOKS.folder):
            self.loop_begins()

    def loop_begins(self) -> None:
        """Copy what workers do from now on."""
        if (rows := self._rows) is not None:
            rows.loop_begins()

    def stop(self) -> None:
        """Stop recording, and copy what the workers have written so far."""
        rows, self._rows = self._rows, None
        try:
            if rows is not None:
                rows.stop()
        finally:
            HOOKS.end(self)

    def close(self) -> None:
        """Remove the hooks from `DataLoader`."""
        HOOKS.close(self)
