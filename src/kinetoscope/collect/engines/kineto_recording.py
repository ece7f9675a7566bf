"""A recording of torch's collector: becomes a trace on demand, and provides `prof.profiler.kineto_results`."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gzip
import json
import os
import re
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.profiler
from torch.profiler import ProfilerActivity

import kinetoscope._core as _core
from kinetoscope._errors import KinetoscopeError, RecorderError, StateError
from kinetoscope.collect.engines.cuspy import Cuspy
from kinetoscope.collect.process.machine import described_run
from kinetoscope.collect.process.own_code import PACKAGE, Code, whose_code
from kinetoscope.collect.request.activities import name_of
from kinetoscope.collect.request.options import RecordingRequest
from kinetoscope.collect.request.torch_settings import EVENT_METADATA, changed_settings
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.losses import Loss, counted_losses, loss_columns, losses_of, paused_losses
from kinetoscope.model.nesting import nest
from kinetoscope.model.pauses import Pauses
from kinetoscope.model.run_info import RunInfo
from kinetoscope.model.schema import (
    COLLECTED_DEVICES,
    EVENT_METADATA_KEY,
    FLAG_ASYNC,
    OTHER_KEYWORDS,
    SpanKind,
)
from kinetoscope.model.strings import StringTable
from kinetoscope.storage.atomic_write import file_path
from kinetoscope.trace import Trace

# The largest pipe buffer that Linux allows by default; the larger it is, the less the two threads wait for each other.
_PIPE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_POLL_S = 0.0005
_INSTANT_WITH_DURATION = b'"ph":"X","cat":"cpu_instant_event"'
_INSTANT = b'"ph":"i","cat":"cpu_instant_event"'


def read_text(results: Any, *, may_start_threads: bool = True, cuspy: Cuspy | None = None) -> dict[str, Any]:
    """Let torch write its recording, which it can do only once, and parse it.

    torch exports a recording as a JSON file, does not report failures, and holds the GIL meanwhile. So we pass it a named pipe, from
    which our reader parses on a thread that does not need the GIL: parsing needs no disk space and no additional time. If a pipe
    cannot be used, torch writes to a temporary file.

    Args:
        results: torch's `_ProfilerResult`.
        may_start_threads: Whether threads can be started.
        cuspy: What Cuspy recorded of devices.

    Returns:
        The result of `_core.ChromeReader.finish`.

    Raises:
        RecorderError: torch could not write its text, or it cannot be parsed.
    """
    from kinetoscope.formats.chrome.read import new_reader

    reader = new_reader()
    with _folder() as folder:
        path = folder / "trace.json"
        if cuspy is not None or not (may_start_threads and _follow(results, reader, path)):
            results.save(str(path))
            path = path if cuspy is None else cuspy.joined_with(path)
            opened = gzip.open if path.suffix == ".gz" else open
            # If torch could not write, the file is missing or empty, of which the reader's `finish` raises an error.
            with contextlib.suppress(FileNotFoundError), opened(path, "rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    reader.feed(block)
    try:
        finished: dict[str, Any] = reader.finish()
        return finished
    except ValueError as error:
        raise RecorderError(
            f"torch's collector could not write what it recorded ({error}); torch may have printed more to stderr."
        ) from error


def read_objects(results: Any) -> dict[str, Any] | None:
    """Parse the text that torch's Python code writes from event objects: slow, but names of ranges are unchanged.

    Returns:
        As `read_text`; None if this release of torch cannot write it, or if that fails.
    """
    try:
        from torch.profiler._chrome_trace_export import export_chrome_trace
    except ImportError:
        return None
    from kinetoscope.formats.chrome.read import new_reader

    reader = new_reader()
    with _folder() as folder:
        path = folder / "objects.json"
        try:
            export_chrome_trace(results, str(path), None)
            with path.open("rb") as file:
                for line in file:
                    # This writer writes instant events as if they had a duration.
                    reader.feed(line.replace(_INSTANT_WITH_DURATION, _INSTANT))
            finished: dict[str, Any] = reader.finish()
            return finished
        except Exception:  # noqa: BLE001  (whatever goes wrong in torch: there is the other text)
            return None


def kineto_status() -> str:
    """Describe how recordings of torch's collector are read on this machine, for `kinetoscope doctor`.

    Raises:
        RecorderError: No folder is writable.
    """
    from kinetoscope.collect.request.torch_settings import has_setting

    if not torch.profiler.kineto_available():
        return "not built into this torch: engine='kineto' records operators only"
    with _folder() as folder:
        objects = "torch makes its event objects too"
        if has_setting("trace_only"):
            objects = "without torch's event objects"
        return f"read while torch writes it, in {folder.parent}; {objects}"


def _follow(results: Any, reader: Any, path: Path) -> bool:
    """Parse from a named pipe while torch writes into it; False, before torch writes anything, if that is not possible."""
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        os.mkfifo(unfinished, 0o600)
        # Some releases of torch write to a temporary name and rename it. Here both names are links to the same pipe.
        os.link(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        return False
    text = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finished, announce = os.pipe()
    parsed: Future[None] = Future()

    def parse() -> None:
        try:
            parsed.set_result(reader.follow(text, finished))
        except Exception as error:  # noqa: BLE001  (raised below)
            parsed.set_exception(error)

    parser = threading.Thread(target=parse, name="kinetoscope follows kineto", daemon=True)
    try:
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(text, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        with contextlib.suppress(RuntimeError):
            parser.start()
        # Until the parser has released the GIL, which torch holds until its last byte is read.
        while not reader.following and parser.is_alive():
            time.sleep(_POLL_S)
        if parsed.done() or not parser.is_alive():
            # No thread could be started, or it cannot read.
            path.unlink()
            unfinished.unlink()
            return False
        try:
            results.save(str(path))
        finally:
            os.write(announce, b"\0")
            parser.join()
    finally:
        for descriptor in (text, finished, announce):
            os.close(descriptor)
    if (failure := parsed.exception()) is not None:
        raise RecorderError(f"what torch's collector recorded could not be read ({failure}).") from failure
    return True


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="kinetoscope-", ignore_cleanup_errors=True)
    except OSError as error:
        raise RecorderError(
            "what torch's collector recorded cannot be read: it writes to a file, and no folder is writable "
            f"({error}). Set TMPDIR to a writable folder."
        ) from error
    with folder as name:
        yield Path(name)


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
        cuspy: What Cuspy recorded of devices.
    """

    results: Any | None
    request: RecordingRequest
    pauses: Pauses
    window_ns: int = 0
    has_objects: bool = False
    losses: Sequence[Loss] = ()
    taken_by: str = "recording_taken"
    storages: Sequence[dict[str, Any]] = ()
    cuspy: Cuspy | None = None
    _process: int = field(default_factory=os.getpid, init=False)
    # On a thread of its own, so that an interrupt reaches only the main thread, which waits.
    _reading: threading.Thread | None = field(default=None, init=False)
    _outcome: Future[Trace] = field(default_factory=Future, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _process_of_lock: int = field(default_factory=os.getpid, init=False)

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
        # In a fork a thread of the parent may hold the lock, and is not there to release it.
        if self._process_of_lock != os.getpid():
            self._lock, self._process_of_lock = threading.Lock(), os.getpid()
        with self._lock:
            if self._reading is None:
                if self.results is None and not self._taken:
                    raise StateError("this recording was discarded: there is no trace of it.")
                self._reading = threading.Thread(
                    target=self._note_trace, args=(self.results, True), name="kinetoscope", daemon=True
                )
                try:
                    self._reading.start()
                except RuntimeError:
                    # No threads can be started, as when the interpreter is exiting.
                    self._note_trace(self.results, may_start_threads=False)
        if self._reading.is_alive():
            self._reading.join()
        if not self._outcome.done():
            raise StateError("the parent process is reading this recording: read it there.")
        return self._outcome.result()

    def api(self) -> ResultsApi | None:
        """Return the object for `prof.profiler.kineto_results`; None if there are no results."""
        if self.results is None:
            return None
        return ResultsApi(self.trace, self.results if self.has_objects else None)

    def discard(self) -> None:
        """Drop torch's results; a trace that is already built stays available."""
        self.results = None
        _UNREAD.discard(self)

    def _note_trace(self, results: Any | None, may_start_threads: bool) -> None:
        try:
            self._outcome.set_result(self._build(results, may_start_threads))
        except BaseException as error:  # noqa: BLE001  (raised again by `trace`)
            self._outcome.set_exception(error)

    def _build(self, results: Any | None, may_start_threads: bool) -> Trace:
        """Build the trace from torch's text and our metadata, with losses for everything that is missing."""
        _UNREAD.discard(self)
        from kinetoscope.model.steps import one_cycle
        from kinetoscope.storage.recording import add_storages

        texts = {**self.request.info, **described_run("kineto")}
        info: dict[str, Any] = {key: json.loads(text) for key, text in texts.items()}
        if pauses := self.pauses.as_list():
            info["pauses"] = pauses
        info["process"] = self._process
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
            else:
                tables, strings, stated = self._columns(read)
                info = {**stated, **info}
                lost += _losses(read, tables)
            start_ns = info.setdefault("start_realtime_ns", int(results.trace_start_ns()))
            if self.has_objects and tables:
                strings = restore_quotes(tables, strings, results, start_ns)
                if self.request.options.needs_shapes:
                    note_keywords(tables, strings, results, start_ns)
                if self._setting(EVENT_METADATA):
                    note_event_metadata(tables, results.events(), start_ns)
            strings, unseen = add_storages(tables, self.storages, strings, start_ns)
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
        text = read_text(results, may_start_threads=may_start_threads, cuspy=self.cuspy)
        if self.has_objects and UNWRITABLE in text["strings"]:
            text = read_objects(results) or text
        leave_out_unselected(
            text,
            self.request.activity_filters.get(ProfilerActivity.CPU),
            self.pauses.windows_ns("CPU"),
        )
        leave_out_own_calls(text)
        from kinetoscope.formats.chrome.read import made_trace

        return Trace.of(made_trace(text))

    def _columns(self, read: Trace) -> tuple[Tables, list[str], dict[str, Any]]:
        """Correct the columns of the parsed text; return them with the string table and torch's metadata."""
        tables = {name: columns for name, columns in read.recorded_columns().items() if name != "steps"}
        strings = read.strings
        if self._setting("capture_overload_names"):
            strings = split_overloads(tables, strings)
        number_threads(tables)
        spans = tables["spans"]
        # Ranges of collective backends end on other threads, which torch's text does not say.
        transfers = (spans["kind"] == SpanKind.COLLECTIVE) * np.uint8(FLAG_ASYNC)
        spans["flags"] = spans["flags"] | transfers
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


# Metadata that comes from torch's text.
_FROM_TORCH = frozenset(
    {"start_realtime_ns", "stop_ns", "deviceProperties", "devices", "distributedInfo", "record_shapes"}
)


def _losses(read: Trace, tables: Tables) -> list[Loss]:
    tables.pop("losses", None)
    lost = losses_of(read.columns("losses"))
    # Ranges whose names torch could not encode.
    unknown = [row for row, text in enumerate(read.strings) if text == UNWRITABLE]
    ranges = np.isin(
        read.column("spans", "kind"), (SpanKind.USER_ANNOTATION, SpanKind.PYTHON, SpanKind.MODULE)
    )
    if count := int(np.count_nonzero(ranges & np.isin(read.column("spans", "name"), unknown))):
        lost.append(Loss.of("unwritable_names", count))
    return lost


@dataclass(frozen=True)
class ResultsApi:
    """Replaces torch's `_ProfilerResult` in `prof.profiler`: torch can save one only once, and the native engine has none.

    Event objects are torch's if it made them, otherwise ours, from the trace.
    """

    _trace: Callable[[], Trace]
    _results: Any | None = None

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
        """All events as torch's raw event objects, also those that `prof.events()` leaves out."""
        if self._results is not None:
            return self._results.events()
        from kinetoscope.collect.engines.event_objects import raw_events

        return raw_events(self._trace())

    def experimental_event_tree(self) -> Any:
        """torch's tree of event objects: those that are in no other one."""
        if self._results is not None:
            return self._results.experimental_event_tree()
        from kinetoscope.collect.engines.event_objects import event_nodes

        return event_nodes(self._trace())


Tables = dict[str, dict[str, Any]]
_HOST_CATEGORIES = ("cpu_op", "user_annotation", "python_function")
# An operator's name with namespace, and after a dot what may be an overload: `aten::add.Tensor`.
_WITH_OVERLOAD = re.compile(r"(\w+::\w+)\.([\w.]+)")
# The name that torch writes if it cannot encode the actual one as JSON.
UNWRITABLE = "unknown"
_schemas = torch._C._jit_get_schemas_for_operator  # noqa: SLF001  (torch's own)
# torch's numbers of threads by native thread id, of this process, as far as they are known.
_numbers: dict[int, int] = {}
_numbers_lock = threading.Lock()


def leave_out_unselected(
    native: dict[str, Any], kinds: frozenset[str] | None, off_ns: Sequence[tuple[int, float]]
) -> None:
    """Remove unselected kinds of host spans, and those that began during a pause: torch writes all of them.

    Args:
        native: The result of `_core.ChromeReader.finish`; changed in place.
        kinds: The names of the kinds of host events to keep; None means all.
        off_ns: The pauses, in nanoseconds since 1970.
    """
    spans = native["spans"]
    unwanted = np.zeros(len(spans["thread"]), dtype=bool)
    if kinds is not None:
        rows = [
            row
            for row, category in enumerate(native["categories"])
            if category in _HOST_CATEGORIES and category.upper() not in kinds
        ]
        unwanted |= np.isin(spans["category"], rows)
    if off_ns:
        on_host = native["threads"]["on_device"][spans["thread"]] == 0
        # Compared with Python numbers, because the end of an open pause is infinite.
        start_ns = spans["start_ns"] + _base_ns(native)
        for begin_ns, end_ns in off_ns:
            unwanted |= on_host & (start_ns >= begin_ns) & (start_ns < end_ns)
    _remove(native, unwanted)


def leave_out_own_calls(native: dict[str, Any]) -> None:
    """Remove spans of Python calls that Kinetoscope makes for itself.

    torch's collector also records the calls that start and stop it, and those that a session makes between steps. Calls of the
    program's functions that are nested in them remain.

    Args:
        native: The result of `_core.ChromeReader.finish`; changed in place.
    """
    strings, spans = native["strings"], native["spans"]
    own_names = [row for row, text in enumerate(strings) if "kinetoscope/" in text and _code(text) in _OWN]
    calls = [row for row, category in enumerate(native["categories"]) if category == "python_function"]
    is_call = np.isin(spans["category"], calls)
    is_own = is_call & np.isin(spans["name"], own_names)
    if not is_own.any():
        return
    unwanted = is_own.copy()
    rows = np.flatnonzero(is_call)
    rows = rows[np.lexsort((-spans["duration_ns"][rows], spans["start_ns"][rows], spans["thread"][rows]))]
    nested = nest(*(spans[name][rows] for name in ("thread", "start_ns", "duration_ns")))
    # Only calls that are nested in one of our own are visited one by one, with whose calls are unwanted in each.
    is_inside = _core.nearest_marked(nested.parent, nested.depth, is_own[rows]) >= 0
    hidden_in: dict[int, frozenset[Code]] = {}
    for position in np.flatnonzero(is_inside).tolist():
        row, hidden = rows[position], hidden_in.get(int(nested.parent[position]), frozenset())
        code = _code(strings[spans["name"][row]])
        if code in _OWN or code in hidden:
            unwanted[row] = True
            hidden_in[position] = hidden | _OWN.get(code, frozenset())
    _remove(native, unwanted)


# Kinetoscope's code, with that of whose functions the calls in it are its own.
_OWN = {
    Code.OWN: frozenset({Code.PYTHON, Code.TORCH}),
    Code.PASSING_ON: frozenset({Code.PYTHON}),
}
# torch's name of a Python call, `re/__init__.py(163): match`; the file is relative to an entry of sys.path if it is inside one.
_CALL = re.compile(r"(?P<file>.+)\(\d+\): .*")


@functools.cache
def _code(call: str) -> Code:
    """Whose the function of a Python call is, by its name; built-in functions are Python's."""
    match = _CALL.fullmatch(call)
    if match is None or call.startswith("<"):
        return Code.PYTHON if call.startswith("<") else Code.PROGRAM
    # Python imports a module from the first entry of sys.path that contains its file.
    candidates = (Path(str(entry), match["file"]) for entry in (*sys.path, PACKAGE.parent))
    return whose_code(str(next((path for path in candidates if path.is_file()), match["file"])))


def _remove(native: dict[str, Any], unwanted: Any) -> None:
    """Remove spans, with the rows of other tables that refer to them, and renumber the rest."""
    if not unwanted.any():
        return
    spans = native["spans"]
    remaining = ~unwanted
    new_row = np.where(remaining, np.cumsum(remaining) - 1, -1)
    spans = native["spans"] = {name: values[remaining] for name, values in spans.items()}
    threads = native["threads"]
    first = threads["first_row"] = np.append(0, np.cumsum(remaining))[threads["first_row"]]
    threads["first_category"] = np.where(np.diff(first) > 0, np.append(spans["category"], -1)[first[:-1]], -1)
    for name in ("kernels", "copies"):
        if (table := native.get(name)) is not None:
            moved = new_row[table["span"]]
            native[name] = {column: values[moved >= 0] for column, values in table.items()}
            native[name]["span"] = moved[moved >= 0].astype(np.int32)


def split_overloads(tables: Tables, strings: list[str]) -> list[str]:
    """Split operator names such as `aten::add.Tensor`, as torch writes them, into name and overload.

    Args:
        tables: The columns of a trace; changed in place.
        strings: Its string table.

    Returns:
        The string table with the missing names added.
    """
    table = StringTable(list(strings))
    name_of = np.arange(len(strings), dtype=np.int32)
    overload_of = np.zeros(len(strings), dtype=np.int32)
    for row, text in enumerate(strings):
        parts = _WITH_OVERLOAD.fullmatch(text)
        if parts is not None and parts[2] in {overload.overload_name for overload in _schemas(parts[1])}:
            name_of[row], overload_of[row] = table.row(parts[1]), table.row(parts[2])
    spans = tables["spans"]
    # Only for operators: the name of a user's range may look like one with an overload.
    operators = is_operator(spans["kind"])
    spans["overload"] = np.where(operators, overload_of[spans["name"]], np.int32(0))
    spans["name"] = np.where(operators, name_of[spans["name"]], spans["name"])
    return table.texts


def number_threads(tables: Tables) -> None:
    """Set torch's own number of each host thread.

    torch's text has these numbers only for threads whose operators have backward functions. They are also known for threads that
    started or stopped a recording. All others get their native thread id as number. Within a process, a thread keeps its
    number in all recordings.

    Args:
        tables: The columns of a trace; changed in place.
    """
    threads, spans = tables["threads"], tables["spans"]
    numbers = threads["torch_tid"].copy()
    of_host = np.ones(len(numbers), dtype=bool)
    if "stream" in spans:
        of_host[spans["thread"][spans["stream"] >= 0]] = False
    with _numbers_lock:
        rows = np.flatnonzero(of_host).tolist()
        for row in rows:
            if numbers[row] > 0:
                _numbers[int(threads["os_tid"][row])] = int(numbers[row])
        for row in rows:
            os_tid = int(threads["os_tid"][row])
            numbers[row] = _numbers.setdefault(os_tid, os_tid)
    threads["torch_tid"] = numbers


def note_this_thread() -> None:
    """Remember torch's number of the calling thread, for `number_threads`."""
    current_thread_id = _torch_thread_id()
    if current_thread_id is not None:
        with _numbers_lock:
            _numbers[threading.get_native_id()] = int(current_thread_id())


def device_of(activities: Sequence[str]) -> int | None:
    """torch's number of the recorded device type; None unless there is exactly one."""
    numbers = {COLLECTED_DEVICES[name] for name in activities if name in COLLECTED_DEVICES}
    return numbers.pop() if len(numbers) == 1 else None


def note_event_metadata(tables: Tables, events: Sequence[Any], base_ns: int) -> None:
    """Add the metadata of Kineto's event objects to the arguments of their spans.

    Args:
        tables: The columns of a trace; changed in place.
        events: torch's event objects of the same recording.
        base_ns: Time 0 of the trace, in nanoseconds since 1970.
    """
    texts = {_event_key(event, base_ns): text for event in events if (text := event.metadata_json())}
    _add_arguments(tables, texts, lambda _, text: {EVENT_METADATA_KEY: str(text)})


def note_keywords(tables: Tables, strings: Sequence[str], results: Any, base_ns: int) -> None:
    """Add keyword inputs of ranges that torch's text lacks, such as lists of numbers, to the arguments of their spans.

    Args:
        tables: The columns of a trace; changed in place.
        strings: Its string table.
        results: torch's `_ProfilerResult`, with event objects.
        base_ns: Time 0 of the trace, in nanoseconds since 1970.
    """
    spans = tables["spans"]
    # Only ranges have keyword inputs. Operators, whose names have a namespace, and backward functions, which have a sequence
    # number, do not.
    is_range = np.array(["::" not in text for text in strings], dtype=bool)[spans["name"]]
    is_range &= spans["kind"] == SpanKind.OPERATOR
    if "sequence" in spans:
        is_range &= spans["sequence"] < 0
    if not is_range.any():
        return
    wanted = set(_span_keys(spans, is_range))
    inputs = {}
    for event in results.events():
        if (key := _event_key(event, base_ns)) in wanted and (keywords := event.kwinputs()):
            inputs[key] = keywords
    _add_arguments(tables, inputs, _unwritten)


def _unwritten(written: Mapping[str, Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword inputs that arguments lack, as arguments."""
    missing = {
        name: value
        for name, value in keywords.items()
        if (name not in written or written[name] != value) and _has_json(value)
    }
    return {OTHER_KEYWORDS: missing} if missing else {}


def _has_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _event_key(event: Any, base_ns: int) -> tuple[int, int]:
    """Identify the span of one of torch's event objects: by start and correlation id."""
    return int(event.start_ns()) - base_ns, int(event.correlation_id())


def _span_keys(spans: Mapping[str, Any], chosen: Any = slice(None)) -> Iterator[tuple[int, int]]:
    """The key, as of `_event_key`, of each span or of the chosen ones."""
    none = np.full(len(spans["start_ns"]), -1, dtype=np.int64)
    correlation, external_id = spans.get("correlation", none), spans.get("external_id", none)
    # torch's event objects have one number: of runtime calls and device work the correlation id, of operators the external id.
    number: Any = np.where(correlation >= 0, correlation, external_id)
    return zip(spans["start_ns"][chosen].tolist(), number[chosen].tolist(), strict=True)


def _add_arguments(
    tables: Tables, facts_of: Mapping[tuple[int, int], Any], added: Callable[[Any, Any], dict[str, Any]]
) -> None:
    """Merge into the arguments of spans what `added` makes of these and of the facts by key; `tables` is changed in place."""
    if not facts_of:
        return
    spans = tables["spans"]
    texts = StringTable(list(tables.get("arguments", {}).get("json", ())))
    column = np.array(spans.get("arguments", np.full(len(spans["start_ns"]), -1)), dtype=np.int32)
    for span, key in enumerate(_span_keys(spans)):
        if key in facts_of:
            written = json.loads(texts.texts[column[span]]) if column[span] >= 0 else {}
            if more := added(written, facts_of[key]):
                column[span] = texts.row(json.dumps(written | more))
    spans["arguments"] = column
    tables["arguments"] = {"json": texts.texts}


def restore_quotes(tables: Tables, strings: list[str], results: Any, base_ns: int) -> list[str]:
    """Restore double quotes in names of ranges from event objects: torch 2.15 writes them as single quotes.

    Args:
        tables: The columns of a trace; changed in place.
        strings: Its string table.
        results: torch's `_ProfilerResult`, with event objects.
        base_ns: Time 0 of the trace, in nanoseconds since 1970.

    Returns:
        The string table with the missing names added.
    """
    spans = tables["spans"]
    doubtful = [row for row, text in enumerate(strings) if "'" in text]
    rows = np.flatnonzero(
        (spans["kind"] == SpanKind.USER_ANNOTATION) & np.isin(spans["name"], doubtful)
    ).tolist()
    if not rows:
        return strings
    quoted = {
        (int(event.start_ns()) - base_ns, event.name().replace('"', "'")): event.name()
        for event in results.events()
        if '"' in event.name()
    }
    table = StringTable(list(strings))
    names = np.array(spans["name"], dtype=np.int32)
    for row in rows:
        name = quoted.get((int(spans["start_ns"][row]), strings[names[row]]))
        if name is not None:
            names[row] = table.row(name)
    spans["name"] = names
    return table.texts


def _base_ns(native: Mapping[str, Any]) -> int:
    return int(json.loads(dict(native["header"]).get("baseTimeNanoseconds", "0"))) + int(native["base_ns"])


@functools.cache
def _torch_thread_id() -> Any | None:
    """`at::RecordFunction::currentThreadId`, which has no Python binding; None if it is not found."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            function = ctypes.CDLL(str(library))["_ZN2at14RecordFunction15currentThreadIdEv"]
        except (OSError, AttributeError):
            continue
        function.restype, function.argtypes = ctypes.c_uint64, []
        return function
    return None
