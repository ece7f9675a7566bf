"""Start and stop the recorders that run in addition to the engine: the execution trace observer, and sources.

A source is called when the session begins and ends (`open`, `close`) and when each recording does (`start`, `write_to`, `stop`).
Our own sources append rows to tables of the recording while it runs. If the engine writes no recording file, the rows are kept in
memory instead; both are read in the same way.
A user's source may instead return an object from `stop`; its `add_to` adds the data when the trace is built, which may be much later.
A failure of a source is a warning and a loss in the trace: the job and the engine's own recording continue.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.options import Gathered, Recording, Source
from kinetoscope.storage.appended_rows import KeptRows

if TYPE_CHECKING:
    from kinetoscope.collect.request.options import AppendRows, TraceObserver
    from kinetoscope.storage.appended_rows import AppendedRows
    from kinetoscope.trace import Trace


class ObserverWindow:
    """Starts and stops an observer once for each cycle, from any thread."""

    def __init__(self, observer: TraceObserver | None) -> None:
        """Store the observer, or None."""
        self.observer = observer
        self._is_open = False
        self._is_closing = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start the observer unless it is running; if its `start` raises, it counts as not running."""
        if self.observer is None:
            return
        with self._lock:
            if self._is_open:
                return
            # Set before the call: after an interrupt in the middle of it the observer may be running, and must be stopped.
            self._is_open = True
        try:
            self.observer.start()
        except Exception:
            self._is_open = False
            raise

    def close(self) -> BaseException | None:
        """Stop the observer if it is running; return its exception instead of raising it, so that the recording stops anyway.

        After an interrupt the observer may still be running; then another call stops it.
        """
        observer, closing_here = self.observer, False
        try:
            with self._lock:
                if observer is None or not self._is_open or self._is_closing:
                    return None
                self._is_closing = closing_here = True
            observer.stop()
            self._is_open = False
        except BaseException as error:  # noqa: BLE001  (raised again by the caller)
            self._is_open &= not isinstance(error, Exception)
            return error
        finally:
            if closing_here:
                self._is_closing = False
        return None

    def cleanup(self) -> None:
        """Call the observer's `cleanup`."""
        if self.observer is not None:
            self.observer.cleanup()


class SourceWindow:
    """The sources of one session, each started and stopped once for each recording; failures never propagate."""

    def __init__(self, sources: tuple[Source, ...]) -> None:
        """Store the sources, without opening them."""
        self._sources = sources
        self._opened: list[Source] = []
        self._running: list[Source] = []
        self._gathered: list[tuple[Source, Gathered]] = []
        # Appended rows, if the engine writes no recording file.
        self._kept: KeptRows | None = None
        self._failures: list[tuple[Source, str]] = []
        # Sources whose open() failed: each of the session's recordings lacks their data.
        self._failed_to_open: list[tuple[Source, str]] = []
        self._warned: set[int] = set()
        self._is_open = False
        self._opened_by_start = False
        # A session may be stopped by another thread than the one that is starting it.
        self._lock = threading.RLock()

    def fresh(self) -> SourceWindow:
        """Return a window with the same sources, none of them open, for a forked child process."""
        return SourceWindow(self._sources)

    def open(self) -> None:
        """Open the sources; does nothing if they are open."""
        with self._lock:
            if self._is_open or not self._sources:
                return
            self._is_open = True
            self._failures = []
            for source in self._sources:
                # Added before the call: if an interrupt leaves a source half open, it must be closed like the others.
                self._opened.append(source)
                if not self._call(source, "open", source.open):
                    self._opened.remove(source)
            self._failed_to_open, self._failures = self._failures, []
        self._warn()

    def start(self) -> None:
        """Start the sources for a new recording; opens them first if they are not open."""
        with self._lock:
            if self._running or not self._sources:
                return
            self._forget()
            if not self._is_open:
                self.open()
                self._opened_by_start = True
            for source in self._opened:
                self._running.append(source)
                if not self._call(source, "start", source.start):
                    self._running.remove(source)
        self._warn()

    def write_to(self, append: AppendRows | None) -> None:
        """Give the sources the function that appends rows to the current recording; None if its engine writes no file."""
        with self._lock:
            if append is None:
                append = self._kept = KeptRows()
            for source in self._running:
                if (write_to := getattr(source, "write_to", None)) is not None:
                    self._call(source, "write_to", functools.partial(write_to, append))

    def stop(self) -> None:
        """Stop the sources, and store the data that they return."""
        with self._lock:
            while self._running:
                source = self._running.pop()

                def gather(source: Source = source) -> None:
                    gathered = source.stop()
                    if gathered is not None:
                        self._gathered.insert(0, (source, gathered))

                self._call(source, "stop", gather)
            if self._opened_by_start:
                self._opened_by_start = False
                self.close()
        self._warn()

    def with_gathered(self, recording: Recording) -> SourcedRecording:
        """Combine the engine's recording with the data of the sources."""
        with self._lock:
            gathered, self._gathered = self._gathered, []
            failures, self._failures = [*self._failed_to_open, *self._failures], []
            kept_rows, self._kept = self._kept, None
        return SourcedRecording(recording, gathered, failures, kept_rows)

    def cancel(self) -> None:
        """Stop the sources and discard their data of the current recording."""
        if self._running or self._gathered:
            self.stop()
            self._forget()

    def close(self) -> None:
        """Close the sources; does nothing if they are closed."""
        with self._lock:
            if self._running:
                self.cancel()
            self._is_open = False
            while self._opened:
                source = self._opened.pop()
                self._call(source, "close", source.close)
        self._warn()

    def _forget(self) -> None:
        with self._lock:
            gathered, self._gathered = self._gathered, []
            self._failures, self._kept = [], None
            for source, part in gathered:
                self._call(source, "discard", part.discard)

    def _call(self, source: Source, call: str, do: Callable[[], None]) -> bool:
        """Call a source's method; if it raises, return False and note why, for the warning and the trace's losses."""
        try:
            do()
        except Exception as error:  # noqa: BLE001  (whatever it is, the job goes on)
            self._failures.append((source, f"{call}() failed: {type(error).__name__}: {error}"))
            return False
        return True

    def _warn(self) -> None:
        """Warn once for each failed source; called last, because warnings may be turned into exceptions."""
        for source, why in (*self._failed_to_open, *self._failures):
            if id(source) not in self._warned:
                self._warned.add(id(source))
                warn_user(f"{_named(source)} records nothing, profiling continues: {why}")


@dataclass
class SourcedRecording:
    """The recording of an engine with the data of the sources.

    Attributes:
        recording: The engine's recording.
        gathered: The objects that the user's sources returned from `stop`.
        failures: Sources whose data is missing, with the reason.
        kept_rows: Appended rows that were kept in memory, not in the recording's file.
    """

    recording: Recording
    gathered: list[tuple[Source, Gathered]]
    failures: list[tuple[Source, str]]
    kept_rows: KeptRows | None

    def read(self) -> tuple[Trace, list[AppendedRows]]:
        """Return the engine's trace with the data of the user's sources, and the rows that our sources appended, which it lacks."""
        trace = self.recording.trace()
        rows = getattr(self.recording, "rows", None) if self.kept_rows is None else self.kept_rows.rows()
        missing: list[tuple[Source, str]] = []
        for source, part in self.gathered:
            try:
                trace = part.add_to(trace)
            except Exception as error:  # noqa: BLE001  (whatever it is, the job goes on)
                missing.append((source, f"add_to() failed: {type(error).__name__}: {error}"))
        if failed := [*self.failures, *missing]:
            from kinetoscope.combine.extend import extend
            from kinetoscope.model.losses import Loss

            subjects = [(f"what {_named(source)} records", why) for source, why in failed]
            trace = extend(
                trace, losses=[Loss.of("source_failed", what=lost, why=why) for lost, why in subjects]
            )
        # Last, because warnings may be turned into exceptions.
        for source, why in missing:
            warn_user(f"what {_named(source)} recorded is not in the trace: {why}")
        return trace, [] if rows is None else [rows]

    def discard(self) -> None:
        """Delete the engine's recording and the data of the sources."""
        self.recording.discard()
        self.kept_rows = None
        while self.gathered:
            source, part = self.gathered.pop()
            try:
                part.discard()
            except Exception as error:  # noqa: BLE001  (whatever it is, the job goes on)
                warn_user(f"{_named(source)} could not be cleaned up: {type(error).__name__}: {error}")


def _named(source: Source) -> str:
    return f"the source {type(source).__name__}"
