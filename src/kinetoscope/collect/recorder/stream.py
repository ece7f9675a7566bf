"""The native recorder makes one recording at a time, which all native sessions of a process share.

The first session starts it and the last one stops it. It contains everything that any of them requested. From it, each session's part is cut
(`kinetoscope._core.cut_recording`), with only what that session requested. The metadata and the time window of each
session are stored in the recording under keys of its own, so that they survive if the process is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import kinetoscope._core as _core
from kinetoscope._errors import StateError
from kinetoscope.collect.recorder.library import POSITION_NUMBERS, Recorded, Recorder, StopReport
from kinetoscope.storage.appended_rows import RowColumns
from kinetoscope.storage.recording_parts import clone, replacing

# Resolves 1 % of a step of one second; a round of samples takes some 50 microseconds.
_SAMPLES_PER_SECOND = 100
# A ring has few steps of its last seconds, in which a line of 3 ms must not stay without a sample.
_SAMPLES_OF_RINGS_PER_SECOND = 400
# Closing a recording takes a thousandth of this.
_PATIENCE_S = 60.0
# The most pauses that a session's window contains; earlier ones are dropped.
_MOST_PAUSES = 1000
NOTHING = Recorded(0)
_CALLS = Recorded.CALLS | Recorded.MODULE_SPANS
# Prefix of a session's metadata keys, and key of its window: as in native/core/recording/cut.h.
_KEY = "kinetoscope.session."


@dataclass(frozen=True)
class NewFile:
    """The file of a new recording, used if the session starts one instead of sharing the current one.

    Attributes:
        path: Called to get the path.
        belongs_to_user: Whether the user chose the path; otherwise the file is temporary, and is removed.
        ring_bytes: Upper limit of the file; None means no limit.
        keep_since_ns: As for `Recorder.start`.
    """

    path: Callable[[], Path]
    belongs_to_user: bool
    ring_bytes: int | None = None
    keep_since_ns: int = 0


class StreamFile:
    """The file of a recording that several sessions share, kept open until the last of them has been read or discarded."""

    def __init__(self, path: Path, *, belongs_to_user: bool) -> None:
        """Open the file; one that does not belong to the user is removed with this object."""
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        removed = None if belongs_to_user else path
        self._close = weakref.finalize(self, _close_file, self.number, removed, os.getpid())

    def disown(self) -> None:
        """Do not remove the file with this object, because another owner will."""
        self._close.detach()
        self._close = weakref.finalize(self, _close_file, self.number, None, os.getpid())


def _close_file(number: int, path: Path | None, process: int) -> None:
    """Close a file, and remove it and its folder if a path is given; a forked child only closes it."""
    with contextlib.suppress(OSError):
        os.close(number)
    if path is not None and os.getpid() == process:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()


@dataclass(frozen=True, eq=False)
class StreamPart:
    """The part of a closed session in a shared recording; its records are kept while this object exists.

    Attributes:
        file: The shared recording.
        session: The number of the session in it.
        begin_tick: The tick at which its part begins.
    """

    file: StreamFile
    session: int
    begin_tick: int

    def cut(self, target: Path) -> None:
        """Write the part to a file, replacing an existing one.

        Raises:
            OSError: The file cannot be written.
        """
        with replacing(target) as unfinished:
            # By file descriptor, because the file may have been renamed or removed meanwhile.
            _core.cut_recording(f"/proc/self/fd/{self.file.number}", self.session, unfinished)


class Subscription:
    """A session that records into the shared recording, from `Stream.start` to `Stream.close`.

    Attributes:
        number: The number of the session in the recording, from 0.
        what: Everything that it requested, always or in deep steps.
        wanted: What it requests at the moment.
        begin: The position of the recording when it started; empty if it started the recording.
        stopped_by: The thread that stopped it; None until then.
    """

    def __init__(self, recorder: Recorder, what: Recorded, in_deep_steps: Recorded = NOTHING) -> None:
        """Create a session that is not started yet, with what it requests always, and in addition in deep steps."""
        self.recorder = recorder
        self.what = what | in_deep_steps
        self.always = self.wanted = what
        self.number = 0
        self.stopped_by: int | None = None
        # Whether it is paused and resumed by `Recorder.step_switch` while it is the only session.
        self.switches_steps = False
        # Number of threads whose Python calls were missing when the session started.
        self.lost_before = 0
        self.begin: list[int] = []
        self._to_tick = 0
        self._pauses: list[list[int]] = []

    @property
    def is_paused(self) -> bool:
        """Whether the session is paused now."""
        return bool(self._pauses) and self._pauses[-1][1] == 0

    @property
    def begin_tick(self) -> int:
        """The tick at which the session started; 0 if it started the recording."""
        return self.begin[0] if self.begin else 0

    @property
    def was_paused(self) -> bool:
        """Whether the session was ever paused."""
        return bool(self._pauses)

    def add_info(self, info: Mapping[str, str]) -> None:
        """Write metadata of the session to the recording, as JSON texts by key."""
        prefix = f"{_KEY}{self.number}." if self.number else ""
        self.recorder.add_info({f"{prefix}{key}": text for key, text in info.items()})

    def append(self, table: str, columns: RowColumns, *, buffered: bool = False) -> bool:
        """Append rows to a table of the session: see `Recorder.append`."""
        return self.recorder.append(table, columns, session=self.number, buffered=buffered)

    def mark_begin(self) -> None:
        """Set the start of the session's window to the current position of the recording."""
        self.begin = self.recorder.position()

    def mark_end(self) -> None:
        """Set the end of the session's window to the current position, unless it is set already."""
        self._to_tick = self._to_tick or self.recorder.position()[0]

    def mark_pause(self, *, paused: bool) -> None:
        """Set the start or the end of a pause to the current position."""
        tick = self.recorder.position()[0]
        if paused:
            # A session may pause at every other step for weeks. In dropped pauses, what others recorded counts as its own.
            del self._pauses[: 1 - _MOST_PAUSES]
            self._pauses.append([tick, 0])
        else:
            self._pauses[-1][1] = tick

    def note_window(self) -> None:
        """Write the session's window, pauses and flags to the recording; a start of 0 is that of the recording."""
        begin = self.begin or [0] * POSITION_NUMBERS
        numbers = [int(self.what), *begin, self._to_tick, *itertools.chain(*self._pauses)]
        self.recorder.add_info({f"{_KEY}{self.number}": json.dumps(numbers)})


class Stream:
    """The native recording of this process, shared by all of its native sessions.

    Attributes:
        recordings: Number of recordings that were started.
    """

    def __init__(self) -> None:
        self.recordings = 0
        self._changed = threading.Condition(threading.RLock())
        # Sessions that are started and not closed yet.
        self._subscriptions: list[Subscription] = []
        self._sessions = 0
        self._what = NOTHING
        self._was_widened = False
        self._new_file: NewFile | None = None
        self._file: StreamFile | None = None
        # Parts of closed sessions. Records that belong neither to one of these nor to an open session are freed.
        self._parts: weakref.WeakSet[StreamPart] = weakref.WeakSet()
        self._freed_to_tick = 0

    @property
    def is_ring(self) -> bool:
        """Whether the recording overwrites its oldest records."""
        return self._new_file is not None and self._new_file.ring_bytes is not None

    @property
    def sessions(self) -> int:
        """Number of sessions that share the recording now; 0 if nothing is being recorded."""
        return len(self._subscriptions)

    def path(self) -> Path | None:
        """The file of the recording; None if nothing is being recorded."""
        subscriptions = self._subscriptions
        return subscriptions[0].recorder.recording_path() if subscriptions else None

    def start(self, session: Subscription, file: NewFile) -> str:
        """Start a session; the first one starts the recording, in this file.

        Returns:
            Which Python calls cannot be recorded, and why; empty if all can.

        Raises:
            StateError: The recorder is being used without a `Stream`, or the last recording is still being closed.
            RecorderError: The file cannot be created, or the recorder cannot record the additional data.
        """
        with self._changed:
            self._wait_until_closed()
            if not self._subscriptions:
                return self._begin(session, file)
            self._forbid_switching()
            if self._file is None:
                self._share()
            self._sessions += 1
            session.number = self._sessions
            # Added before anything else: after an interrupt, `stop` must find the session.
            session.mark_begin()
            self._subscriptions.append(session)
            try:
                session.lost_before = session.recorder.lost_call_threads()
                missing = self._change()
                session.mark_begin()
                session.note_window()
            except Exception:
                self._subscriptions.remove(session)
                self._allow_switching()
                raise
            return missing if session.what & _CALLS else ""

    def switch_steps(self, session: Subscription) -> int | None:
        """Let the session that began the recording be paused and resumed without `pause` and `resume`, while it is the only one.

        Returns:
            The address of the functions that do it, see `Recorder.step_switch`; None if the session did not begin the recording.
        """
        with self._changed:
            if session.number or session not in self._active():
                return None
            session.switches_steps = True
            self._allow_switching()
            return session.recorder.step_switch()

    def follow_switch(self, session: Subscription) -> None:
        """Find out whether the functions of `switch_steps` have paused a session; needed before `pause` and `resume`."""
        with self._changed:
            if session in self._active():
                self._forbid_switching()
                self._allow_switching(ends_pause=False)

    def _allow_switching(self, *, ends_pause: bool = True) -> None:
        """Allow `Recorder.step_switch` to pause and resume the session if no other one records and it requested that."""
        session = self._subscriptions[0]
        if len(self._subscriptions) > 1 or not session.switches_steps:
            return
        if ends_pause and session.is_paused:
            # Its pauses need not be noted from now on: no other session records during them.
            session.mark_pause(paused=False)
        session.recorder.allow_step_switch(True)

    def _forbid_switching(self) -> None:
        """Use `pause` and `resume` for the only session again, beginning with its present state."""
        session = self._subscriptions[0]
        if len(self._subscriptions) > 1 or not session.switches_steps:
            return
        paused = session.recorder.allow_step_switch(False)
        if paused != session.is_paused:
            session.mark_pause(paused=paused)

    def pause(self, session: Subscription) -> None:
        """Pause a session; the recorder is paused while all sessions are."""
        with self._changed:
            if session in self._active() and not session.is_paused:
                session.mark_pause(paused=True)
                self._change()

    def resume(self, session: Subscription) -> str:
        """End the pause of a session.

        Returns:
            Which Python calls cannot be recorded from now on, and why; empty if all can.
        """
        with self._changed:
            if session not in self._active() or not session.is_paused:
                return ""
            missing = self._change(resuming=session)
            session.mark_pause(paused=False)
            return missing if session.what & _CALLS else ""

    def record_deep(self, session: Subscription, deep: bool) -> int:
        """Switch a session to all that it requested (`deep`), or back to what it always requests; does nothing once it is stopped.

        Returns:
            How many operators have been recorded in full so far.
        """
        wanted = session.what if deep else session.always
        with self._changed:
            if session in self._active() and wanted != session.wanted:
                session.wanted = wanted
                self._change()
        return session.recorder.operators_with_versions()

    def stop(self, session: Subscription) -> StopReport:
        """Stop recording for a session; metadata can still be added until `close`.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        with self._changed:
            if session not in self._active():
                raise StateError("the native engine is not recording: call start() first")
            session.stopped_by, recorder = threading.get_ident(), session.recorder
            if self._active():
                session.mark_end()
                self._change()
                lost = recorder.lost_call_threads() if session.what & _CALLS else session.lost_before
                stopped = StopReport(unnamed_modules=recorder.resolve([]), idle=1, call_threads_lost=lost)
            else:
                try:
                    stopped = recorder.stop()
                except StateError:
                    self._subscriptions.remove(session)
                    raise
                session.mark_end()
            stopped.call_threads_lost -= session.lost_before
            stopped.dropped = recorder.dropped(session.begin)
            return stopped

    def close(self, session: Subscription) -> StreamPart | None:
        """Close a session.

        Returns:
            Its part of the recording; None if no other session shared the recording, whose file is then its own.
        """
        with self._changed:
            if session not in self._subscriptions:
                return None
            file = self._file
            if file is not None:
                session.note_window()
            self._subscriptions.remove(session)
            part = None if file is None else StreamPart(file, session.number, session.begin_tick)
            if self._subscriptions:
                if part is not None:
                    self._parts.add(part)
                self._free()
                self._allow_switching()
                return part
            session.recorder.close()
            self._file = None
            self._changed.notify_all()
            if file is not None and session.number == 0 and not session.was_paused and not self._was_widened:
                # The session covers the whole recording, which contains nothing that it did not request: nothing has to be cut.
                file.disown()
                return None
            return part

    def clone(self, target: Path) -> None:
        """Copy the current state of the recording to a file, while recording continues; see `kinetoscope.storage.recording_parts`.

        Raises:
            StateError: Nothing is being recorded in this process.
            OSError: The file cannot be written.
        """
        with self._changed:
            recorder = self.recorder()
            # Find the names of modules that were called since the last time.
            recorder.resolve([])
            path = recorder.recording_path()
            if path is None:
                raise StateError("the native recorder is not recording in this process")
            clone(path, target)

    def recorder(self) -> Recorder:
        """The recorder of the active sessions.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        active = self._active()
        if not active:
            raise StateError("the native recorder is not recording in this process")
        return active[0].recorder

    @property
    def _samples_per_second(self) -> int:
        return _SAMPLES_OF_RINGS_PER_SECOND if self.is_ring else _SAMPLES_PER_SECOND

    def _begin(self, session: Subscription, file: NewFile) -> str:
        self.recordings += 1
        self._subscriptions, self._sessions, self._what = [session], 0, session.wanted
        self._new_file, self._file, self._was_widened = file, None, False
        self._parts, self._freed_to_tick = weakref.WeakSet(), 0
        try:
            return session.recorder.start(
                file.path(),
                session.wanted,
                file.ring_bytes,
                keep_since_ns=file.keep_since_ns,
                samples_per_second=self._samples_per_second if Recorded.SAMPLES in session.what else 0,
            )
        except Exception:
            # Not after an interrupt, which may have come after the start: then the session can still be stopped.
            self._subscriptions = []
            raise

    def _share(self) -> None:
        first = self._subscriptions[0]
        path = first.recorder.recording_path()
        if path is None or self._new_file is None:
            raise StateError("the native recorder is not recording in this process")
        self._file = StreamFile(path, belongs_to_user=self._new_file.belongs_to_user)
        first.note_window()

    def _free(self) -> None:
        """Free records that no session needs: with sessions that always overlap, the recording never ends."""
        begin_ticks = [session.begin_tick for session in self._subscriptions]
        needed = min([*begin_ticks, *(part.begin_tick for part in self._parts)])
        if needed > self._freed_to_tick:
            self._freed_to_tick = needed
            self._subscriptions[0].recorder.free_before(needed)
        # Numbers are assigned in order of starting. The metadata of closed sessions is needed until they are read.
        numbers = [session.number for session in self._subscriptions]
        self._subscriptions[0].recorder.forget_sessions_before(
            min([*numbers, *(part.session for part in self._parts)])
        )

    def _active(self) -> list[Subscription]:
        """The sessions that are not stopped, including paused ones."""
        return list(filter(lambda session: session.stopped_by is None, self._subscriptions))

    def _wait_until_closed(self) -> None:
        """If all sessions are stopped, wait until another thread has closed the recording; StateError after too long, or if this thread must close it."""
        until = time.monotonic() + _PATIENCE_S
        while self._subscriptions and not self._active():
            stopped_here = threading.get_ident() in {session.stopped_by for session in self._subscriptions}
            if stopped_here or time.monotonic() > until:
                raise StateError(
                    "another Kinetoscope session of this process is just being stopped: start this one afterwards."
                )
            self._changed.wait(1.0)

    def _change(self, resuming: Subscription | None = None) -> str:
        """Record what the active sessions request, or pause if all are paused; `resuming` counts as active. Returns what `start` does."""
        requested, recording = NOTHING, False
        for session in self._active():
            records = session is resuming or not session.is_paused
            recording |= records
            # For a paused session only calls, the most expensive part, are not recorded. Memory is, for frees of earlier blocks.
            requested |= session.wanted if records else session.wanted & ~_CALLS
        recorder = self._subscriptions[0].recorder
        missing = ""
        if not recording:
            # The recorder remembers the requested calls for `resume`.
            recorder.pause()
            return missing
        if requested != self._what:
            missing = recorder.change(requested, self._samples_per_second)
            self._was_widened |= bool(requested & ~self._subscriptions[0].what)
            self._what = requested
        return recorder.resume() or missing


STREAM = Stream()
# In a forked child: forget the recording, which is the parent's, and replace the lock.
os.register_at_fork(after_in_child=STREAM.__init__)  # type: ignore[misc]
