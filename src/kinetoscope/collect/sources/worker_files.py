"""Read the files of `DataLoader` workers in their parent process, and remove obsolete ones."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.collect.sources.loader_worker import HEADER, MAGIC, ROW, ROWS
from kinetoscope.combine.loader_workers import BATCH_COLUMNS
from kinetoscope.storage.live_recording import is_alive

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

    def read(self) -> NDArray[np.int64]:
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

    def _new(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of all rows of the file, those of the recording from the next batch on, in order."""
        rows = rows[(rows[:, 1] > 0) & (rows[:, 0] >= max(self._next, 0))]
        rows = rows[np.argsort(rows[:, 0])]
        first = int(rows[0, 0]) if len(rows) else 0
        if self._next >= 0:
            self.lost += max(first - self._next, 0)
            return rows
        self._next = int(rows[-1, 0]) + 1 if len(rows) else 0
        # Overwritten rows are older than the oldest one. How many of them belonged to the recording is unknown: count all.
        self.lost = first if len(rows) and rows[0, 1] > self._begin_ns else 0
        of_recording: NDArray[np.int64] = rows[(rows[:, 4] == 0) | (rows[:, 4] > self._begin_ns)]
        return of_recording


def _rows(data: bytes) -> NDArray[np.int64]:
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
