"""The Kineto engine: torch's own collector.

Collecting and stopping cost the same as in `torch.profiler`. The rest is ours: torch writes its recording as
text, and our reader makes columns of it; see `kinetoscope.collect.engines.kineto`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import fcntl
import functools
import json
import os
import re
import socket
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.profiler
from torch.autograd import profiler as collector
from torch.profiler import ProfilerActivity

from kinetoscope._errors import ArgumentError, KinetoscopeError, RecorderError, StateError
from kinetoscope.collect.process.clocks import (
    boot,
    monotonic_of_realtime_ns,
)
from kinetoscope.collect.process.import_folders import import_folders
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.recorder.library import ready_recorder
from kinetoscope.collect.request.activities import (
    ALL_THREADS_SETTING,
    GARBAGE_COLLECTION_SETTING,
    changed_settings,
    collector_takes,
    extensions,
    for_torchs_collector,
    has_setting,
    name_of,
)
from kinetoscope.collect.request.options import (
    RecordingRequest,
    StillRecordingError,
)
from kinetoscope.collect.sources.ranges import TORCH_RANGES
from kinetoscope.collect.sources.storages import Living, StorageWatch
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.losses import Loss, counted_losses, loss_columns, losses_of, paused_losses
from kinetoscope.model.pauses import Pauses
from kinetoscope.model.run_info import RunInfo
from kinetoscope.model.schema import (
    EVENT_METADATA_KEY,
    FLAG_ASYNC,
    OTHER_KEYWORDS,
    STORED,
    TRANSFER_MARKS,
    SpanKind,
)
from kinetoscope.model.strings import StringTable
from kinetoscope.trace import Trace

# Corrections from torch's JSON text to the columns of a recording.

Tables = dict[str, dict[str, Any]]

_OF_THE_CPU = ("cpu_op", "user_annotation", "python_function")
# Namespace and name of an operator as in schemas, and after a dot a possible overload.
_WITH_OVERLOAD = re.compile(r"(\w+::\w+)\.([\w.]+)")
# What torch writes in place of a name that it cannot encode.
UNWRITABLE = "unknown"
DEVICE_TYPES = {"CUDA": 1, "XPU": 12, "HPU": 15, "MTIA": 19, "PrivateUse1": 20}

# torch's thread numbers by the system's thread ids, as far as they are known in this process.
_numbers: dict[int, int] = {}
_numbers_lock = threading.Lock()


def leave_out(
    native: dict[str, Any], kinds: frozenset[str] | None, off_ns: Sequence[tuple[int, float]]
) -> None:
    """Remove what the session does not record: torch writes all operators, also unselected kinds and paused ones.

    Args:
        native: What `_core.ChromeReader.finish` returned; changed.
        kinds: The names of the kinds of host events to keep; None means all.
        off_ns: Windows in nanoseconds of the system's clock; host spans that began in them are removed.
    """
    spans = native["spans"]
    unwanted = np.zeros(len(spans["thread"]), dtype=bool)
    if kinds is not None:
        rows = [
            row
            for row, category in enumerate(native["categories"])
            if category in _OF_THE_CPU and category.upper() not in kinds
        ]
        unwanted |= np.isin(spans["category"], rows)
    if off_ns:
        on_host = native["threads"]["on_device"][spans["thread"]] == 0
        # Python's numbers, because an open end is infinite.
        start_ns = spans["start_ns"] + _base_ns(native)
        for begin_ns, end_ns in off_ns:
            unwanted |= on_host & (start_ns >= begin_ns) & (start_ns < end_ns)
    _remove(native, unwanted)


def leave_out_own_calls(native: dict[str, Any]) -> None:
    """Remove the calls of Kinetoscope's functions, and those that these make of Python's own library.

    torch's collector records the calls that start and stop it, and what a session does between its steps. Calls of the program
    and of torch that are inside them remain.

    Args:
        native: What `_core.ChromeReader.finish` returned; changed.
    """
    strings, spans = native["strings"], native["spans"]
    own_names = [place for place, text in enumerate(strings) if _PACKAGE in text and _is_own(text)]
    calls = [row for row, category in enumerate(native["categories"]) if category == "python_function"]
    is_call = np.isin(spans["category"], calls)
    own = is_call & np.isin(spans["name"], own_names)
    if not own.any():
        return
    unwanted = own.copy()
    starts_ns, ends_ns = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    for thread in np.unique(spans["thread"][own]).tolist():
        rows = np.flatnonzero(is_call & (spans["thread"] == thread))
        rows = rows[np.lexsort((rows, -ends_ns[rows], starts_ns[rows]))]
        # What is not inside an own call need not be looked at one by one.
        latest_ns = np.maximum.accumulate(np.where(own[rows], ends_ns[rows], -1))
        rows = rows[starts_ns[rows] < latest_ns]
        open_calls: list[tuple[int, bool]] = []
        for row in rows.tolist():
            while open_calls and open_calls[-1][0] <= starts_ns[row]:
                open_calls.pop()
            if not unwanted[row] and open_calls and open_calls[-1][1]:
                unwanted[row] = _is_of_python(strings[spans["name"][row]])
            open_calls.append((int(ends_ns[row]), bool(unwanted[row])))
    _remove(native, unwanted)


# The package, with the folder that contains it, and the folders of Python's library with those in them for installed packages.
_PACKAGE = "kinetoscope/"
_ROOT = Path(__file__).parents[3]
_LIBRARIES = tuple({Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})
_INSTALLED = ("site-packages/", "dist-packages/")
# A call as torch names it, with its file relative to an entry of Python's path where one fits: `re/__init__.py(163): match`.
_CALL = re.compile(r"(?P<file>.+)\(\d+\): .*")


@functools.cache
def _is_own(call: str) -> bool:
    """Whether the name of a call is that of a function of ours."""
    found = _CALL.fullmatch(call)
    if found is None:
        return False
    path = _ROOT / _PACKAGE / found["file"].rpartition(_PACKAGE)[2]
    return f"/{path}".endswith(f"/{found['file']}") and path.is_file()


@functools.cache
def _is_of_python(call: str) -> bool:
    """Whether the name of a call is that of a function of Python's own library, written in C or in Python."""
    if call.startswith("<"):
        return True
    found = _CALL.fullmatch(call)
    if found is None:
        return False
    # The first entry of the path that has such a file is the one from which Python imports it.
    candidates = (Path(str(entry), found["file"]) for entry in sys.path)
    path = next((one for one in candidates if one.is_file()), Path(found["file"]))
    within = [path.relative_to(folder).as_posix() for folder in _LIBRARIES if path.is_relative_to(folder)]
    return any(not part.startswith(_INSTALLED) for part in within)


def _remove(native: dict[str, Any], unwanted: Any) -> None:
    """Remove spans from what was read."""
    if not unwanted.any():
        return
    spans = native["spans"]
    remaining = ~unwanted
    place = np.where(remaining, np.cumsum(remaining) - 1, -1)
    spans = native["spans"] = {name: values[remaining] for name, values in spans.items()}
    native["rows"]["spans"] = len(spans["thread"])
    threads = native["threads"]
    first = threads["first_row"] = np.append(0, np.cumsum(remaining))[threads["first_row"]]
    threads["first_category"] = np.where(np.diff(first) > 0, np.append(spans["category"], -1)[first[:-1]], -1)
    for name in ("kernels", "copies"):
        if (table := native.get(name)) is not None:
            moved = place[table["span"]]
            native[name] = {column: values[moved >= 0] for column, values in table.items()}
            native[name]["span"] = moved[moved >= 0].astype(np.int32)
            native["rows"][name] = len(native[name]["span"])


def mark_transfers(native: dict[str, Any]) -> None:
    """Flag the ranges of collective backends: they end on other threads, which torch's text does not show."""
    spans, strings = native["spans"], native["strings"]
    named = np.array([text.startswith(TRANSFER_MARKS) for text in strings], dtype=bool)
    if named.any():
        ranges = (spans["kind"] == SpanKind.USER_ANNOTATION) & named[spans["name"]]
        spans["flags"][ranges & (native["threads"]["on_device"][spans["thread"]] == 0)] |= FLAG_ASYNC


def split_overloads(tables: Tables, strings: list[str]) -> list[str]:
    """Split the overload from the name of operators: torch writes both as one, `aten::add.Tensor`.

    Args:
        tables: The columns of a trace; changed.
        strings: Its string table.

    Returns:
        The string table with the missing names added.
    """
    texts = list(strings)
    places = {text: place for place, text in enumerate(texts)}
    name_of = np.arange(len(strings), dtype=np.int32)
    overload_of = np.zeros(len(strings), dtype=np.int32)
    for row, text in enumerate(strings):
        parts = _WITH_OVERLOAD.fullmatch(text)
        if parts is not None and parts[2] in _overloads(parts[1]):
            for target, part in ((name_of, parts[1]), (overload_of, parts[2])):
                place = places.setdefault(part, len(texts))
                if place == len(texts):
                    texts.append(part)
                target[row] = place
    spans = tables["spans"]
    # Ranges may have any name.
    operators = is_operator(spans["kind"])
    spans["overload"] = np.where(operators, overload_of[spans["name"]], np.int32(0))
    spans["name"] = np.where(operators, name_of[spans["name"]], spans["name"])
    return texts


def number_threads(tables: Tables) -> None:
    """Give every host thread torch's own number.

    torch writes these numbers only where a backward function names the thread of its forward. They are also known for
    threads that started or stopped a recording. The others get the system's thread id. In one process, a thread
    keeps its number in all recordings once it has one.

    Args:
        tables: The columns of a trace; changed.
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
    """Store torch's number of the calling thread."""
    ask = _torchs_number()
    if ask is not None:
        with _numbers_lock:
            _numbers[threading.get_native_id()] = int(ask())


def device_of(activities: Sequence[str]) -> int | None:
    """torch's number of the recorded device type; None if there is none or several."""
    found = {DEVICE_TYPES[name] for name in activities if name in DEVICE_TYPES}
    return found.pop() if len(found) == 1 else None


def note_event_metadata(tables: Tables, events: Sequence[Any], base_ns: int) -> None:
    """Add the metadata of Kineto's event objects to the arguments of their spans.

    Args:
        tables: The columns of a trace; changed.
        events: torch's event objects of the same recording.
        base_ns: The system's clock at time 0 of the trace.
    """
    _add_arguments(
        tables,
        {
            _event_key(event, base_ns): {EVENT_METADATA_KEY: str(event.metadata_json())}
            for event in events
            if event.metadata_json()
        },
    )


def note_keywords(tables: Tables, strings: Sequence[str], results: Any, base_ns: int) -> None:
    """Add what ranges were given by keyword and torch's text lacks, as lists of numbers, to the arguments of their spans.

    Args:
        tables: The columns of a trace; changed.
        strings: Its string table.
        results: torch's `_ProfilerResult`, with event objects.
        base_ns: The system's clock at time 0 of the trace.
    """
    spans = tables.get("spans", {})
    if "kind" not in spans:
        return
    # Operators have a schema, and backward functions a sequence number: neither has keywords.
    is_range = np.array(["::" not in text for text in strings], dtype=bool)[spans["name"]]
    is_range &= spans["kind"] == SpanKind.OPERATOR
    if "sequence" in spans:
        is_range &= spans["sequence"] < 0
    if not is_range.any():
        return
    keys = dict(zip(np.flatnonzero(is_range).tolist(), _span_keys(spans, is_range), strict=True))
    wanted = set(keys.values())
    found = {}
    for event in results.events():
        if (key := _event_key(event, base_ns)) in wanted and (given := event.kwinputs()):
            found[key] = given
    texts = tables.get("arguments", {}).get("json", ())
    others: dict[tuple[int, int], dict[str, Any]] = {}
    for span, key in keys.items():
        if key in found:
            row = int(spans["arguments"][span]) if "arguments" in spans else -1
            written = json.loads(texts[row]) if row >= 0 else {}
            missing = {
                name: value
                for name, value in found[key].items()
                if (name not in written or written[name] != value) and _has_json(value)
            }
            if missing:
                others[key] = {OTHER_KEYWORDS: missing}
    _add_arguments(tables, others)


def _has_json(value: Any) -> bool:
    """Whether a value can be written as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _event_key(event: Any, base_ns: int) -> tuple[int, int]:
    """By what one of torch's event objects is found among the spans: its start, and its number."""
    return int(event.start_ns()) - base_ns, int(event.correlation_id())


def _span_keys(spans: Mapping[str, Any], chosen: Any = slice(None)) -> Iterator[tuple[int, int]]:
    """The same of each span, or of the chosen ones."""
    none = np.full(len(spans["start_ns"]), -1, dtype=np.int64)
    correlation, external_id = spans.get("correlation", none), spans.get("external_id", none)
    # Operators are identified by their own number; runtime calls and device work by the runtime's.
    number: Any = np.where(correlation >= 0, correlation, external_id)
    return zip(spans["start_ns"][chosen].tolist(), number[chosen].tolist(), strict=True)


def _add_arguments(tables: Tables, more: Mapping[tuple[int, int], dict[str, Any]]) -> None:
    """Add to the arguments of spans, by the keys of these; `tables` is changed."""
    spans = tables.get("spans", {})
    if not more or "start_ns" not in spans:
        return
    texts = StringTable(list(tables.get("arguments", {}).get("json", ())))
    column = np.array(spans.get("arguments", np.full(len(spans["start_ns"]), -1)), dtype=np.int32)
    for span, key in enumerate(_span_keys(spans)):
        if key in more:
            given = json.loads(texts.texts[column[span]]) if column[span] >= 0 else {}
            column[span] = texts.row(json.dumps({**given, **more[key]}))
    spans["arguments"] = column
    tables["arguments"] = {"json": texts.texts}


def restore_quotes(tables: Tables, strings: list[str], results: Any, base_ns: int) -> list[str]:
    """Restore double quotes in the names of ranges: torch 2.15 writes single ones, but its event objects have them.

    Args:
        tables: The columns of a trace; changed.
        strings: Its string table.
        results: torch's `_ProfilerResult`, with event objects.
        base_ns: The system's clock at time 0 of the trace.

    Returns:
        The string table with the missing names added.
    """
    spans = tables.get("spans", {})
    doubtful = [place for place, text in enumerate(strings) if "'" in text]
    if not doubtful or "kind" not in spans:
        return strings
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


def unwritable_ranges(trace: Trace) -> int:
    """How many ranges have names that torch could not encode."""
    try:
        name = trace.strings.index(UNWRITABLE)
    except ValueError:
        return 0
    ranges = np.isin(
        trace.column("spans", "kind"), (SpanKind.USER_ANNOTATION, SpanKind.PYTHON, SpanKind.MODULE)
    )
    return int(np.count_nonzero(ranges & (trace.column("spans", "name") == name)))


def delivered(trace: Trace) -> Tables:
    """The columns that a trace was made from."""
    return {
        name: {column: trace.column(name, column) for column in trace.columns(name).given}
        for name in STORED
        if name != "steps" and trace.columns(name).given
    }


def _overloads(operator: str) -> frozenset[str]:
    """The overloads of an operator in the installed torch."""
    return frozenset(schema.overload_name for schema in torch._C._jit_get_schemas_for_operator(operator))


def _base_ns(native: Mapping[str, Any]) -> int:
    """The system's clock at time 0 of the text; torch before 2.4 counts from 1970 without a header."""
    since = next((text for key, text in native["header"] if key == "baseTimeNanoseconds"), "0")
    return int(json.loads(since)) + int(native["base_ns"])


@functools.cache
def _torchs_number() -> Any | None:
    """`at::RecordFunction::currentThreadId`, which has no Python binding; None if it is not found."""
    for library in _libraries():
        try:
            found = ctypes.CDLL(str(library))["_ZN2at14RecordFunction15currentThreadIdEv"]
        except (OSError, AttributeError):
            continue
        found.restype, found.argtypes = ctypes.c_uint64, []
        return found
    return None


def _libraries() -> Iterator[Path]:
    """torch's loaded libraries."""
    return iter(sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")))


# The JSON text of torch's collector, read while it is being written.
#
# torch exports a recording as a JSON file. It writes it only once, does not report failures, and holds Python's
# lock meanwhile. So the file is a named pipe, and our reader reads it on a thread that needs no lock: no disk is
# needed, and reading adds no time. Where that is not possible, it is a temporary file.

# The most that Linux allows; a larger buffer makes the two threads wait for each other less.
_PIPE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_FOLDERS = ("/dev/shm", "/var/tmp", ".")  # noqa: S108  (only where the system's own choice cannot be written to)
_MADE_SINCE_S = 0.0005
_LONG_MOMENT, _MOMENT = b'"ph":"X","cat":"cpu_instant_event"', b'"ph":"i","cat":"cpu_instant_event"'


def read_text(results: Any, *, may_start_threads: bool = True) -> dict[str, Any]:
    """Let torch write its recording, which it does only once, and read it.

    Args:
        results: torch's `_ProfilerResult`.
        may_start_threads: Whether threads can be started.

    Returns:
        What `_core.ChromeReader.finish` returned.

    Raises:
        RecorderError: torch could not write its text, or it cannot be read.
    """
    from kinetoscope.formats.chrome.read import new_reader

    reader = new_reader()
    with _folder() as folder:
        path = folder / "trace.json"
        if not (may_start_threads and _follow(results, reader, path)):
            results.save(str(path))
            _feed(reader, path)
    try:
        finished: dict[str, Any] = reader.finish()
        return finished
    except ValueError as error:
        raise RecorderError(
            f"torch's collector could not write what it recorded ({error}); torch may have printed more to stderr."
        ) from error


def read_objects(results: Any) -> dict[str, Any] | None:
    """Read what torch writes from its event objects, which is slow, but has every name unchanged.

    Returns:
        What was read; None if this torch cannot write it, or fails.
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
                    # This writer gives instant events a duration.
                    reader.feed(line.replace(_LONG_MOMENT, _MOMENT))
            finished: dict[str, Any] = reader.finish()
            return finished
        except Exception:  # noqa: BLE001  (whatever goes wrong in torch: there is the other text)
            return None


def kineto_status() -> str:
    """How the recording of torch's collector is read here, as a sentence for `kinetoscope doctor`.

    Raises:
        RecorderError: No folder is writable.
    """
    from kinetoscope.collect.request.activities import has_setting

    if not torch.profiler.kineto_available():
        return "not built into this torch: engine='kineto' records operators only"
    with _folder() as folder:
        try:
            os.mkfifo(folder / "pipe", 0o600)
            way = "read through a pipe while torch writes it"
        except OSError:
            way = "read from a temporary file, since no named pipe can be made"
        objects = (
            "without torch's event objects"
            if has_setting("trace_only")
            else "torch makes its event objects too"
        )
        return f"{way}, in {folder.parent}; {objects}"


def _follow(results: Any, reader: Any, path: Path) -> bool:
    """Read from a named pipe while torch writes into it; False, with nothing written, if that is not possible."""
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        os.mkfifo(unfinished, 0o600)
        # Some releases of torch write to another name first. Both names mean the same pipe.
        os.link(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        return False
    text = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finished, say = os.pipe()
    try:
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(text, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        follower = _Follower(reader, text, finished)
        if not follower.begin():
            path.unlink()
            unfinished.unlink()
            return False
        try:
            results.save(str(path))
        finally:
            os.write(say, b"\0")
            follower.join()
    finally:
        for one in (text, finished, say):
            os.close(one)
    follower.check()
    return True


class _Follower:
    """The thread that reads from the pipe."""

    def __init__(self, reader: Any, text: int, finished: int) -> None:
        self._reader = reader
        self._arguments = (text, finished)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kinetoscope follows kineto", daemon=True)

    def begin(self) -> bool:
        """Start; True once the thread does not need Python's lock, which torch holds until the last byte is read."""
        try:
            self._thread.start()
        except RuntimeError:
            return False
        while not self._reader.following and self._thread.is_alive():
            time.sleep(_MADE_SINCE_S)
        return self._failure is None

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def check(self) -> None:
        """Raise the failure, if any."""
        if self._failure is not None:
            raise RecorderError(
                f"what torch's collector recorded could not be read ({self._failure})."
            ) from self._failure

    def _run(self) -> None:
        try:
            self._reader.follow(*self._arguments)
        except Exception as error:  # noqa: BLE001  (raised by `check`)
            self._failure = error


def _feed(reader: Any, path: Path) -> None:
    """Read a file."""
    # If torch could not write, there is no file or an empty one, which the reader reports.
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            reader.feed(block)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A new private folder, removed afterwards."""
    failures = []
    for place in (None, *_FOLDERS):
        try:
            folder = tempfile.TemporaryDirectory(prefix="kinetoscope-", dir=place, ignore_cleanup_errors=True)
        except OSError as error:
            failures.append(str(error))
            continue
        with folder as name:
            yield Path(name)
        return
    raise RecorderError(
        "what torch's collector recorded cannot be read: it writes to a file, and no folder is writable "
        f"({failures[0]}). Set TMPDIR to a writable folder."
    )


# Work that yields its result only once and must not be interrupted.

Result = TypeVar("Result")


class BackgroundCall(Generic[Result]):
    """Runs a function once, on its own thread; interrupts go to the main thread, which only waits."""

    def __init__(self, work: Callable[[bool], Result]) -> None:
        """Store `work`, whose argument says whether threads can still be started."""
        self._work: Callable[[bool], Result] | None = work
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done: tuple[Result | None, BaseException | None] | None = None

    def result(self) -> Result:
        """The result or exception of the function. The first call starts it; if that is interrupted, a later one waits for it.

        Raises:
            StateError: The thread is gone, as in a forked child.
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
        if self._done is None:
            raise StateError("the parent process is reading this recording: read it there.")
        made, failure = self._done
        if failure is not None:
            raise failure
        return made  # type: ignore[return-value]

    def _run(self, work: Callable[[bool], Result], may_start_threads: bool) -> None:
        try:
            self._done = work(may_start_threads), None
        except BaseException as error:  # noqa: BLE001  (raised again by `result`)
            self._done = None, error


# The recording of torch's collector: a trace on demand, and the object that `prof.profiler` shows.

# Written by the engine at its start, and not part of the trace: the monotonic clock minus the system's clock.
MONOTONIC_KEY = "monotonic_of_realtime_ns"


class KinetoRecording:
    """The recording of torch's collector; becomes a trace on demand."""

    engine = "kineto"

    def __init__(
        self,
        results: Any | None,
        request: RecordingRequest,
        pauses: Pauses,
        window_ns: int = 0,
        *,
        has_objects: bool = False,
        unrecorded: Loss | None = None,
        taken_by: str = "recording_taken",
    ) -> None:
        """Store torch's results; None if there are none.

        `has_objects` says whether torch has made its event objects, `unrecorded` which threads it did not record, and
        `taken_by` is the code of the loss if there are no results.
        """
        self._results = results
        self._taken = results is None
        self._taken_by = taken_by
        self._unrecorded = unrecorded
        self._request = request
        self._pauses = pauses
        self._window_ns = window_ns
        self._has_objects = has_objects
        self._process = os.getpid()
        self._made: BackgroundCall[Trace] | None = None
        self._lock = threading.Lock()

    def trace(self) -> Trace:
        """The recording as a trace: torch writes it, we read it, both once. An interrupted call can be repeated.

        Raises:
            StateError: The recording was discarded, or belongs to the process that forked this one.
        """
        with self._lock:
            if self._made is None:
                if self._results is None and not self._taken:
                    raise StateError("this recording was discarded: there is no trace of it.")
                self._made = BackgroundCall(functools.partial(self._build, self._results))
        return self._made.result()

    def api(self) -> ResultsApi | None:
        """What `prof.profiler` shows as torch's results; None if there are none."""
        if self._results is None:
            return None
        return ResultsApi(self._results, self, has_objects=self._has_objects)

    def discard(self) -> None:
        """Drop torch's results; a trace that is already built stays complete."""
        self._results = None

    def _build(self, results: Any | None, may_start_threads: bool) -> Trace:
        """Read torch's text, and add losses for what is missing."""
        from kinetoscope.collect.request.activities import EVENT_METADATA
        from kinetoscope.model.steps import one_cycle
        from kinetoscope.storage.recording import add_storages
        from kinetoscope.trace import Trace

        info: dict[str, Any] = {key: json.loads(text) for key, text in self._request.info.items()}
        if pauses := self._pauses.as_list():
            info["pauses"] = pauses
        info |= {
            "engine": self.engine,
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
            lost.append(Loss.of(self._taken_by))
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
                if self._has_objects:
                    strings = restore_quotes(tables, strings, results, info["start_realtime_ns"])
                if self._has_objects and self._request.options.needs_shapes:
                    note_keywords(tables, strings, results, info["start_realtime_ns"])
                if self._has_objects and self._setting(EVENT_METADATA):
                    note_event_metadata(tables, results.events(), info["start_realtime_ns"])
            strings, unseen = add_storages(tables, info, strings, info["start_realtime_ns"])
            lost += counted_losses(unseen)
        lost += [self._unrecorded] if self._unrecorded is not None else []
        lost += paused_losses(info.get("pauses"))
        run = RunInfo.of(info)
        if isinstance(monotonic_of_realtime_ns, int) and run.start_realtime_ns is not None:
            info["start_monotonic_ns"] = run.start_realtime_ns + monotonic_of_realtime_ns
        tables["losses"] = loss_columns(lost)
        tables["cycles"] = one_cycle(run.cycle_number, max(self._window_ns, run.stop_ns or 0))
        self._results = None
        return Trace.from_columns(tables, strings=strings, info=info)

    def _read(self, results: Any, may_start_threads: bool) -> Trace:
        """The trace of the text, without what the session does not record."""
        text = read_text(results, may_start_threads=may_start_threads)
        if self._has_objects and UNWRITABLE in text["strings"]:
            text = read_objects(results) or text
        leave_out(
            text,
            self._request.activity_filters.get(ProfilerActivity.CPU),
            self._pauses.windows_ns("CPU"),
        )
        leave_out_own_calls(text)
        mark_transfers(text)
        from kinetoscope.formats.chrome.read import made_trace

        return Trace.of(made_trace(text))

    def _columns(self, read: Trace) -> tuple[Tables, list[str], dict[str, Any]]:
        """The columns, the strings and the metadata."""
        tables = delivered(read)
        strings = read.strings
        if self._setting("capture_overload_names"):
            strings = split_overloads(tables, strings)
        if "threads" in tables:
            number_threads(tables)
        device = device_of([name_of(activity) for activity in self._request.activities])
        if device is not None and "streams" in tables:
            tables["streams"]["device_type"][:] = device
        stated = {key: value for key, value in read.info.items() if key in _FROM_TORCH}
        return tables, strings, stated

    def _setting(self, name: str) -> bool:
        """Whether an experimental setting of torch's is on."""
        return bool(changed_settings(self._request.options.experimental_config).get(name))


# Metadata that only torch's text has.
_FROM_TORCH = frozenset(
    {"start_realtime_ns", "stop_ns", "deviceProperties", "devices", "distributedInfo", "record_shapes"}
)


def _losses(read: Trace, tables: Tables) -> list[Loss]:
    """What was lost in reading."""
    tables.pop("losses", None)
    lost = losses_of(read.columns("losses"))
    if unknown := unwritable_ranges(read):
        lost.append(Loss.of("unwritable_names", unknown))
    return lost


class ResultsApi:
    """Replaces the collector's `_ProfilerResult` in `prof.profiler`: that one can be saved only once, and was, for the trace."""

    def __init__(self, results: Any, recording: KinetoRecording, *, has_objects: bool) -> None:
        """Wrap torch's results."""
        self._results = results
        self._recording = recording
        self._has_objects = has_objects

    def trace_start_ns(self) -> int:
        """When the recording started, in nanoseconds of the system's clock."""
        return int(self._results.trace_start_ns())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording in Chrome's format.

        Raises:
            StateError: The recording was discarded before it was read.
        """
        from kinetoscope.formats.chrome.write import write_chrome_trace

        write_chrome_trace(self._recording.trace(), os.fspath(path), identity=False)

    def events(self) -> Any:
        """torch's raw events.

        Raises:
            StateError: torch did not make them.
        """
        return self._objects("events")()

    def experimental_event_tree(self) -> Any:
        """torch's tree of events.

        Raises:
            StateError: torch did not make them.
        """
        return self._objects("experimental_event_tree")()

    def _objects(self, call: str) -> Any:
        """A method of torch's results that returns event objects."""
        if not self._has_objects:
            raise StateError(
                f"prof.profiler.kineto_results.{call}() needs event objects, which torch did not make because they slow down "
                "each stop: pass experimental_config=torch._C._profiler._ExperimentalConfig() to the session to get "
                "them, or use install(engine='kineto') if you cannot change the program. prof.events() and "
                "prof.trace.table('spans') have the same data."
            )
        return getattr(self._results, call)


_DEVICE_NAMES = {"CUDA": "cuda", "XPU": "xpu", "MTIA": "mtia", "HPU": "hpu"}


class UnknownKindError(ArgumentError, RuntimeError):
    """An activity has no kind of that name; torch raises a RuntimeError."""


class KinetoEngine:
    """Records with the collector that is built into torch."""

    name = "kineto"

    def __init__(self) -> None:
        """Start unprepared; `torch_profiler` is torch's own session object of the current or last cycle."""
        self.torch_profiler: Any = None
        self._pauses = Pauses()
        self._request: RecordingRequest | None = None
        self._collector: Any = None
        # torch collects the operators of the thread that started it, and only that thread can switch or stop it.
        self._only_thread: threading.Thread | None = None
        self._operators_off = False
        self._others: _OtherThreads | None = None
        self._watch: StorageWatch | None = None
        self._living = Living()
        self._ended_at_exit: KinetoRecording | None = None
        _ENGINES.add(self)

    def prepare(self, request: RecordingRequest) -> None:
        """Let torch load and warm up what its devices need.

        Raises:
            StateError: torch's collector is already in use, by `torch.profiler` for example.
        """
        if changed_settings(request.options.experimental_config).get(ALL_THREADS_SETTING):
            warn_user(
                f"{ALL_THREADS_SETTING}: torch's own collector can crash the program while other threads run operators; the "
                "native engine records all threads safely"
                if _collects_all_threads(request)
                else f"{ALL_THREADS_SETTING}: without effect with profile_memory=True, since torch's own collector reports memory "
                "only to the thread that started it"
            )
        self._refuse_second_user()
        # Ranges need it right after the start, when the collector may record Python calls.
        with contextlib.suppress(RecorderError):
            ready_recorder()
        self._request = request
        self._collector = self.torch_profiler = _make_collector(request)
        self._pauses = Pauses()
        try:
            self._collector._prepare_trace()
        except RuntimeError as error:
            if not request.activity_filters:
                raise
            # Only torch knows the names of kinds, and it reports a wrong one only here.
            self._collector = None
            raise UnknownKindError(f"activities: {error}") from error

    def start(self) -> None:
        """Let torch collect.

        Raises:
            StateError: Nothing was prepared, or torch's collector is already in use.
        """
        if self._request is None or self._collector is None:
            raise StateError("the Kineto engine was started without being prepared: call prepare() first.")
        try:
            self._refuse_second_user()
        except StateError:
            # Our stop() must not stop another profiler.
            self._collector = None
            raise
        all_threads = _collects_all_threads(self._request)
        self._only_thread = None if all_threads else threading.current_thread()
        self._operators_off = False
        # Before the collector is on, like everything here: it records Python calls of this thread.
        self._others = None if all_threads else _OtherThreads()
        if self._request.options.profile_memory:
            self._watch = StorageWatch(self._living, lambda tensors: None)
            self._request = _with_info(self._request, self._watch.start())
        self._request = _with_info(self._request, {MONOTONIC_KEY: json.dumps(monotonic_of_realtime_ns())})
        note_this_thread()
        self._collector._start_trace()

    def toggle(self, enable: bool, activities: frozenset[ProfilerActivity]) -> None:
        """Switch the collection of activities off or on.

        torch switches operators for the thread that records them. If another thread does it, or if torch records all
        threads, they are collected as before, and those that began meanwhile are removed from the trace.

        Raises:
            StateError: Nothing is being recorded, or this is another thread, and memory is recorded or operators were
                switched off by the thread that records them.
        """
        if self._collector is None or self._request is None:
            raise StateError("the Kineto engine is not recording: there is nothing to switch off or on.")
        here = self._only_thread is threading.current_thread()
        operators = ProfilerActivity.CPU in activities
        if self._only_thread is not None and not here:
            if self._request.options.profile_memory:
                raise StateError(
                    "with profile_memory=True torch's own collector can only be switched by the thread that started it."
                )
            if operators and enable and self._operators_off:
                raise StateError(
                    "the thread that started torch's own collector switched operators off, and only that thread can switch "
                    "them on again."
                )
        if self._pauses.toggle(enable, (activity.name for activity in activities), time.time_ns()):
            by_torch = activities if here else activities - {ProfilerActivity.CPU}
            if by_torch:
                self._collector.toggle_collection_dynamic(enable, by_torch)
            if operators and here:
                self._operators_off = not enable

    def stop(self) -> KinetoRecording:
        """Stop torch's collector and store its result.

        Raises:
            StateError: Nothing is being recorded.
            StillRecordingError: Another thread started it, and is still running.
        """
        if self._ended_at_exit is not None:
            recording, self._ended_at_exit = self._ended_at_exit, None
            return recording
        if self._request is None or self._collector is None:
            raise StateError("the Kineto engine was stopped without being started: call start() first.")
        starter = self._only_thread
        elsewhere = starter is not None and starter is not threading.current_thread()
        if elsewhere and starter is not None and starter.is_alive():
            raise StillRecordingError(
                f"torch's own collector can only be stopped by the thread that started it ({starter.name}): call stop() "
                "there. The native engine can be stopped by any thread."
            )
        stopped, watch, self._watch = self._collector, self._watch, None
        try:
            if watch is not None:
                watch.cancel()
            if elsewhere:
                # torch dropped what it had collected together with the thread.
                return KinetoRecording(None, self._request, self._pauses, taken_by="recording_thread_ended")
            if not _in_use():
                return KinetoRecording(None, self._request, self._pauses)
            stopped.__exit__(None, None, None)
            unrecorded = None if self._others is None else self._others.ran()
            if watch is not None:
                self._request = _with_info(self._request, watch.stop())
            note_this_thread()
            recording = KinetoRecording(
                stopped.kineto_results,
                self._request,
                self._pauses,
                _window_ns(stopped),
                has_objects=_makes_objects(stopped.experimental_config),
                unrecorded=unrecorded,
            )
            stopped.kineto_results = recording.api()
            return recording
        finally:
            self._collector = None
            # torch does not reset this if an interrupt hits its own stop.
            collector._set_is_profiler_enabled(False)

    def stop_at_exit(self) -> None:
        """Stop because Python exits; a later `stop` still returns the recording."""
        if self._collector is not None:
            self._ended_at_exit = self.stop()

    def _refuse_second_user(self) -> None:
        """Raise an error if torch.profiler is running: torch would silently stop it."""
        if _in_use():
            raise StateError(
                "torch's own collector is already in use, by torch.profiler or torch.autograd.profiler: stop that one "
                "first. (The native engine can record at the same time.)"
            )


_ENGINES: weakref.WeakSet[KinetoEngine] = weakref.WeakSet()


def _collects_all_threads(request: RecordingRequest) -> bool:
    """Whether torch collects on all threads.

    It then reads what other threads collect while they may still write it: programs crash at start and stop, also with
    torch alone. So it collects operators on all threads only if the program's own settings ask for it, but
    never with memory, which torch reports only to the thread that started it. Without operators it writes nothing on
    other threads, and any thread may stop it.
    """
    options = request.options
    if options.profile_memory:
        return False
    if ProfilerActivity.CPU not in request.activities:
        return True
    return bool(changed_settings(options.experimental_config).get(ALL_THREADS_SETTING))


# Threads that ran less than this, or a smaller share of the recording, change no number that a person sees.
_LEAST_RAN_NS, _LEAST_RAN_SHARE = 1_000_000, 0.01
_TASKS = "/proc/self/task"
_OUR_THREADS = "kinetoscope"


class _OtherThreads:
    """The Python threads that run while torch records another one."""

    def __init__(self) -> None:
        """Read the processor time that every thread has used so far."""
        self._before = _thread_times_ns()
        self._process_ns = time.process_time_ns()
        self._start_ns = time.monotonic_ns()

    def ran(self) -> Loss | None:
        """The threads that have run since then, except the calling one; None if there are none."""
        # The process first, and the other way round at the start: so threads that ended never have too much.
        ended_ns = time.process_time_ns() - self._process_ns
        now = _thread_times_ns()
        least_ns = max(_LEAST_RAN_NS, _LEAST_RAN_SHARE * (time.monotonic_ns() - self._start_ns))
        used_ns = {tid: ns - self._before.get(tid, 0) for tid, ns in now.items()}
        here = threading.get_native_id()
        names = [
            thread.name
            for thread in threading.enumerate()
            if thread.native_id != here
            and not thread.name.startswith(_OUR_THREADS)
            and used_ns.get(thread.native_id or 0, 0) >= least_ns
        ]
        if now and ended_ns - sum(used_ns.values()) >= least_ns:
            names.append("threads that have ended")
        if not names:
            return None
        return Loss.of(
            "threads_not_recorded",
            len(names),
            why=f"torch's collector records the thread that started it, and its backward passes. Also ran: {_few(names)}. "
            "The native engine records all threads.",
        )


def _thread_times_ns() -> dict[int, int]:
    """The processor time in nanoseconds of each thread of the process, by its system id; empty where it is not known."""
    times_ns: dict[int, int] = {}
    try:
        tids = [int(name) for name in os.listdir(_TASKS)]
    except OSError:
        return times_ns
    for tid in tids:
        # The number of the clock of a thread, as Linux defines it. The thread may just have ended.
        with contextlib.suppress(OSError):
            times_ns[tid] = time.clock_gettime_ns((~tid << 3) | 6)
    return times_ns


def _few(names: Sequence[str], most: int = 5) -> str:
    """Some of the names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _objects(request: RecordingRequest) -> dict[str, bool]:
    """Whether torch also makes its event objects, which takes a third of the time of stopping.

    We read its text and need none. They are made for programs that read them from `prof.profiler`: if the program passed
    its own experimental settings, or uses torch's collector through `install`; if memory
    is recorded, because tools read it from torch's event tree; and for stacks, which torch has only with them.
    """
    options = request.options
    if options.experimental_config is not None:
        return {}
    return {
        "trace_only": not (options.needs_python_stacks or options.profile_memory or request.torch_objects)
    }


def _makes_objects(config: Any) -> bool:
    """Whether torch makes its event objects with these settings; releases without the setting always do."""
    return not (has_setting("trace_only") and config.trace_only)


def _with_info(request: RecordingRequest, info: dict[str, str]) -> RecordingRequest:
    """The request with more metadata."""
    return dataclasses.replace(request, info={**request.info, **info})


def _stop_at_exit() -> None:
    """Stop running collectors: torch's collector crashes if it outlives the interpreter."""
    for engine in list(_ENGINES):
        with contextlib.suppress(KinetoscopeError):
            engine.stop_at_exit()


def _window_ns(stopped: Any) -> int:
    """How long torch's collector was on, by its own clock."""
    return max(0, int(stopped.profiling_end_time_ns - stopped.profiling_start_time_ns))


def _in_use() -> bool:
    """Whether torch's collector is collecting, on any thread."""
    return TORCH_RANGES.torch_profiles


def _make_collector(request: RecordingRequest) -> Any:
    """A collector of torch, set up but not started."""
    options, filters = request.options, request.activity_filters
    names = {name_of(activity) for activity in request.activities}
    device = next((_DEVICE_NAMES[name] for name in _DEVICE_NAMES if name in names), None)
    if device is None and "PrivateUse1" in names:
        device = torch._C._get_privateuse1_backend_name()
    newer: dict[str, Any] = {
        "custom_trace_id_callback": lambda: request.trace_id,
        "post_processing_timeout_s": options.post_processing_timeout_s,
        "activity_filters": {activity: set(kinds) for activity, kinds in filters.items()} or None,
        "_profiler_extensions": extensions(options.extension_configs),
    }
    settings: dict[str, bool] = _objects(request)
    if options.garbage_collection:
        settings[GARBAGE_COLLECTION_SETTING] = True
    if filters and not collector_takes("activity_filters"):
        raise ArgumentError(
            f"activities: torch {torch.__version__} cannot choose among the kinds of an activity; pass the activities "
            "themselves."
        )
    made = collector.profile(
        use_cpu=ProfilerActivity.CPU in request.activities,
        use_device=device,
        record_shapes=options.needs_shapes,
        with_flops=options.with_flops,
        profile_memory=options.profile_memory,
        # torch puts Python calls and module calls on the timeline together, and only with stacks.
        with_stack=options.needs_python_stacks,
        use_kineto=True,
        experimental_config=for_torchs_collector(
            options.experimental_config, profile_all_threads=_collects_all_threads(request), **settings
        ),
        **{name: value for name, value in newer.items() if collector_takes(name)},
    )
    # Not by its keyword: torch 2.14 warns that it has no effect, but here it has.
    made.with_modules = options.with_modules
    return made


atexit.register(_stop_at_exit)
