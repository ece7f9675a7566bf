"""The open traces of a server, which are reloaded when their files change."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope.model import units
from kinetoscope.storage import live_recording
from kinetoscope.summaries import SUFFIX
from kinetoscope.summaries.job import Job
from kinetoscope.summaries.summary import is_summary
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_any

Source = Trace | Job | str | os.PathLike[str]

LOOK_EVERY_S = 2.0
"""A file is checked no more often than this."""
REST_FOR_READING = 4.0
"""After a file was read, it is not checked for this many times the reading time."""

RECORDING_SUFFIX, TRACE_SUFFIX = ".recording", ".ktrace"


class Offer(NamedTuple):
    """One of the open traces.

    Attributes:
        name: The name that is shown.
        trace: The trace, as last loaded; None if it could not be loaded, or is a job.
        problem: Why it could not be loaded, or not reloaded after a change.
        version: How often it was loaded; a page repeats its requests when it changes.
        live: Whether it is still being recorded.
        job: The summaries of the ranks, if it is a job.
    """

    name: str
    trace: Trace | None = None
    problem: str | None = None
    version: int = 1
    live: bool = False
    job: Job | None = None


class Given:
    """A source of a trace, with the trace as last loaded.

    Attributes:
        offer: The trace that the viewer shows now.
        error: The exception of the first attempt to load it.
        path: The path or URL; None for a trace that was passed as an object.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        open_trace: Callable[[str], Trace] = open_any,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the trace for the first time."""
        self.error: Exception | None = None
        self._open_trace, self._clock = open_trace, clock
        self._one_at_a_time = threading.Lock()
        self._closed = False
        self.path: str | None = None
        if isinstance(source, Trace | Job):
            self.offer = self._offer(name, source)
            return
        self.path = os.fspath(source)
        self._stamp = self._seen = stamp(self.path)
        self._load(self.path, Offer(name, version=0))

    def look_again(self) -> None:
        """Reload the file if it has changed, unless another thread is doing so."""
        if self.path is None or "://" in self.path or self._clock() < self._next:
            return
        if not self._one_at_a_time.acquire(blocking=False):
            return
        try:
            self._read_if_changed(self.path)
        finally:
            self._one_at_a_time.release()

    def close(self) -> None:
        """Close the trace, unless it was passed as an object."""
        with self._one_at_a_time:
            self._closed = True
            if self.path is not None and self.offer.trace is not None:
                self.offer.trace.close()

    def _read_if_changed(self, path: str) -> None:
        before, offer = self._seen, self.offer
        self._seen = now = stamp(path)
        if now is None and (written := finished(path)) is not None:
            # The program has ended, and its trace has replaced the recording.
            self.path, path = written, written
            self._seen = now = stamp(path)
            before = now
            offer = self.offer = offer._replace(name=str(PurePath(offer.name).with_suffix(TRACE_SUFFIX)))
        self._next = self._clock() + LOOK_EVERY_S
        running = offer.trace is not None and live_recording.is_running(offer.trace.run_info)
        if now == self._stamp or now is None:
            if offer.live and not running:
                # The process was killed: the page must repeat all requests, since the trace is not live any more.
                self.offer = offer._replace(live=False, version=offer.version + 1)
            return
        if now != before and not running:
            return  # The file may be incomplete while it is being written; only a recording can be read at any time.
        self._stamp = now
        self._load(path, offer)

    def _load(self, path: str, offer: Offer) -> None:
        began = self._clock()
        try:
            opened = Job.open(path) if is_job(path) else self._open_trace(path)
            # The previous trace is not closed, because requests about it may still be running.
            self.offer = self._offer(offer.name, opened, offer.version + 1)
        except Exception as error:  # noqa: BLE001  (whatever it was, other traces and the previous one can be shown)
            self.error = error
            self.offer = offer._replace(problem=words(error), version=offer.version + 1, live=False)
        else:
            if self._closed and self.offer.trace is not None:
                self.offer.trace.close()
        # The longer loading takes, the later the file is checked again.
        now = self._clock()
        self._next = now + max(LOOK_EVERY_S, REST_FOR_READING * (now - began))

    def _offer(self, name: str, opened: Trace | Job, version: int = 1) -> Offer:
        if isinstance(opened, Job):
            return Offer(name, None, None, version, job=opened)
        live = self.path is not None and live_recording.is_running(opened.run_info)
        return Offer(name, opened, None, version, live)


def given(sources: Sequence[Source], open_trace: Callable[[str], Trace] = open_any) -> list[Given]:
    """Load all sources.

    Args:
        sources: Paths, URLs, traces, or finished sessions, which have a `trace`.
        open_trace: Opens a trace by path or URL.

    Returns:
        The sources. If at least one can be loaded, the problems of others are in their offers.

    Raises:
        ArgumentError: There is none, or one of them is not a source.
        Exception: None of them can be loaded: the exception of the first.
    """
    plain = [_plain(source) for source in sources]
    if not plain:
        raise ArgumentError("no trace was given: pass a trace, or the path of one")
    sources_given = [
        Given(name, source, open_trace) for name, source in zip(names_of(plain), plain, strict=True)
    ]
    first = sources_given[0].error
    if first is not None and all(source.error is not None for source in sources_given):
        raise first
    return sources_given


def names_of(sources: Sequence[Source]) -> list[str]:
    """Return short unique names: the last component of each path, with as many before it as are needed."""
    parts = [_parts(source) for source in sources]
    names = []
    for index, path_parts in enumerate(parts):
        other_paths = parts[:index] + parts[index + 1 :]
        count = 1
        while count < len(path_parts) and any(path_parts[-count:] == path[-count:] for path in other_paths):
            count += 1
        twice = parts[:index].count(path_parts)
        names.append("/".join(path_parts[-count:]) + (f" ({twice + 1})" if twice else ""))
    return names


def stamp(path: str) -> Hashable:
    """Return a value that changes when the contents of a file do; None if there is no file.

    A running recording is written through shared memory into reserved space, which changes neither its modification time nor its size.
    """
    try:
        status = Path(path).stat()
        recorded = live_recording.progress(path) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None
    if recorded is not None and not recorded.stopped:
        return status.st_ino, recorded.position
    return status.st_mtime_ns, status.st_size, status.st_ino


def is_job(path: str) -> bool:
    """Whether a path is a summary or a folder of summaries; a Parquet file may also be a trace."""
    path_of_job = Path(path)
    files = sorted(path_of_job.glob(f"*{SUFFIX}")) if path_of_job.is_dir() else [path_of_job]
    return bool(files) and files[0].suffix == SUFFIX and is_summary(files[0])


def finished(path: str) -> str | None:
    """Return the path of the trace that `kinetoscope run` made from a recording that was removed; None if there is none."""
    written = Path(path).with_suffix(TRACE_SUFFIX)
    return str(written) if path.endswith(RECORDING_SUFFIX) and written.exists() else None


def words(error: Exception) -> str:
    """Convert an exception to one sentence for the user."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, KinetoscopeError | OSError) else f"it could not be read: {error!r}"


def _plain(source: Any) -> Source:
    if isinstance(source, str | os.PathLike | Trace | Job):
        return source
    trace = getattr(source, "trace", None)
    if isinstance(trace, Trace):
        return trace
    raise ArgumentError(f"{source!r} is not a trace: pass a trace, or the path or URL of one")


def _parts(source: Source) -> tuple[str, ...]:
    if isinstance(source, Job):
        return (units.count(len(source), "rank"),)
    path = source.path if isinstance(source, Trace) else os.fspath(source)
    return PurePath(path).parts[-8:] or ("trace",) if path is not None else ("trace",)
