"""The source that records how a `DataLoader` makes its batches, in this process and in workers."""

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
    """Moves what workers write into a recording: at once, whenever it is asked, and on a thread while loops have workers."""

    def __init__(self, begin_ns: int, append: AppendRows) -> None:
        """Append what workers do from a moment of the monotonic clock on."""
        self._begin_ns = begin_ns
        self._append = append
        self._files: dict[Path, WorkerFile] = {}
        self._known: dict[Path, list[int]] = {}
        self._loaders: set[int] = set()
        self._moving = threading.Lock()  # guards all of these
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # That there are none says that workers were looked for.
        append(BATCHES, {"process": [], "loader": [], **{name: [] for name in BATCH_COLUMNS}}, buffered=True)

    def loop_begins(self) -> None:
        """Look for what workers write from now on."""
        with self._moving:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="kinetoscope workers", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Move what there is, and end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
        self.move()

    def move(self) -> None:
        """Append what is new."""
        with self._moving:
            for path in files_in(HOOKS.folder):
                one = self._files.setdefault(path, WorkerFile(path, self._begin_ns))
                if not one.is_done:
                    # A worker may be about to create its file.
                    with suppress(OSError):
                        self._move(path, one)

    def _move(self, path: Path, one: WorkerFile) -> None:
        rows = one.read()
        if not one.is_of_recording:
            return
        if one.loader not in self._loaders:
            self._loaders.add(one.loader)
            facts = HOOKS.loaders.get(one.loader, {})
            self._append(LOADERS, {"loader": [one.loader], "facts": [facts]}, buffered=True)
        state = [one.begun_ns, one.ended_ns, one.worker, one.lost, int(one.killed)]
        key = {"process": one.process, "loader": one.loader}
        if self._known.get(path) != state:
            self._known[path] = state
            columns = {**key, **dict(zip(WORKER_COLUMNS, state, strict=True))}
            self._append(WORKERS, {name: [value] for name, value in columns.items()}, buffered=True)
        # So that a row is never longer than the recorder takes.
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[first : first + _ROWS_AT_ONCE]
            batches = {name: [value] * len(part) for name, value in key.items()}
            batches |= dict(zip(BATCH_COLUMNS, part.T.tolist(), strict=True))
            self._append(BATCHES, batches, buffered=True)

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL_S):
            try:
                self.move()
            except Exception:  # noqa: BLE001  (whatever it is, the job goes on; `stop` tries again, and says it)
                return


# How often rows are written; a killed process may lose that much and what writing takes.
_INTERVAL_S = 0.5
_ROWS_AT_ONCE = 4_096
_PATIENCE_S = 5.0


class DataLoading:
    """Records how every `DataLoader` makes its batches: for `profile(sources=[DataLoading()])`.

    In the recording process, making a batch is a range `DataLoader.fetch` with `DataLoader.collate` inside, and pinning
    it is `DataLoader.pin`. Worker processes become processes of the trace, with the same ranges, on the same clock, for every
    loop over a loader that starts after the session, forked or spawned. The table `data_loading` has the sums.

    The batches, their order and all random numbers are unchanged.
    """

    def __init__(self) -> None:
        """Nothing happens before a session begins."""
        self._begin_ns = 0
        self._rows: WorkerRows | None = None

    def open(self) -> None:
        """Start to record loaders; workers that exist already are not recorded.

        Raises:
            AttributeError: This torch has no such loaders.
            OSError: The folder of the workers' files cannot be created.
        """
        HOOKS.open(self)

    def start(self) -> None:
        """Begin to mark ranges."""
        self._begin_ns = time.monotonic_ns()
        HOOKS.record(1)

    def write_to(self, append: AppendRows) -> None:
        """Write what workers do into the recording that has begun, at least once a second."""
        rows = self._rows = WorkerRows(self._begin_ns, append)
        HOOKS.listen(rows.loop_begins)
        if files_in(HOOKS.folder):
            rows.loop_begins()

    def stop(self) -> None:
        """Stop, and write what the workers have written so far."""
        rows, self._rows = self._rows, None
        try:
            if rows is not None:
                HOOKS.forget(rows.loop_begins)
                rows.stop()
        finally:
            HOOKS.record(-1)

    def close(self) -> None:
        """Stop recording loaders."""
        HOOKS.close(self)
