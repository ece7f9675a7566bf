"""The source that records how a `DataLoader` loads its batches, in this process and in workers."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.collect.sources.loader_hooks import HOOKS
from kinetoscope.collect.sources.worker_files import WorkerFile, files_in
from kinetoscope.combine.loader_workers import (
    BATCH_COLUMNS,
    BATCHES,
    LOADERS,
    WORKER_COLUMNS,
    WORKERS,
)

if TYPE_CHECKING:
    from kinetoscope.collect.request.options import AppendRows


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
        HOOKS.record(1)

    def write_to(self, append: AppendRows) -> None:
        """Copy what workers do to the recording, at least once a second."""
        rows = self._rows = WorkerRows(self._begin_ns, append)
        HOOKS.listen(rows.loop_begins)
        if files_in(HOOKS.folder):
            rows.loop_begins()

    def stop(self) -> None:
        """Stop recording, and copy what the workers have written so far."""
        rows, self._rows = self._rows, None
        try:
            if rows is not None:
                HOOKS.forget(rows.loop_begins)
                rows.stop()
        finally:
            HOOKS.record(-1)

    def close(self) -> None:
        """Remove the hooks from `DataLoader`."""
        HOOKS.close(self)
