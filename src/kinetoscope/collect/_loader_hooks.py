"""Where torch's `DataLoader` tells us what it does: three of its functions, replaced while a session wants to know.

`_DatasetKind.create_fetcher` makes what asks a dataset for samples, in the loader's own process or in a worker;
`_utils.worker._worker_loop` is what a worker process runs; `_utils.pin_memory.pin_memory` copies a batch to pinned memory.
All three are called as before, with what they were given, and draw no random number of ours. They are put back exactly as
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

from kinetoscope.collect._loader_files import remove_of_the_gone
from kinetoscope.collect._loader_worker import NotedLoop, timed
from kinetoscope.collect._quick_ranges import begin_range, end_range
from kinetoscope.trace._loading_words import COLLATE, FETCH, PIN

if TYPE_CHECKING:
    from collections.abc import Callable

# Of how many loops over loaders it is known what loader that was; the oldest is forgotten first.
_REMEMBERED = 1_000


class LoaderHooks:
    """The replaced functions, for all sessions of the process."""

    def __init__(self) -> None:
        """Replace nothing."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._sources: set[int] = set()
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._recording = 0
        self._folder: Path | None = None
        # The number of the loader that this thread is starting the workers of.
        self._starting = threading.local()
        self._numbers = itertools.count()
        self.loaders: dict[int, dict[str, Any]] = {}

    @property
    def folder(self) -> Path | None:
        """Where workers have their files; there are none before a session wanted to know."""
        return self._folder

    def open(self, source: object) -> None:
        """A session wants to know what loaders do that begin from now on.

        Raises:
            AttributeError: This torch has no such functions.
            OSError: No place for the workers' files can be made.
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
            self._sources.add(id(source))

    def close(self, source: object) -> None:
        """The session does not want to know any more."""
        with self._lock:
            self._sources.discard(id(source))
            if not self._sources:
                self._put_back()

    def record(self, change: int) -> None:
        """One recording more (1) or less (-1) is under way."""
        with self._lock:
            if change > 0:
                self._tidy()
            self._recording = max(0, self._recording + change)

    def _tidy(self) -> None:
        """Remove what workers that are gone have left; a recording under way may still want it."""
        with self._lock:
            if not self._recording:
                remove_of_the_gone(self._folder)

    def after_fork(self) -> None:
        """In a child nothing is recorded for the parent's sessions, except by workers, which see to it themselves."""
        replaced, starting = self._replaced, self._starting
        self._begin_anew()
        # A worker finds out its loader's number by this; the loop that it runs was chosen before the fork.
        self._starting = starting
        self._replaced = replaced
        self._put_back()

    # What is replaced

    def _replace(self) -> None:
        """Put ours in place of torch's."""
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
        """Put torch's back, but not over what somebody else has put there meanwhile."""
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
        """Each iterator with workers has a number, by which its workers are told from those of others."""

        def begin_numbered(iterator: Any, loader: Any, *arguments: Any, **keywords: Any) -> None:
            number = next(self._numbers)
            with suppress(Exception):  # whatever a loader of somebody's own answers
                self._remember(number, loader)
            outer, self._starting.number = self._number(), number
            try:
                begin(iterator, loader, *arguments, **keywords)
            finally:
                self._starting.number = outer

        return begin_numbered

    def _remember(self, number: int, loader: Any) -> None:
        """Keep what is known of a loader; a session may last for many epochs, so not for ever."""
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
            inside.yes, opened = True, begin_range(PIN)
            try:
                return pin(*arguments, **keywords)
            finally:
                end_range(opened)
                inside.yes = False

        return pin_timed


class _Ranges:
    """Marks the making of batches in the process that records."""

    def begin(self, samples: int) -> Any:
        return begin_range(FETCH) if HOOKS._recording else None

    def finish(self, begun: Any, outcome: int) -> None:
        if begun is not None:
            end_range(begun)

    def begin_collating(self) -> Any:
        return begin_range(COLLATE) if HOOKS._recording else None

    def finish_collating(self, begun: Any) -> None:
        if begun is not None:
            end_range(begun)


def _described(loader: Any) -> dict[str, Any]:
    """What is worth knowing of a loader; plain values only, for it goes into the trace."""
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
