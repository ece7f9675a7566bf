"""Record in a `DataLoader` worker process when it loads each batch.

Each worker writes a small file, which its parent may read at any time: a `HEADER`, then `ROWS` rows of the format `ROW`. Batch
n is in row n modulo `ROWS`. A row is written without buffering when its batch is started and again when it is finished, so that
it survives if the process is killed.

Uses no random numbers, and changes nothing of the program except the loop that torch runs in a worker.
"""

from __future__ import annotations

import os
import pkgutil
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MAGIC = b"KLOADER1"
# Magic, process, loader, worker, start and end of its loop (0: not ended) in ns of the monotonic clock.
HEADER = struct.Struct("<8s5q16x")
# Number of the batch from 0, its start, start and end of collating, end of the batch (0: not yet), requested samples, and the
# outcome.
ROW = struct.Struct("<7q8x")
ROWS = 1 << 14
MADE, FAILED, NO_MORE = 0, 1, 2


class WorkerLog:
    """Writes the file of one worker."""

    def __init__(
        self, path: str, loader: int, worker: int, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Create the file; if that fails, for example because the disk is full, the worker runs without it."""
        self._clock = clock
        self._thread = threading.get_ident()
        self._row: list[int] | None = None
        self._batches = 0
        self._header = [MAGIC, os.getpid(), loader, worker, clock(), 0]
        self._file = -1
        with suppress(OSError):
            self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._write(HEADER.pack(*self._header), 0)

    def begin(self, samples: int) -> list[int] | None:
        """Record the start of a batch; None, for a loader inside the dataset, if another batch is being loaded."""
        if self._row is not None or self._thread != threading.get_ident():
            return None
        row = self._row = [self._batches, self._clock(), 0, 0, 0, samples, MADE]
        self._batches += 1
        self._write_row(row)
        return row

    def finish(self, row: list[int] | None, outcome: int) -> None:
        """Record the end of a batch: it is loaded, failed, or there is none left."""
        if row is not None:
            row[4], row[6] = self._clock(), outcome
            self._write_row(row)
            self._row = None

    def begin_collating(self) -> list[int] | None:
        """Record the start of collating, when the samples are loaded."""
        row = self._row
        if row is None or row[2] or self._thread != threading.get_ident():
            return None
        row[2] = self._clock()
        return row

    def finish_collating(self, row: list[int] | None) -> None:
        """Record the end of collating."""
        if row is not None:
            row[3] = self._clock()

    def end(self) -> None:
        """Record the end of the worker's loop, and close the file."""
        self._header[5] = self._clock()
        self._write(HEADER.pack(*self._header), 0)
        self._close()

    def _write_row(self, row: list[int]) -> None:
        self._write(ROW.pack(*row), HEADER.size + row[0] % ROWS * ROW.size)

    def _write(self, data: bytes, offset: int) -> None:
        """Write to the file; after a failure it is closed, and nothing more is written."""
        if self._file >= 0:
            try:
                os.pwrite(self._file, data, offset)
            except OSError:
                self._close()

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)


def timed(fetcher: Any, times: Any) -> Any:
    """Have a fetcher of torch call a listener for each batch; one that lacks the attributes of torch's fetchers stays as it is.

    Args:
        fetcher: The fetcher. Nothing that is made here refers to it, so that it is freed when the loader drops it.
        times: Has the methods of `WorkerLog` that begin and finish.

    Returns:
        The fetcher.
    """

    class TimedFetcher(type(fetcher)):  # type: ignore[misc]  # whatever class it has
        def fetch(self, index: Any) -> Any:
            begun, outcome = times.begin(len(index) if isinstance(index, (list, tuple)) else 1), FAILED
            try:
                batch = super().fetch(index)
                outcome = MADE
            except StopIteration:
                outcome = NO_MORE
                raise
            finally:
                times.finish(begun, outcome)
            return batch

    def collate_timed(*samples: Any, **keywords: Any) -> Any:
        begun = times.begin_collating()
        try:
            return collate(*samples, **keywords)
        finally:
            times.finish_collating(begun)

    with suppress(AttributeError, TypeError):
        collate = fetcher.collate_fn
        fetcher.__class__ = TimedFetcher
        fetcher.collate_fn = collate_timed
    return fetcher


class RecordedLoop:
    """Replaces the function that torch runs in a worker; it is pickled to spawned workers, with the loader's number."""

    def __init__(self, loop: Callable[..., None], folder: str, number_of_loader: Callable[[], int]) -> None:
        """Wrap torch's function, unless it is wrapped already; workers write their files to `folder`."""
        self.loop: Callable[..., None] = loop.loop if isinstance(loop, RecordedLoop) else loop
        # For `inspect`, which follows this attribute.
        self.__wrapped__ = self.loop
        self._folder = folder
        self._number_of_loader = number_of_loader

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the loader's number, which is only known on the thread that starts the worker.

        The function is pickled by name, because under its name pickle would find this object instead.
        """
        name = getattr(self.loop, "__qualname__", None)
        loop = self.loop if name is None else f"{self.loop.__module__}:{name}"
        return _unpickled, (loop, self._folder, self._number_of_loader())

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        """Run torch's function, and record the batches of its fetchers."""
        logs: list[WorkerLog] = []
        restore = None
        with suppress(Exception):
            restore = self._wrap_fetchers(logs)
        try:
            self.loop(*arguments, **keywords)
        finally:
            for log in logs:
                log.end()
            if restore is not None:
                restore()

    def _wrap_fetchers(self, logs: list[WorkerLog]) -> Callable[[], None]:
        """Wrap the fetchers of this process; the first one makes the log of the worker. Returns a function that restores torch's."""
        from torch.utils.data import _DatasetKind, get_worker_info

        before: Any = _DatasetKind.__dict__["create_fetcher"]
        create, loader = _DatasetKind.create_fetcher, self._number_of_loader()

        def create_timed(*arguments: Any, **keywords: Any) -> Any:
            fetcher = create(*arguments, **keywords)
            # torch sets it in its loop.
            info = get_worker_info()
            if info is None or fetcher.dataset is not info.dataset:
                # It is of a loader inside the dataset.
                return fetcher
            if not logs:
                path = os.path.join(self._folder, f"{loader}-{info.id}-{os.getpid()}.worker")
                logs.append(WorkerLog(path, loader, info.id))
            return timed(fetcher, logs[0])

        _DatasetKind.create_fetcher = staticmethod(create_timed)
        return lambda: setattr(_DatasetKind, "create_fetcher", before)


def _unpickled(loop: Any, folder: str, number: int) -> RecordedLoop:
    return RecordedLoop(pkgutil.resolve_name(loop) if isinstance(loop, str) else loop, folder, lambda: number)
