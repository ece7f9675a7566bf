"""The files of `DataLoader` workers as their parent reads them: which batches were made when, and which files are obsolete."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.collect.sources.loader_worker import HEADER, MAGIC, ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
