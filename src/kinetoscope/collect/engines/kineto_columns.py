"""Corrections from torch's JSON text to the columns of a recording."""

from __future__ import annotations

import ctypes
import functools
import json
import re
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.profiler

from kinetoscope.model.kinds import is_operator
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
