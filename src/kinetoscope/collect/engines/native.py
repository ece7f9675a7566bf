"""The native engine: our own recorder as an `Engine`."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import RecorderError, StateError
from kinetoscope._runtime import live_objects
from kinetoscope.collect.process.machine import described_run
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.recorder.library import Recorded, Recorder, load_recorder, replace_recorder
from kinetoscope.collect.recorder.selftest import FEATURES, check_calls, check_recorder
from kinetoscope.collect.recorder.stream import STREAM, NewFile, StreamPart, Subscription
from kinetoscope.collect.request.options import (
    EngineKind,
    EngineStatus,
    Recording,
    RecordingRequest,
)
from kinetoscope.collect.request.torch_settings import GARBAGE_COLLECTION_SETTING
from kinetoscope.collect.sources.garbage_collections import GARBAGE_COLLECTIONS
from kinetoscope.model.losses import TOLD_AT_STOP
from kinetoscope.model.pauses import TOGGLES
from kinetoscope.storage.live_recording import is_alive, started_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.profiler import ProfilerActivity

    from kinetoscope.collect.sources.storages import StorageWatch
    from kinetoscope.storage.appended_rows import AppendedRows, RowColumns
    from kinetoscope.trace import Trace


_COPY_BYTES = 1 << 20
_LIVE = "live.recording"
# The folders of `_temporary_path`, with the process; for how long those of killed sessions stay.
_LEFT_BEHIND = re.compile(r"kinetoscope-(\d+)-[a-z0-9_]{8}")
_LEFT_BEHIND_S = 14 * 86400.0
# If the self-test of one of these fails, the engine is not available. Without the others a recording only has less data.
_NEEDED = frozenset({"operators", "nesting", "backward"})

_status: EngineStatus | None = None
_calls_work = False
_status_lock = threading.Lock()


def native_engine_status(progress: Callable[[str], None] | None = None) -> EngineStatus:
    """Check whether the native engine is available on this machine, once per process.

    Loads the recorder, compiling it if no prebuilt one matches this torch, and runs its self-test.

    Args:
        progress: Called with one line when a compilation begins; by default the line goes to stderr.
    """
    global _status
    with _status_lock:
        if _status is None:
            _status = _find_status(progress or say)
        return _status


def say(line: str) -> None:
    """Report progress to the user."""
    print(f"kinetoscope: {line}", file=sys.stderr, flush=True)


def _find_status(progress: Callable[[str], None]) -> EngineStatus:
    try:
        recorder = load_recorder(progress)
    except RecorderError as error:
        return EngineStatus(False, str(error), {})
    results = check_recorder(recorder)
    if any(results[feature] for feature in FEATURES) and (other := replace_recorder(recorder, progress)):
        recorder, results = other, check_recorder(other)
    details: dict[str, Any] = {"library": str(recorder.path), "taken": recorder.taken}
    details.update({f"self-test: {feature}": results[feature] or "ok" for feature in FEATURES})
    failed = [feature for feature in FEATURES if results[feature]]
    if unusable := [feature for feature in failed if feature in _NEEDED]:
        return EngineStatus(False, f"the recorder's self-test failed: {results[unusable[0]]}", details)
    if failed:
        return EngineStatus(
            True, f"the recorder works, without {', '.join(failed)} (self-test failed)", details
        )
    return EngineStatus(True, "the recorder fits this torch and passed its self-test", details)


def calls_problem() -> str:
    """Return why Python calls and module calls cannot be recorded here; empty if they can, which is checked until it is so."""
    global _calls_work
    with _status_lock:
        problem = "" if _calls_work else check_calls(load_recorder())
        _calls_work = not problem
        return problem


class NativeEngine:
    """Records with the native recorder: the operators of all threads, with stacks and modules."""

    name = "native"
    kind: EngineKind = "native"
    # Several sessions can record at the same time.
    joins_others = True

    def __init__(self) -> None:
        """Start unprepared; the recorder is loaded by `prepare`."""
        self._request: RecordingRequest | None = None
        self._calls_missing = ""
        self._subscription: Subscription | None = None
        self._path: Path | None = None
        self._belongs_to_user = False
        self._process = 0
        self._off: frozenset[ProfilerActivity] = frozenset()
        self._watch: StorageWatch | None = None
        self._remove: weakref.finalize[..., NativeEngine] | None = None
        self._opened: _OpenFile | None = None

    def prepare(self, request: RecordingRequest) -> None:
        """Load the recorder, and check that it can record what was requested.

        Raises:
            RecorderError: The recorder is not available, or cannot record what was requested.
        """
        status = native_engine_status()
        if not status.available:
            raise RecorderError(f"the native engine is not available: {status.reason}")
        options = request.options
        if options.needs_shapes and status.details["self-test: shapes"] != "ok":
            raise RecorderError(
                f"input shapes cannot be recorded here: {status.details['self-test: shapes']}. Use engine='kineto'."
            )
        for name, part in (("with_stack", "stacks"), ("with_modules", "modules")):
            if getattr(options, name) and (problem := status.details[f"self-test: {part}"]) != "ok":
                warn_user(f"{name}: {part} are not recorded here: {problem}. Use engine='kineto'.")
        self._calls_missing = calls_problem() if options.python_calls or options.module_spans else ""
        if self._calls_missing:
            warn_user(f"Python calls and module calls are not recorded: {self._calls_missing}.")
            without = dataclasses.replace(options, python_calls=False, module_spans=False)
            request = dataclasses.replace(request, options=without)
        self._request = request

    def start(self) -> None:
        """Start recording, in a new file or in that of a recording that other sessions have started.

        Raises:
            StateError: `prepare` was not called, or a recording is in progress.
            RecorderError: The recording's file cannot be created.
        """
        request = self._request
        if request is None:
            raise StateError("the native engine was not prepared: call prepare() before start()")
        recorder = load_recorder()
        subscription = Subscription(recorder, _recorded_flags(request), _deep_flags(request))
        self._belongs_to_user, self._path, self._opened = request.path is not None, request.path, None
        # Set before the start: after an interrupt right after it, stop() must find the recording.
        self._process, self._subscription = os.getpid(), subscription
        self._off = frozenset()
        storages = self._watch_storages(subscription) if request.options.profile_memory else []
        # At the start, so that the recording of a killed process has it, too.
        info = {**described_run("native"), **request.info}
        file = NewFile(self._new_path, self._belongs_to_user, request.options.ring_bytes, _parent_began_ns())
        missing_calls = STREAM.start(subscription, file)
        unrecorded_calls = self._calls_missing or missing_calls
        if subscription.number == 0:
            path = self._note_actual_path(recorder)
            # After a change of user, as by `os.setuid`, the process might no longer be allowed to open the file.
            with contextlib.suppress(OSError):
                self._opened = _OpenFile(path)
        if unrecorded_calls:
            info["calls_missing"] = json.dumps(unrecorded_calls)
        subscription.add_info(info)
        _append_storages(subscription, storages)
        if GARBAGE_COLLECTION_SETTING in info:
            GARBAGE_COLLECTIONS.open(self)
        if missing_calls:
            warn_user(f"not all Python calls or module calls are recorded: {missing_calls}.")

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Pause or resume recording; the pause is written to the recording at once, in case the process is killed.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        subscription = self._subscription
        if subscription is None:
            raise StateError("the native engine is not recording: there is nothing to switch off or on")
        if subscription.switches_steps:
            STREAM.follow_switch(subscription)
            self._off = activities if subscription.is_paused else frozenset()
        switched = activities & self._off if enable else activities - self._off
        if not switched:
            return
        if enable:
            if missing_calls := STREAM.resume(subscription):
                warn_user(f"not all Python calls or module calls are recorded: {missing_calls}.")
            self._off -= switched
        else:
            STREAM.pause(subscription)
            self._off |= switched
        names = sorted(activity.name for activity in switched)
        subscription.append(TOGGLES, {"activity": names, "enabled": [enable] * len(names)})

    def record_deep(self, deep: bool) -> int:
        """Record what deep steps have besides from now on, or no longer, without effect in a fork, or without `deep_steps`; return how many operators have been recorded so."""
        if self._subscription is None or self._process != os.getpid():
            return 0
        return STREAM.record_deep(self._subscription, deep)

    def switch_steps(self) -> int | None:
        """Let recording be paused and resumed from step to step without `toggle`; see `Stream.switch_steps`."""
        subscription = self._subscription
        return None if subscription is None else STREAM.switch_steps(subscription)

    def add_info(self, info: Mapping[str, str]) -> None:
        """Write metadata into the current recording, as JSON texts by key; does nothing if the engine is not recording."""
        if self._subscription is not None and self._process == os.getpid():
            self._subscription.add_info(info)

    def append_rows(self, table: str, columns: RowColumns, *, buffered: bool = False) -> bool:
        """Append rows to a table of the current recording, see `Recorder.append`; False if the engine is not recording."""
        if self._subscription is None or self._process != os.getpid():
            return False
        return self._subscription.append(table, columns, buffered=buffered)

    def own_steps(self, owns: bool) -> None:
        """Whether step marks that this thread opens from now on belong to this session only, of those that share the recording."""
        subscription = self._subscription
        if subscription is not None:
            subscription.recorder.own_steps(subscription.number if owns else None)

    def stop(self) -> Recording:
        """Stop recording; the file is read on first use.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        subscription, watch = self._subscription, self._watch
        self._watch = None
        GARBAGE_COLLECTIONS.close(self)
        if watch is not None:
            watch.cancel()
        if subscription is None:
            raise StateError("the native engine is not recording: call start() first")
        if self._process != os.getpid():
            raise StateError(
                f"this recording belongs to process {self._process}, not to its child {os.getpid()}"
            )
        recorder = subscription.recorder
        stopped = STREAM.stop(subscription)
        # Read again, because an interrupt right after the start may have kept `_path` from being set.
        path = recorder.recording_path() if subscription.number == 0 else self._path
        try:
            if stopped.file_lost:
                warn_user(
                    f"another program truncated {path} during the recording, which is lost: write "
                    "recordings to a folder that nothing else uses."
                )
            if stopped.dropped:
                warn_user(
                    f"{stopped.dropped:,} records are missing, because the disk of {path} had no room for them: record to a larger "
                    "one. The trace has the rest, and its table `losses` counts what is missing."
                )
            if stopped.unnamed_modules:
                from torch.nn import Module

                # Also of modules that only other threads have called.
                recorder.resolve(live_objects((Module,))[0])
            names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
            late_info = {"python_threads": json.dumps(names)}
            counts = zip(TOLD_AT_STOP, (stopped.faults, stopped.call_threads_lost), strict=True)
            late_info |= {name: json.dumps(count) for name, count in counts if count}
            if watch is not None:
                _append_storages(subscription, watch.stop())
            subscription.add_info(late_info)
        finally:
            is_ring = STREAM.is_ring
            shared_part = STREAM.close(subscription)
        self._subscription = None
        if self._remove is not None:
            self._remove.detach()
        if shared_part is not None or path is None:
            return self._part_of(shared_part, path, at_once=is_ring)
        readable = self._readable(recorder, path)
        return NativeRecording(readable, belongs_to_user=self._belongs_to_user and readable == path)

    def _part_of(self, shared: StreamPart | None, path: Path | None, *, at_once: bool) -> Recording:
        """The session's part of a shared recording; `at_once` cuts it out now, else that happens when it is read."""
        if shared is None:
            raise StateError("the native engine is not recording: call start() first")
        self._opened = None
        belongs_to_user = self._belongs_to_user and path is not None
        if not belongs_to_user and not at_once:
            return NativeRecording(shared, belongs_to_user=False)
        target = path if belongs_to_user and path else _temporary_path()
        shared.cut(target)
        return NativeRecording(target, belongs_to_user=belongs_to_user)

    def _new_path(self) -> Path:
        if self._path is None:
            self._path = _temporary_path()
            # For recordings that are never stopped; `NativeRecording` removes the files of the others.
            self._remove = weakref.finalize(self, _remove_own, self._path, self._process)
        return self._path

    def _readable(self, recorder: Recorder, path: Path) -> Path:
        """Return the file to read: a copy if the process has changed its user and may not open its own recording."""
        opened, self._opened = self._opened, None
        if opened is None or not opened.is_ours() or not _is_refused(path):
            return path
        changed = f"the process changed its user from {opened.owner} to {os.geteuid()} during the recording"
        recorder.settle()
        try:
            copy = _temporary_path()
            with open(opened.number, "rb", closefd=False) as source, copy.open("xb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
            left = f"{path} is complete and remains"
            if not self._belongs_to_user:
                os.ftruncate(opened.number, 0)
                left = f"{path} is empty now and cannot be removed"
        except OSError as error:
            warn_user(
                f"{changed}, and may not read it now: {error}. {path} is complete: read it as the former user."
            )
            return path
        warn_user(
            f"{changed}: it is read from a copy, and {left}. Recordings are better started after the change."
        )
        return copy

    def _note_actual_path(self, recorder: Recorder) -> Path:
        """Store the actual path of the recording, and warn if it is not the requested one."""
        requested = self._new_path()
        path = self._path = recorder.recording_path() or requested
        if path != requested:
            warn_user(
                f"another process records into {requested}, so this recording is written to {path}. Give each process "
                "its own path."
            )
        return path

    def _watch_storages(self, subscription: Subscription) -> list[dict[str, Any]]:
        from kinetoscope.collect.sources.storages import StorageWatch, living_in_process

        recorder = subscription.recorder
        if self._watch is not None:
            self._watch.cancel()
        self._watch = StorageWatch(
            living_in_process(recorder),
            recorder.watch_tensors,
            lambda: [module for _, module in recorder.modules()],
            functools.partial(_append_storages, subscription),
        )
        return self._watch.start()


class _OpenFile:
    """A file that is kept open for reading and writing, and closed with this object."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._file = os.fstat(self.number)
        self.owner = self._file.st_uid

    def is_ours(self) -> bool:
        """Whether the file descriptor still belongs to the file: programs that become daemons close and reuse all descriptors."""
        try:
            return os.path.samestat(os.fstat(self.number), self._file)
        except OSError:
            return False

    def __del__(self) -> None:
        if self.is_ours():
            os.close(self.number)


class NativeRecording:
    """A finished recording: a file, or a session's part of one that it shared with others, which is cut out when it is read.

    A temporary file is removed once it was read or discarded.

    Attributes:
        rows: Rows that sources appended and `trace()` does not contain; set by `trace()`.
    """

    def __init__(self, source: Path | StreamPart, *, belongs_to_user: bool) -> None:
        """Wrap a file or a part, without reading it; a file that belongs to the user is never removed."""
        self._trace: Trace | None = None
        self.rows: AppendedRows | None = None
        self._lock = threading.Lock()
        self._part = None if isinstance(source, Path) else source
        self._path: Path | None = None
        self._file: tuple[int, int] | None = None
        self._remove: weakref.finalize[..., NativeRecording] | None = None
        if isinstance(source, Path):
            self._hold(source, belongs_to_user=belongs_to_user)

    def _hold(self, path: Path, *, belongs_to_user: bool) -> None:
        self._path, self._file = path, _identity(path)
        if not belongs_to_user:
            self._remove = weakref.finalize(self, _remove_own, path, os.getpid())

    def trace(self) -> Trace:
        """The recording as a trace, read on the first call.

        Raises:
            StateError: The recording was discarded, removed or replaced by a later one, before it was read.
            FormatError: Another program damaged the file.
            OSError: The part of a shared recording cannot be written to a temporary file.
        """
        from kinetoscope.storage import recording
        from kinetoscope.trace import Trace

        with self._lock:
            if self._trace is None:
                if (part := self._part) is not None:
                    path = _temporary_path()
                    part.cut(path)
                    self._hold(path, belongs_to_user=False)
                    self._part = None
                if self._path is None or (self._remove is not None and not self._remove.alive):
                    raise StateError("this recording was discarded before it was read")
                if _identity(self._path) not in (self._file, None):
                    raise StateError(
                        f"{self._path}: another recording replaced this one before it was read. Read `prof.trace` "
                        "before the path is used again, or use another path."
                    )
                try:
                    data, self.rows = recording.read_recording(self._path)
                    self._trace = Trace.of(data)
                except FileNotFoundError as error:
                    # Another thread may have ended the next cycle meanwhile, which discards this one.
                    raise StateError(
                        f"{self._path}: this recording was discarded or removed before it was read"
                    ) from error
                if self._remove is not None:
                    self._remove()
            return self._trace

    def discard(self) -> None:
        """Remove the file, unless the user chose its path; a shared recording is freed with its last part."""
        self._part = None
        if self._remove is not None:
            self._remove()


def _append_storages(subscription: Subscription, parts: Sequence[dict[str, Any]]) -> None:
    """Append parts of the table `storages` one by one, because together they may exceed the size that the recorder accepts."""
    for part in parts:
        subscription.append("storages", {"part": [part]})


def _deep_flags(request: RecordingRequest) -> Recorded:
    if not request.options.deep_steps or native_engine_status().details["self-test: shapes"] != "ok":
        return Recorded(0)
    return Recorded.SHAPES | Recorded.TENSOR_VERSIONS


def _recorded_flags(request: RecordingRequest) -> Recorded:
    options, details = request.options, native_engine_status().details
    has_modules = options.needs_modules and details["self-test: modules"] == "ok"
    requested = {
        Recorded.STACKS: options.needs_stacks and details["self-test: stacks"] == "ok",
        Recorded.MODULES: has_modules,
        Recorded.SHAPES: options.needs_shapes,
        Recorded.MEMORY: options.profile_memory,
        Recorded.TENSOR_VERSIONS: options.tensor_versions,
        Recorded.FUNCTION_IDS: request.record_function_ids,
        Recorded.CALLS: options.python_calls,
        Recorded.MODULE_SPANS: options.module_spans and has_modules,
        Recorded.SAMPLES: options.samples,
    }
    return Recorded(sum(flag for flag, is_on in requested.items() if is_on))


def _temporary_path() -> Path:
    remove_left_behind(Path(tempfile.gettempdir()), time.time())
    return Path(tempfile.mkdtemp(prefix=f"kinetoscope-{os.getpid()}-")) / _LIVE


def remove_left_behind(folder: Path, now_s: float) -> None:
    """Remove from the folder of temporary files what sessions of this user left that were killed more than two weeks ago.

    Args:
        folder: The folder.
        now_s: The time in seconds since 1970.
    """
    for leftover in folder.glob("kinetoscope-*"):
        match = _LEFT_BEHIND.fullmatch(leftover.name)
        if match is None or is_alive(int(match[1])):
            continue
        path = leftover / _LIVE
        # Another process may do the same.
        with contextlib.suppress(OSError):
            status = (path if path.exists() else leftover).lstat()
            if status.st_uid == os.geteuid() and now_s - status.st_mtime > _LEFT_BEHIND_S:
                path.unlink(missing_ok=True)
                leftover.rmdir()


def _remove_own(path: Path, process: int) -> None:
    # A forked child inherits the finalizer, but does not own the file.
    if os.getpid() == process:
        # After a change of user the process may not remove the file or folder, of which stop() has warned.
        with contextlib.suppress(PermissionError):
            path.unlink(missing_ok=True)
        try:
            path.parent.rmdir()
        except OSError as error:
            # The folder may be removed already, or contain other files. An OSError that a signal handler raised has no errno.
            if error.errno is None:
                raise


def _is_refused(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _parent_began_ns() -> int:
    """Start of the parent process, in nanoseconds since 1970, in children of `multiprocessing`; 0 in other processes.

    Recording files that are newer belong to other processes of this run, and must not be replaced.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return 0
    for process in (parent.pid, os.getpid()):
        if process is not None and (began_ns := started_ns(process)) is not None:
            return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + began_ns
    return 0


def _stop_at_exit() -> None:
    """Stop the recorder at the exit of Python; its recording can still be read."""
    if _status is None or not _status.available:
        return
    GARBAGE_COLLECTIONS.forget_sessions()
    recorder = load_recorder()
    if recorder.is_recording:
        recorder.stop()
    recorder.settle()


atexit.register(_stop_at_exit)
# A thread of the parent may hold the lock for long.
os.register_at_fork(after_in_child=_status_lock._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001  (Python's own)
