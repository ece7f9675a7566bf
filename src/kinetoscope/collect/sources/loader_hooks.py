"""Replace three functions of torch's `DataLoader` while a session records data loading.

`_DatasetKind.create_fetcher` creates the fetcher of samples, in the loader's own process or in a worker;
`_utils.worker._worker_loop` runs in a worker process; `_utils.pin_memory.pin_memory` copies a batch to pinned memory. All three
are called with unchanged arguments, and no random numbers are used. They are restored when the last session ends.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope.collect.sources.loader_worker import RecordedLoop, timed
from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from kinetoscope.collect.sources.shared_hooks import SharedHooks
from kinetoscope.collect.sources.worker_files import remove_obsolete
from kinetoscope.model.schema import (
    COLLATE_BATCH,
    FETCH_BATCH,
    PIN_BATCH,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# Number of loops over loaders whose loader is described; older ones are dropped.
_MOST_LOADERS = 1_000


class LoaderHooks(SharedHooks):
    """Hooks in torch's `DataLoader`, shared by all sessions of the process."""

    def __init__(self) -> None:
        super().__init__()
        # Per thread, the number of the loader whose workers it is starting.
        self._starting = threading.local()
        self._forget_loaders()

    def _forget_loaders(self) -> None:
        self.recordings = 0
        self._folder: Path | None = None
        self._numbers = itertools.count()
        self.loaders: dict[int, dict[str, Any]] = {}
        # Called when a loop with workers begins.
        self._listeners: list[Callable[[], None]] = []

    @property
    def folder(self) -> Path | None:
        """The folder of the workers' files; None before a session records data loading."""
        return self._folder

    def record(self, change: int) -> None:
        """Count active recordings: one more (1) or less (-1)."""
        with self._lock:
            if change > 0:
                self._remove_obsolete()
            self.recordings = max(0, self.recordings + change)

    def listen(self, loop_begins: Callable[[], None]) -> None:
        """Call a function whenever a loop with workers begins."""
        with self._lock:
            self._listeners.append(loop_begins)

    def forget(self, loop_begins: Callable[[], None]) -> None:
        """Remove a listener; does nothing if it is unknown."""
        with self._lock, suppress(ValueError):
            self._listeners.remove(loop_begins)

    def _remove_obsolete(self) -> None:
        """Remove the files of ended workers, unless an active recording needs them."""
        with self._lock:
            if not self.recordings:
                remove_obsolete(self._folder)

    def forget_sessions(self) -> None:
        """In a forked child: the parent's sessions do not record this process, except workers, which write their own files.

        A worker still needs the number of its loader; the function that it runs was replaced before the fork.
        """
        super().forget_sessions()
        self._forget_loaders()

    def _install(self, first: bool) -> None:
        """Replace torch's functions by ours, and make the folder of the workers' files.

        Raises:
            AttributeError: This release of torch does not have the replaced functions.
            OSError: The folder cannot be created.
        """
        if not first:
            return
        from torch.utils.data import _utils, dataloader

        if self._folder is None or not self._folder.is_dir():
            self._folder = Path(tempfile.mkdtemp(prefix="kinetoscope-loading-"))
            weakref.finalize(self, _remove_own, self._folder, os.getpid())
        kind, workers_iterator = dataloader._DatasetKind, dataloader._MultiProcessingDataLoaderIter
        self._replaced.put(kind, "create_fetcher", staticmethod(self._create_fetcher(kind.create_fetcher)))
        loop = RecordedLoop(_utils.worker._worker_loop, str(self._folder), self._number)
        self._replaced.put(_utils.worker, "_worker_loop", loop)
        self._replaced.put(workers_iterator, "__init__", self._numbered(workers_iterator.__init__))
        self._replaced.put(_utils.pin_memory, "pin_memory", self._pinning(_utils.pin_memory.pin_memory))

    def _create_fetcher(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def create_timed(*arguments: Any, **keywords: Any) -> Any:
            return timed(create(*arguments, **keywords), _RANGES)

        return create_timed

    def _numbered(self, begin: Callable[..., None]) -> Callable[..., None]:
        """Wrap the constructor of iterators with workers, to assign each a number, which identifies its workers."""

        def begin_numbered(iterator: Any, loader: Any, *arguments: Any, **keywords: Any) -> None:
            number = next(self._numbers)
            with suppress(Exception):  # a user's loader class may raise anything
                self._add_loader(number, loader)
            outer, self._starting.number = self._number(), number
            try:
                begin(iterator, loader, *arguments, **keywords)
            finally:
                self._starting.number = outer
            for loop_begins in tuple(self._listeners):
                with suppress(Exception):  # for example if no thread can be started
                    loop_begins()

        return begin_numbered

    def _add_loader(self, number: int, loader: Any) -> None:
        """Store the description of a loader, up to a limit, because a session may last for many epochs."""
        self._remove_obsolete()
        self.loaders[number] = _described(loader)
        while len(self.loaders) > _MOST_LOADERS:
            del self.loaders[next(iter(self.loaders))]

    def _number(self) -> int:
        """The number of the loader whose workers this thread is starting, or -1."""
        number: int = getattr(self._starting, "number", -1)
        return number

    def _pinning(self, pin: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `pin_memory` in a range; torch's function calls itself for parts of a batch, which get none."""
        inside = threading.local()

        def pin_timed(*arguments: Any, **keywords: Any) -> Any:
            if not self.recordings or getattr(inside, "yes", False):
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
        return begin_range(FETCH_BATCH) if HOOKS.recordings else None

    def begin_collating(self) -> Any:
        return begin_range(COLLATE_BATCH) if HOOKS.recordings else None

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
    """Remove the workers' files, except in a forked child, which inherits the finalizer but does not own the files."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


_RANGES = _Ranges()
HOOKS = LoaderHooks()
