"""Three functions of torch's `DataLoader`, replaced while a session records data loading.

`_DatasetKind.create_fetcher` makes the fetcher of samples, in the loader's own process or in a worker;
`_utils.worker._worker_loop` is what a worker process runs; `_utils.pin_memory.pin_memory` copies a batch to pinned memory.
All three are called with unchanged arguments, and use no random numbers of ours. They are restored exactly as
they were when the last session is over.
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

from kinetoscope.collect.sources.loader_worker import NotedLoop, timed
from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from kinetoscope.collect.sources.worker_files import remove_of_the_gone
from kinetoscope.model.schema import (
    COLLATE_BATCH,
    FETCH_BATCH,
    PIN_BATCH,
)

if TYPE_CHECKING:
    from collections.abc import Callable


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
        # Called when a loop begins whose workers may have files.
        self._listeners: list[Callable[[], None]] = []

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

    def listen(self, loop_begins: Callable[[], None]) -> None:
        """Call a function whenever a loop with workers begins."""
        with self._lock:
            self._listeners.append(loop_begins)

    def forget(self, loop_begins: Callable[[], None]) -> None:
        """Call it no more."""
        with self._lock, suppress(ValueError):
            self._listeners.remove(loop_begins)

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
            for loop_begins in tuple(self._listeners):
                with suppress(Exception):  # as where no thread can be started
                    loop_begins()

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
