"""The files of `DataLoader` workers as their parent reads them: what is new in each, and which files are obsolete."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.collect.sources.loader_worker import HEADER, MAGIC, ROW, ROWS
from kinetoscope.combine.loader_workers import BATCH_COLUMNS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WIDTH = ROW.size // 8
# Rows that are read at once where a worker's file is read on.
_BLOCK = 256


class WorkerFile:
    """The file of one worker, of which each call of `read` returns what is new.

    Attributes:
        process: The id of its process...
        loader: ...the number of the loader that it works for...
        worker: ...its number among the workers of that loader...
        begun_ns: ...and when it began; none of these before `read` has found something.
        ended_ns: When it ended, 0 if it has not.
        lost: Batches of the recording that later ones have overwritten before they were read.
        killed: It ended without writing its end.
        is_done: Nothing will be new any more.
    """

    def __init__(self, path: Path, begin_ns: int) -> None:
        """Read the file of a worker from a moment of the monotonic clock on."""
        self._path = path
        self._begin_ns = begin_ns
        self._next = -1
        self._last: list[int] = []
        self.process = self.loader = self.worker = -1
        self.begun_ns = self.ended_ns = self.lost = 0
        self.killed = self.is_done = False

    @property
    def is_of_recording(self) -> bool:
        """Whether the worker lived when the recording began or later."""
        return self.process >= 0 and not 0 < self.ended_ns <= self._begin_ns

    def read(self) -> NDArray[np.int64]:
        """The batches that were begun or made since the last call, with the values of `BATCH_COLUMNS`, in their order.

        Raises:
            OSError: There is no such file.
        """
        # Before its file is read: a worker that ends in between has written its end.
        runs = _may_go_on(self._path)
        with self._path.open("rb", buffering=0) as file:
            header = os.pread(file.fileno(), HEADER.size, 0)
            if len(header) < HEADER.size or HEADER.unpack(header)[0] != MAGIC:
                return _no_rows()
            _, self.process, self.loader, self.worker, self.begun_ns, self.ended_ns = HEADER.unpack(header)
            found = self._first(file.fileno()) if self._next < 0 else self._more(file.fileno())
        self.killed, self.is_done = not runs and self.ended_ns == 0, not runs
        if len(found) and found[0].tolist() == self._last:
            found = found[1:]
        if len(found):
            self._last = found[-1].tolist()
            self._next = self._last[0] + (self._last[4] > 0)
        return found

    def _first(self, file: int) -> NDArray[np.int64]:
        """All batches of the recording that are there."""
        rows = self._all(file)
        self._next = int(rows[-1, 0]) + 1 if len(rows) else 0
        oldest_ns = rows[0, 1] if len(rows) else 0
        # Overwritten rows are older than the oldest one; how many of them were in the recording is unknown.
        self.lost = int(rows[0, 0]) if len(rows) and oldest_ns > self._begin_ns else 0
        kept: NDArray[np.int64] = rows[(rows[:, 4] == 0) | (rows[:, 4] > self._begin_ns)]
        return kept

    def _more(self, file: int) -> NDArray[np.int64]:
        """The batches from the next one on."""
        found = []
        at = self._next
        while True:
            place = at % ROWS
            data = os.pread(file, min(_BLOCK, ROWS - place) * ROW.size, HEADER.size + place * ROW.size)
            rows = _rows(data)
            due = np.arange(at, at + len(rows))
            known = int(np.argmin(np.append((rows[:, 0] == due) & (rows[:, 1] > 0), False)))
            found.append(rows[:known])
            at += known
            if known < len(rows):
                if rows[known, 1] > 0 and rows[known, 0] > at:
                    # It was overwritten, and others with it.
                    rows = self._all(file)
                    rows = rows[rows[:, 0] >= at]
                    self.lost += int(rows[0, 0]) - at if len(rows) else 0
                    found.append(rows)
                break
            if not len(rows):
                break
        return np.concatenate(found)

    def _all(self, file: int) -> NDArray[np.int64]:
        """All rows of the file, in the order of their numbers."""
        rows = _rows(os.pread(file, ROWS * ROW.size, HEADER.size))
        rows = rows[(rows[:, 1] > 0) & (rows[:, 0] >= 0)]
        return rows[np.argsort(rows[:, 0])]


def _rows(data: bytes) -> NDArray[np.int64]:
    """The rows of a part of a file, without the last one if that is cut off."""
    length = len(data) // ROW.size
    return np.frombuffer(data, np.int64, length * _WIDTH).reshape(length, _WIDTH)[:, : len(BATCH_COLUMNS)]


def _no_rows() -> NDArray[np.int64]:
    return np.zeros((0, len(BATCH_COLUMNS)), dtype=np.int64)


def remove_of_the_gone(folder: Path | None) -> None:
    """Remove the files of workers that have ended."""
    for path in files_in(folder):
        with suppress(OSError):
            if not _may_go_on(path):
                path.unlink()


def files_in(folder: Path | None) -> list[Path]:
    """The files of workers in a folder, if there is one."""
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
