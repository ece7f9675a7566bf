"""A recording of torch's collector: becomes a trace on demand, and provides `prof.profiler.kineto_results`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
import torch.profiler
from torch.profiler import ProfilerActivity

from kinetoscope._errors import KinetoscopeError, RecorderError, StateError
from kinetoscope.collect.engines.kineto_columns import (
    UNWRITABLE,
    Tables,
    device_of,
    leave_out_own_calls,
    leave_out_unselected,
    mark_transfers,
    note_event_metadata,
    note_keywords,
    number_threads,
    restore_quotes,
    split_overloads,
    stored_columns,
    unwritable_ranges,
)
from kinetoscope.collect.engines.kineto_text import read_objects, read_text
from kinetoscope.collect.process.machine import boot, import_folders
from kinetoscope.collect.request.activities import name_of
from kinetoscope.collect.request.options import RecordingRequest
from kinetoscope.collect.request.torch_settings import EVENT_METADATA, changed_settings
from kinetoscope.model.losses import Loss, counted_losses, loss_columns, losses_of, paused_losses
from kinetoscope.model.pauses import Pauses
from kinetoscope.model.run_info import RunInfo
from kinetoscope.storage.atomic_write import file_path
from kinetoscope.trace import Trace

Result = TypeVar("Result")


class BackgroundCall(Generic[Result]):
    """Runs a function once, on a thread of its own, so that an interrupt reaches only the main thread, which waits."""

    def __init__(self, work: Callable[[bool], Result]) -> None:
        """Store the function; its argument is whether threads can still be started."""
        self._work: Callable[[bool], Result] | None = work
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._outcome: Future[Result] = Future()

    def result(self) -> Result:
        """Return the function's result, or raise its exception; the first call starts it. Can be repeated after an interrupt.

        Raises:
            StateError: This is a forked child, where the thread does not exist.
        """
        with self._lock:
            work, self._work = self._work, None
            if work is not None:
                thread = threading.Thread(
                    target=self._run, args=(work, True), name="kinetoscope", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:
                    # No threads can be started, as when the interpreter is exiting.
                    self._run(work, may_start_threads=False)
                else:
                    self._thread = thread
        if self._thread is not None:
            self._thread.join()
        if not self._outcome.done():
            raise StateError("the parent process is reading this recording: read it there.")
        return self._outcome.result()

    def _run(self, work: Callable[[bool], Result], may_start_threads: bool) -> None:
        try:
            self._outcome.set_result(work(may_start_threads))
        except BaseException as error:  # noqa: BLE001  (raised again by `result`)
            self._outcome.set_exception(error)


# Key of the request's metadata, not of the trace: the engine stores the monotonic clock minus the system's clock here.
MONOTONIC_KEY = "monotonic_of_realtime_ns"


@dataclass(eq=False)
class KinetoRecording:
    """A recording of torch's collector, which becomes a trace on demand.

    Attributes:
        results: torch's results; None if there are none, or once they were read or discarded.
        request: What was recorded.
        pauses: When collection was paused.
        window_ns: The length of the recording.
        has_objects: Whether torch has made its event objects.
        losses: What torch did not record.
        taken_by: The code of the loss if there are no results.
        storages: Parts of the table `storages`.
    """

    results: Any | None
    request: RecordingRequest
    pauses: Pauses
    window_ns: int = 0
    has_objects: bool = False
    losses: Sequence[Loss] = ()
    taken_by: str = "recording_taken"
    storages: Sequence[dict[str, Any]] = ()
    _process: int = field(default_factory=os.getpid, init=False)
    _reading: BackgroundCall[Trace] | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        """Note whether there is anything to read."""
        self._taken = self.results is None
        if self.results is not None and self.request.activities != {ProfilerActivity.CPU}:
            _UNREAD.add(self)

    def trace(self) -> Trace:
        """Return the trace; the first call lets torch write its recording, and parses it. An interrupted call can be repeated.

        Raises:
            StateError: The recording was discarded, or the parent of this forked process is reading it.
        """
        with self._lock:
            if self._reading is None:
                if self.results is None and not self._taken:
                    raise StateError("this recording was discarded: there is no trace of it.")
                self._reading = BackgroundCall(functools.partial(self._build, self.results))
        return self._reading.result()

    def api(self) -> ResultsApi | None:
        """Return the object for `prof.profiler.kineto_results`; None if there are no results."""
        if self.results is None:
            return None
        return ResultsApi(self.trace, self.results, "" if self.has_objects else _NO_OBJECTS)

    def discard(self) -> None:
        """Drop torch's results; a trace that is already built stays available."""
        self.results = None
        _UNREAD.discard(self)

    def _build(self, results: Any | None, may_start_threads: bool) -> Trace:
        """Build the trace from torch's text and our metadata, with losses for everything that is missing."""
        _UNREAD.discard(self)
        from kinetoscope.model.steps import one_cycle
        from kinetoscope.storage.recording import add_storages

        info: dict[str, Any] = {key: json.loads(text) for key, text in self.request.info.items()}
        if pauses := self.pauses.as_list():
            info["pauses"] = pauses
        info |= {
            "engine": "kineto",
            "torch_version": str(torch.__version__),
            "host": socket.gethostname(),
            "import_folders": import_folders(),
            "process": self._process,
            "parent_process": os.getppid(),
            **{key: json.loads(text) for key, text in boot().items()},
        }
        monotonic_of_realtime_ns = info.pop(MONOTONIC_KEY, None)
        tables: Tables = {}
        strings = [""]
        lost: list[Loss] = []
        if results is None:
            lost.append(Loss.of(self.taken_by))
        else:
            try:
                read = self._read(results, may_start_threads)
            except RecorderError as error:
                lost.append(Loss.of("recording_unreadable", why=str(error)))
                info["start_realtime_ns"] = int(results.trace_start_ns())
            else:
                tables, strings, stated = self._columns(read)
                info = {**stated, **info}
                lost += _losses(read, tables)
                if "start_realtime_ns" not in info:
                    info["start_realtime_ns"] = int(results.trace_start_ns())
                if self.has_objects:
                    strings = restore_quotes(tables, strings, results, info["start_realtime_ns"])
                if self.has_objects and self.request.options.needs_shapes:
                    note_keywords(tables, strings, results, info["start_realtime_ns"])
                if self.has_objects and self._setting(EVENT_METADATA):
                    note_event_metadata(tables, results.events(), info["start_realtime_ns"])
            strings, unseen = add_storages(tables, self.storages, strings, info["start_realtime_ns"])
            lost += counted_losses(unseen)
        lost += self.losses
        lost += paused_losses(info.get("pauses"))
        run = RunInfo.of(info)
        if isinstance(monotonic_of_realtime_ns, int) and run.start_realtime_ns is not None:
            info["start_monotonic_ns"] = run.start_realtime_ns + monotonic_of_realtime_ns
        tables["losses"] = loss_columns(lost)
        tables["cycles"] = one_cycle(run.cycle_number, max(self.window_ns, run.stop_ns or 0))
        self.results = None
        return Trace.from_columns(tables, strings=strings, info=info)

    def _read(self, results: Any, may_start_threads: bool) -> Trace:
        """Parse torch's text, and remove what the session does not record."""
        text = read_text(results, may_start_threads=may_start_threads)
        if self.has_objects and UNWRITABLE in text["strings"]:
            text = read_objects(results) or text
        leave_out_unselected(
            text,
            self.request.activity_filters.get(ProfilerActivity.CPU),
            self.pauses.windows_ns("CPU"),
        )
        leave_out_own_calls(text)
        mark_transfers(text)
        from kinetoscope.formats.chrome.read import made_trace

        return Trace.of(made_trace(text))

    def _columns(self, read: Trace) -> tuple[Tables, list[str], dict[str, Any]]:
        """Correct the columns of the parsed text; return them with the string table and torch's metadata."""
        tables = stored_columns(read)
        strings = read.strings
        if self._setting("capture_overload_names"):
            strings = split_overloads(tables, strings)
        if "threads" in tables:
            number_threads(tables)
        device = device_of([name_of(activity) for activity in self.request.activities])
        if device is not None and "streams" in tables:
            tables["streams"]["device_type"][:] = device
        stated = {key: value for key, value in read.info.items() if key in _FROM_TORCH}
        return tables, strings, stated

    def _setting(self, name: str) -> bool:
        return bool(changed_settings(self.request.options.experimental_config).get(name))


# Recordings with device activity that were not read yet.
_UNREAD: weakref.WeakSet[KinetoRecording] = weakref.WeakSet()


def read_before_the_next() -> None:
    """Read all unread recordings with device activity, before torch's collector starts another one.

    torch converts the times of device activity only when it writes them, with the clock offset of the latest recording. If another
    one has started by then, the device activity of the earlier recording is shifted in time.
    """
    for recording in list(_UNREAD):
        # Whoever reads that trace gets the error again.
        with contextlib.suppress(KinetoscopeError):
            recording.trace()


_NO_OBJECTS = (
    "torch did not make because they slow down each stop: pass "
    "experimental_config=torch._C._profiler._ExperimentalConfig() to the session to get them, or"
)
# Metadata that comes from torch's text.
_FROM_TORCH = frozenset(
    {"start_realtime_ns", "stop_ns", "deviceProperties", "devices", "distributedInfo", "record_shapes"}
)


def _losses(read: Trace, tables: Tables) -> list[Loss]:
    tables.pop("losses", None)
    lost = losses_of(read.columns("losses"))
    if unknown := unwritable_ranges(read):
        lost.append(Loss.of("unwritable_names", unknown))
    return lost


@dataclass(frozen=True)
class ResultsApi:
    """Replaces torch's `_ProfilerResult` in `prof.profiler`: torch can save one only once, and the native engine has none.

    It has the methods of torch's, for the trace and torch's results, if there are any; `_why_no_objects` is empty if these have torch's
    event objects.
    """

    _trace: Callable[[], Trace]
    _results: Any | None
    _why_no_objects: str

    def trace_start_ns(self) -> int:
        """Start of the recording, in nanoseconds since 1970."""
        if self._results is not None:
            return int(self._results.trace_start_ns())
        return int(self._trace().run_info.start_realtime_ns or 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording in Chrome's format.

        Raises:
            StateError: The recording was discarded before it was read.
        """
        from kinetoscope.formats.chrome.write import write_chrome_trace

        write_chrome_trace(self._trace(), file_path(path), identity=False)

    def events(self) -> Any:
        """torch's raw event objects.

        Raises:
            StateError: torch did not make them.
        """
        return self._objects("events")()

    def experimental_event_tree(self) -> Any:
        """torch's tree of event objects.

        Raises:
            StateError: torch did not make them.
        """
        return self._objects("experimental_event_tree")()

    def _objects(self, call: str) -> Any:
        if self._why_no_objects:
            raise StateError(
                f"prof.profiler.kineto_results.{call}() needs event objects, which {self._why_no_objects} use "
                "install(engine='kineto') if you cannot change the program. prof.events() and prof.trace.table('spans'), "
                "with its column `parent`, have the same data."
            )
        return getattr(self._results, call)
