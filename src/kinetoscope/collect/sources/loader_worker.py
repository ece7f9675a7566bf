"""The notes of a `DataLoader` worker process: when it made which batch.

Each worker has one small file, which its parent reads at any time. It begins with `HEADER`, then follow `ROWS` rows, each
of them `ROW`; batch n is in row n modulo `ROWS`. A row is written when its batch is begun and again when it is made, each
time at once and not through a buffer, so that what is there is there however the process ends.

Nothing here draws a random number, and nothing of the program is touched beyond the loop that torch runs in a worker.
"""

from __future__ import annotations

import importlib
import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

MAGIC = b"KLOADER1"
# Magic, process, loader, worker, when its loop began and ended (0: it has not) in ns of the steady clock.
HEADER = struct.Struct("<8s5q16x")
# Number of the batch from 0, when it was begun, when collating was begun and done, when the batch was made (0: not yet),
# samples requested, and the outcome.
ROW = struct.Struct("<7q8x")
ROWS = 1 << 14
MADE, FAILED, NO_MORE = 0, 1, 2


class WorkerNotes:
    """The file of one worker."""

    def __init__(
        self, path: str, loader: int, worker: int, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Create the file; if that fails (the disk is full, say), nothing is noted and the worker runs as usual."""
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
        """A batch is started; None if another is being made: this one then belongs to a loader inside the dataset."""
        if self._row is not None or self._thread != threading.get_ident():
            return None
        row = self._row = [self._batches, self._clock(), 0, 0, 0, samples, MADE]
        self._batches += 1
        self._write_row(row)
        return row

    def finish(self, row: list[int] | None, outcome: int) -> None:
        """The batch is made, or never will be."""
        if row is not None:
            row[4], row[6] = self._clock(), outcome
            self._write_row(row)
            self._row = None

    def begin_collating(self) -> list[int] | None:
        """The samples are there and are being collated."""
        row = self._row
        if row is None or row[2] or self._thread != threading.get_ident():
            return None
        row[2] = self._clock()
        return row

    def finish_collating(self, row: list[int] | None) -> None:
        """They are collated."""
        if row is not None:
            row[3] = self._clock()

    def end(self) -> None:
        """The worker is done."""
        self._header[5] = self._clock()
        self._write(HEADER.pack(*self._header), 0)
        self._close()

    def _write_row(self, row: list[int]) -> None:
        self._write(ROW.pack(*row), HEADER.size + row[0] % ROWS * ROW.size)

    def _write(self, data: bytes, place: int) -> None:
        """Write, or never again."""
        if self._file >= 0:
            try:
                os.pwrite(self._file, data, place)
            except OSError:
                self._close()

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)


class BatchTimes(Protocol):
    """A listener for the making of batches."""

    def begin(self, samples: int) -> Any:
        """A batch is begun; what this returns is handed to `finish`."""
        ...

    def finish(self, begun: Any, outcome: int) -> None:
        """It is made, failed, or there is none."""
        ...

    def begin_collating(self) -> Any:
        """Its samples are being collated."""
        ...

    def finish_collating(self, begun: Any) -> None:
        """They are."""
        ...


class TimedFetcher:
    """Wraps a fetcher of torch: the same batches, and a listener is called when they are made.

    It references the fetcher and not the reverse, so both are freed when the loader drops them.
    """

    def __init__(self, fetcher: Any, times: BatchTimes) -> None:
        """Wrap `fetcher`."""
        collate = fetcher.collate_fn

        def collate_timed(*samples: Any, **keywords: Any) -> Any:
            begun = times.begin_collating()
            try:
                return collate(*samples, **keywords)
            finally:
                times.finish_collating(begun)

        fetcher.collate_fn = collate_timed
        object.__setattr__(self, "_fetcher", fetcher)
        object.__setattr__(self, "_times", times)

    def fetch(self, index: Any) -> Any:
        """Make a batch, as torch's fetcher does."""
        begun, outcome = self._times.begin(len(index) if isinstance(index, (list, tuple)) else 1), FAILED
        try:
            made = self._fetcher.fetch(index)
            outcome = MADE
        except StopIteration:
            outcome = NO_MORE
            raise
        finally:
            self._times.finish(begun, outcome)
        return made

    def __getattr__(self, name: str) -> Any:
        """What else the fetcher has."""
        if name == "_fetcher":
            # Asked of one that is just being copied.
            raise AttributeError(name)
        return getattr(self._fetcher, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Change the fetcher."""
        setattr(self._fetcher, name, value)


def timed(fetcher: Any, times: BatchTimes) -> Any:
    """The fetcher wrapped to call `times`; unchanged if it is not like torch's."""
    try:
        return TimedFetcher(fetcher, times)
    except AttributeError:
        return fetcher


class NotedLoop:
    """Replaces torch's function that a worker runs; pickled to spawned workers, with the loader's number."""

    def __init__(self, loop: Callable[..., None], folder: str, number_of_loader: Callable[[], int]) -> None:
        """Wrap `loop`, unless it is wrapped already; notes go to `folder`."""
        self.loop: Callable[..., None] = loop.loop if isinstance(loop, NotedLoop) else loop
        # By this name `inspect` finds the wrapped function.
        self.__wrapped__ = self.loop
        self._folder = folder
        self._number_of_loader = number_of_loader

    def __reduce__(self) -> tuple[Any, ...]:
        """The loader's number is known in the thread that starts the worker, not in the worker.

        A function goes by its name, for under that name pickle finds this object and not the function.
        """
        name = getattr(self.loop, "__qualname__", None)
        loop = self.loop if name is None else (self.loop.__module__, name)
        return _made_again, (loop, self._folder, self._number_of_loader())

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        """Run torch's loop, with notes of what its fetchers do."""
        notes = None
        with suppress(Exception):
            notes = self._begin()
        try:
            self.loop(*arguments, **keywords)
        finally:
            if notes is not None:
                notes[0].end()
                notes[1]()

    def _begin(self) -> tuple[_NotesLater, Callable[[], None]]:
        """Time the fetchers of this process; return the notes and a function that undoes it."""
        from torch.utils.data import _DatasetKind

        before: Any = _DatasetKind.__dict__["create_fetcher"]
        create = _DatasetKind.create_fetcher
        notes = _NotesLater(self._folder, self._number_of_loader())

        def create_timed(*arguments: Any, **keywords: Any) -> Any:
            return notes.timed(create(*arguments, **keywords))

        _DatasetKind.create_fetcher = staticmethod(create_timed)
        return notes, lambda: setattr(_DatasetKind, "create_fetcher", before)


class _NotesLater:
    """The notes of a worker, created when torch has set its worker info."""

    def __init__(self, folder: str, loader: int) -> None:
        self._folder = folder
        self._loader = loader
        self._notes: WorkerNotes | None = None

    def timed(self, fetcher: Any) -> Any:
        """A fetcher with notes of its batches, if it is the worker's own and not of a loader that the dataset uses."""
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        if info is None or fetcher.dataset is not info.dataset:
            return fetcher
        if self._notes is None:
            path = os.path.join(self._folder, f"{self._loader}-{info.id}-{os.getpid()}.worker")
            self._notes = WorkerNotes(path, self._loader, info.id)
        return timed(fetcher, self._notes)

    def end(self) -> None:
        """The worker is done."""
        if self._notes is not None:
            self._notes.end()


def _made_again(loop: Any, folder: str, number: int) -> NotedLoop:
    """The loop in a spawned worker."""
    if isinstance(loop, tuple):
        module, name = loop
        loop = importlib.import_module(module)
        for part in name.split("."):
            loop = getattr(loop, part)
    return NotedLoop(loop, folder, lambda: number)
