"""The recorder's one recording, which all native sessions of a process share.

The first session begins it and the last one ends it. It contains what all of them need together; each session's part is cut out of
it (`kinetoscope._core.cut_recording`), with only what that session asked for. What belongs to a session, its metadata and its
window of time, is in the recording under keys of its own, so that a killed process has it, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import kinetoscope._core as _core
from kinetoscope._errors import StateError
from kinetoscope.collect.recorder.library import POSITION_NUMBERS, Recorded, Stopped
from kinetoscope.storage.recording_parts import clone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from kinetoscope.collect.recorder.library import Recorder

# Often enough to find what takes a hundredth of a step of a second; a round of samples costs some 50 microseconds.
SAMPLES_PER_SECOND = 100
# A thousand times longer than closing takes.
_PATIENCE_S = 60.0
_CALLS = Recorded.CALLS | Recorded.MODULE_SPANS
# Of the keys of a session and of its window, in native/core/recording/cut.h.
_KEY = "kinetoscope.session."


@dataclass(frozen=True)
class NewFile:
    """The file that a recording begins in.

    Attributes:
        path: Makes the path, if a recording begins.
        belongs_to_user: Whether the user chose the path; another one is removed with what is in it.
        ring_bytes: Upper limit of the file; None means no limit.
        keep_since_ns: As for `Recorder.start`.
    """

    path: Callable[[], Path]
    belongs_to_user: bool
    ring_bytes: int | None = None
    keep_since_ns: int = 0


class StreamFile:
    """The file of a recording that several sessions share: it can be read until the last of them has no use for it."""

    def __init__(self, path: Path, *, belongs_to_user: bool) -> None:
        """Keep the file at `path` open; a private one is removed with this object."""
        self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        removed = None if belongs_to_user else path
        self._close = weakref.finalize(self, _close_file, self._number, removed, os.getpid())

    def give_up(self) -> None:
        """Leave the file to somebody else, who removes it; it can still be read here."""
        self._close.detach()
        self._close = weakref.finalize(self, _close_file, self._number, None, os.getpid())

    def cut(self, session: int, target: Path) -> None:
        """Write the part of a session, by its number, to a file, which replaces an older one.

        Raises:
            OSError: It cannot be written.
        """
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            made = Path(scratch, target.name)
            # By its number: the file may have another name by now, or none.
            _core.cut_recording(f"/proc/self/fd/{self._number}", session, str(made))
            made.replace(target)


def _close_file(number: int, path: Path | None, process: int) -> None:
    """Close a file, and remove it and its folder if a path is given; a fork removes nothing."""
    with contextlib.suppress(OSError):
        os.close(number)
    if path is not None and os.getpid() == process:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()


@dataclass(frozen=True, eq=False)
class StreamPart:
    """The part of an ended session in a recording that others share; what it needs stays there for as long as this lives.

    Attributes:
        file: The recording.
        session: The number of the session in it.
        begin_tick: When its part begins.
    """

    file: StreamFile
    session: int
    begin_tick: int

    def cut(self, target: Path) -> None:
        """Write it to a file: see `StreamFile.cut`."""
        self.file.cut(self.session, target)


class Subscription:
    """A session's part in the recording, from `start` to `close`.

    Attributes:
        number: The number of the session in the recording, from 0.
        what: What is recorded for it.
        stopped_by: The thread that stopped it; None while it records.
    """

    def __init__(self, stream: Stream, recorder: Recorder, what: Recorded) -> None:
        """Record nothing yet."""
        self._stream = stream
        self.recorder = recorder
        self.what = what
        self.number = 0
        self.stopped_by: int | None = None
        # Threads whose calls were missing already when it began.
        self.lost_before = 0
        self._begin: list[int] = []
        self._to_tick = 0
        self._pauses: list[list[int]] = []

    @property
    def is_paused(self) -> bool:
        """Whether nothing is recorded for it at present."""
        return bool(self._pauses) and self._pauses[-1][1] == 0

    @property
    def begin_tick(self) -> int:
        """When its part begins; 0 where that is the beginning of the recording."""
        return self._begin[0] if self._begin else 0

    @property
    def was_paused(self) -> bool:
        """Whether nothing was recorded for it at some time."""
        return bool(self._pauses)

    def start(self, file: NewFile) -> str:
        """Begin; the first session begins the recording, in this file.

        Returns:
            Which Python calls cannot be recorded, and why; empty if all can.

        Raises:
            StateError: Another recording of the recorder is in progress.
            RecorderError: The file cannot be created, or the recorder cannot change.
        """
        return self._stream.start(self, file)

    def add_info(self, info: Mapping[str, str]) -> None:
        """Write metadata of the session into the recording, as JSON texts by key."""
        prefix = f"{_KEY}{self.number}." if self.number else ""
        self.recorder.add_info({f"{prefix}{key}": text for key, text in info.items()})

    def append(self, table: str, columns: Mapping[str, Sequence[Any]], *, buffered: bool = False) -> bool:
        """Write rows of a named table of the session: see `Recorder.append`."""
        return self.recorder.append(table, columns, session=self.number, buffered=buffered)

    def pause(self) -> None:
        """Record nothing for this session until `resume`."""
        self._stream.pause(self)

    def resume(self) -> str:
        """Record for this session again.

        Returns:
            Which Python calls cannot be recorded from now on, and why; empty if all can.
        """
        return self._stream.resume(self)

    def stop(self) -> Stopped:
        """End the session's part; metadata can still be added until `close`.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        return self._stream.stop(self)

    def close(self) -> StreamPart | None:
        """End the session.

        Returns:
            Its part of the recording; None if the whole recording is its own.
        """
        return self._stream.close(self)

    def begins_here(self) -> None:
        """Let its part begin now."""
        self._begin = self.recorder.position()

    def ends_here(self) -> None:
        """Let its part end now, if it has not ended before."""
        self._to_tick = self._to_tick or self.recorder.position()[0]

    def pauses_here(self, *, paused: bool) -> None:
        """Let a pause begin or end now."""
        tick = self.recorder.position()[0]
        if paused:
            self._pauses.append([tick, 0])
        else:
            self._pauses[-1][1] = tick

    def note_window(self) -> None:
        """Write when this session records, and what; without a beginning it began with the recording."""
        numbers = [int(self.what), *(self._begin or [0] * POSITION_NUMBERS), self._to_tick]
        for pause in self._pauses:
            numbers += pause
        self.recorder.add_info({f"{_KEY}{self.number}": json.dumps(numbers)})


class Stream:
    """The recording of this process, while any session needs it.

    Attributes:
        recordings: How many recordings have begun.
    """

    def __init__(self) -> None:
        """Begin without a recording."""
        self.recordings = 0
        self._changed = threading.Condition(threading.RLock())
        # Those that have begun and are not closed yet.
        self._subscriptions: list[Subscription] = []
        self._sessions = 0
        self._what = Recorded(0)
        self._was_widened = False
        self._new_file: NewFile | None = None
        self._file: StreamFile | None = None
        # Of the sessions that are closed; what belongs to none of them, and to no open one, is freed.
        self._parts: weakref.WeakSet[StreamPart] = weakref.WeakSet()
        self._freed_to_tick = 0

    @property
    def is_ring(self) -> bool:
        """Whether the recording overwrites its oldest records."""
        return self._new_file is not None and self._new_file.ring_bytes is not None

    def start(self, one: Subscription, file: NewFile) -> str:
        """Begin the part of a session; see `Subscription.start`."""
        with self._changed:
            self._wait_for_the_end()
            if not self._subscriptions:
                return self._begin(one, file)
            if self._file is None:
                self._share()
            self._sessions += 1
            one.number = self._sessions
            # Before anything is changed: after an interrupt, the session must be found by its stop.
            one.begins_here()
            self._subscriptions.append(one)
            try:
                one.lost_before = one.recorder.lost_call_threads()
                missing = self._change()
                one.begins_here()
                one.note_window()
            except Exception:
                self._subscriptions.remove(one)
                raise
            return missing if one.what & _CALLS else ""

    def pause(self, one: Subscription) -> None:
        """Record nothing for a session; the recorder pauses when none records."""
        with self._changed:
            if one in self._active() and not one.is_paused:
                one.pauses_here(paused=True)
                self._change()

    def resume(self, one: Subscription) -> str:
        """Record for a session again; see `Subscription.resume`."""
        with self._changed:
            if one not in self._active() or not one.is_paused:
                return ""
            missing = self._change(resuming=one)
            one.pauses_here(paused=False)
            return missing if one.what & _CALLS else ""

    def stop(self, one: Subscription) -> Stopped:
        """End the part of a session; see `Subscription.stop`."""
        with self._changed:
            if one not in self._active():
                raise StateError("the native engine is not recording: call start() first")
            one.stopped_by = threading.get_ident()
            if self._active():
                one.ends_here()
                self._change()
                lost = one.recorder.lost_call_threads() - one.lost_before if one.what & _CALLS else 0
                return Stopped(
                    faults=0, unnamed_modules=one.recorder.resolve([]), idle=True, call_threads_lost=lost
                )
            try:
                stopped = one.recorder.stop()
            except StateError:
                self._subscriptions.remove(one)
                raise
            one.ends_here()
            return dataclasses.replace(stopped, call_threads_lost=stopped.call_threads_lost - one.lost_before)

    def close(self, one: Subscription) -> StreamPart | None:
        """End a session; see `Subscription.close`."""
        with self._changed:
            if one not in self._subscriptions:
                return None
            file = self._file
            if file is not None:
                one.note_window()
            self._subscriptions.remove(one)
            part = None if file is None else StreamPart(file, one.number, one.begin_tick)
            if self._subscriptions:
                if part is not None:
                    self._parts.add(part)
                self._free()
                return part
            one.recorder.close()
            self._file = None
            self._changed.notify_all()
            if file is not None and one.number == 0 and not one.was_paused and not self._was_widened:
                # From the first to the last moment, and with nothing that this session did not ask for.
                file.give_up()
                return None
            return part

    def clone(self, target: Path) -> None:
        """Copy the recording as it is at this moment to a file, while it goes on; see `kinetoscope.storage.recording_parts`.

        Raises:
            StateError: Nothing is being recorded in this process.
            OSError: The file cannot be written.
        """
        with self._changed:
            recorder = self._recorder()
            # Modules that were met since the last time get their names.
            recorder.resolve([])
            path = recorder.recording_path()
            if path is None:
                raise StateError("the native recorder is not recording in this process")
            clone(path, target)

    def freeze(self) -> None:
        """Keep what a ring has at this moment, for all sessions; see `Recorder.freeze`.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        with self._changed:
            self._recorder().freeze()

    def thaw(self) -> None:
        """Let a ring overwrite its oldest records again, after `freeze`.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        with self._changed:
            self._recorder().thaw()

    def _recorder(self) -> Recorder:
        """The recorder, while any session records."""
        active = self._active()
        if not active:
            raise StateError("the native recorder is not recording in this process")
        return active[0].recorder

    def forget(self) -> None:
        """In the child of a fork: the recording is the parent's."""
        self.__init__()  # type: ignore[misc]

    def _begin(self, one: Subscription, file: NewFile) -> str:
        """Begin the recording with its first session."""
        self.recordings += 1
        self._subscriptions, self._sessions, self._what = [one], 0, one.what
        self._new_file, self._file, self._was_widened = file, None, False
        self._parts, self._freed_to_tick = weakref.WeakSet(), 0
        try:
            return one.recorder.start(
                file.path(),
                one.what,
                file.ring_bytes,
                keep_since_ns=file.keep_since_ns,
                samples_per_second=SAMPLES_PER_SECOND if Recorded.SAMPLES in one.what else 0,
            )
        except Exception:
            # An interrupt may have come after the start: then it can still be stopped.
            self._subscriptions = []
            raise

    def _share(self) -> None:
        """Prepare a recording of one session for another one."""
        first = self._subscriptions[0]
        path = first.recorder.recording_path()
        if path is None or self._new_file is None:
            raise StateError("the native recorder is not recording in this process")
        self._file = StreamFile(path, belongs_to_user=self._new_file.belongs_to_user)
        first.note_window()

    def _free(self) -> None:
        """Free what no session needs: sessions that overlap without end never end their recording."""
        begin_ticks = [one.begin_tick for one in self._subscriptions]
        needed = min([*begin_ticks, *(part.begin_tick for part in self._parts)])
        if needed > self._freed_to_tick:
            self._freed_to_tick = needed
            self._subscriptions[0].recorder.free_before(needed)
        # Their numbers rise as they begin; the metadata of those that ended is needed until they are read.
        numbers = [one.number for one in self._subscriptions]
        self._subscriptions[0].recorder.forget_sessions_before(
            min([*numbers, *(part.session for part in self._parts)])
        )

    def _active(self) -> list[Subscription]:
        """The sessions that record."""
        return list(filter(lambda one: one.stopped_by is None, self._subscriptions))

    def _wait_for_the_end(self) -> None:
        """Wait until a recording that nobody needs any more is closed.

        Raises:
            StateError: This thread is closing it, or it takes too long.
        """
        until = time.monotonic() + _PATIENCE_S
        while self._subscriptions and not self._active():
            own = threading.get_ident() in {one.stopped_by for one in self._subscriptions}
            if own or time.monotonic() > until:
                raise StateError(
                    "another Kinetoscope session of this process is just being stopped: start this one afterwards."
                )
            self._changed.wait(1.0)

    def _change(self, resuming: Subscription | None = None) -> str:
        """Let the recorder record what all sessions need, and pause if all do; one may be about to end its pause.

        Returns:
            Which Python calls cannot be recorded, and why; empty if all can.
        """
        what, recording = Recorded(0), False
        for one in self._active():
            records = one is resuming or not one.is_paused
            recording |= records
            # Memory is recorded in pauses, too: what is freed there was allocated before. Calls are what costs most.
            what |= one.what if records else one.what & ~_CALLS
        recorder = self._subscriptions[0].recorder
        missing = ""
        if not recording:
            # It still knows which calls were wanted.
            recorder.pause()
            return missing
        if what != self._what:
            missing = recorder.change(what, SAMPLES_PER_SECOND)
            self._was_widened |= bool(what & ~self._what)
            self._what = what
        return recorder.resume() or missing


STREAM = Stream()
os.register_at_fork(after_in_child=STREAM.forget)
