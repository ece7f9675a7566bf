"""Corrections of the columns that were parsed from torch's JSON text."""

from __future__ import annotations

import ctypes
import functools
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.profiler

from kinetoscope.collect.process.own_code import PACKAGE, Code, whose_code
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.schema import (
    COLLECTED_DEVICES,
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
_HOST_CATEGORIES = ("cpu_op", "user_annotation", "python_function")
# An operator's name with namespace, and after a dot what may be an overload: `aten::add.Tensor`.
_WITH_OVERLOAD = re.compile(r"(\w+::\w+)\.([\w.]+)")
# The name that torch writes if it cannot encode the actual one as JSON.
UNWRITABLE = "unknown"
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
    starts_ns, ends_ns = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    for thread in np.unique(spans["thread"][is_own]).tolist():
        rows = np.flatnonzero(is_call & (spans["thread"] == thread))
        rows = rows[np.lexsort((rows, -ends_ns[rows], starts_ns[rows]))]
        # Only calls that may be nested in one of our own are visited one by one.
        latest_ns = np.maximum.accumulate(np.where(is_own[rows], ends_ns[rows], -1))
        rows = rows[starts_ns[rows] < latest_ns]
        # When each ends, and the calls of whose code in it are unwanted.
        open_calls: list[tuple[int, frozenset[Code]]] = []
        for row in rows.tolist():
            while open_calls and open_calls[-1][0] <= starts_ns[row]:
                open_calls.pop()
            code = _code(strings[spans["name"][row]])
            hides = open_calls[-1][1] if open_calls else frozenset[Code]()
            unwanted[row] = code in _OWN or code in hides
            hides = hides | _OWN.get(code, hides) if unwanted[row] else frozenset()
            open_calls.append((int(ends_ns[row]), hides))
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
    native["rows"]["spans"] = len(spans["thread"])
    threads = native["threads"]
    first = threads["first_row"] = np.append(0, np.cumsum(remaining))[threads["first_row"]]
    threads["first_category"] = np.where(np.diff(first) > 0, np.append(spans["category"], -1)[first[:-1]], -1)
    for name in ("kernels", "copies"):
        if (table := native.get(name)) is not None:
            moved = new_row[table["span"]]
            native[name] = {column: values[moved >= 0] for column, values in table.items()}
            native[name]["span"] = moved[moved >= 0].astype(np.int32)
            native["rows"][name] = len(native[name]["span"])


def mark_transfers(native: dict[str, Any]) -> None:
    """Flag the ranges of collective backends as asynchronous: they end on other threads, which torch's text does not say."""
    spans, strings = native["spans"], native["strings"]
    named = np.array([text.startswith(TRANSFER_MARKS) for text in strings], dtype=bool)
    if named.any():
        ranges = (spans["kind"] == SpanKind.USER_ANNOTATION) & named[spans["name"]]
        spans["flags"][ranges & (native["threads"]["on_device"][spans["thread"]] == 0)] |= FLAG_ASYNC


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
        if parts is not None and parts[2] in _overloads(parts[1]):
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
    _add_arguments(
        tables,
        {
            _event_key(event, base_ns): {EVENT_METADATA_KEY: str(event.metadata_json())}
            for event in events
            if event.metadata_json()
        },
    )


def note_keywords(tables: Tables, strings: Sequence[str], results: Any, base_ns: int) -> None:
    """Add keyword inputs of ranges that torch's text lacks, such as lists of numbers, to the arguments of their spans.

    Args:
        tables: The columns of a trace; changed in place.
        strings: Its string table.
        results: torch's `_ProfilerResult`, with event objects.
        base_ns: Time 0 of the trace, in nanoseconds since 1970.
    """
    spans = tables.get("spans", {})
    if "kind" not in spans:
        return
    # Only ranges have keyword inputs. Operators, whose names have a namespace, and backward functions, which have a sequence
    # number, do not.
    is_range = np.array(["::" not in text for text in strings], dtype=bool)[spans["name"]]
    is_range &= spans["kind"] == SpanKind.OPERATOR
    if "sequence" in spans:
        is_range &= spans["sequence"] < 0
    if not is_range.any():
        return
    keys = dict(zip(np.flatnonzero(is_range).tolist(), _span_keys(spans, is_range), strict=True))
    wanted = set(keys.values())
    inputs = {}
    for event in results.events():
        if (key := _event_key(event, base_ns)) in wanted and (keywords := event.kwinputs()):
            inputs[key] = keywords
    texts = tables.get("arguments", {}).get("json", ())
    unwritten: dict[tuple[int, int], dict[str, Any]] = {}
    for span, key in keys.items():
        if key in inputs:
            row = int(spans["arguments"][span]) if "arguments" in spans else -1
            written = json.loads(texts[row]) if row >= 0 else {}
            missing = {
                name: value
                for name, value in inputs[key].items()
                if (name not in written or written[name] != value) and _has_json(value)
            }
            if missing:
                unwritten[key] = {OTHER_KEYWORDS: missing}
    _add_arguments(tables, unwritten)


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


def _add_arguments(tables: Tables, more: Mapping[tuple[int, int], dict[str, Any]]) -> None:
    """Merge more arguments into those of spans, which are given by their keys; `tables` is changed in place."""
    spans = tables.get("spans", {})
    if not more or "start_ns" not in spans:
        return
    texts = StringTable(list(tables.get("arguments", {}).get("json", ())))
    column = np.array(spans.get("arguments", np.full(len(spans["start_ns"]), -1)), dtype=np.int32)
    for span, key in enumerate(_span_keys(spans)):
        if key in more:
            facts = json.loads(texts.texts[column[span]]) if column[span] >= 0 else {}
            column[span] = texts.row(json.dumps({**facts, **more[key]}))
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
    spans = tables.get("spans", {})
    doubtful = [row for row, text in enumerate(strings) if "'" in text]
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
    """Count the ranges whose names torch could not encode."""
    try:
        name = trace.strings.index(UNWRITABLE)
    except ValueError:
        return 0
    ranges = np.isin(
        trace.column("spans", "kind"), (SpanKind.USER_ANNOTATION, SpanKind.PYTHON, SpanKind.MODULE)
    )
    return int(np.count_nonzero(ranges & (trace.column("spans", "name") == name)))


def stored_columns(trace: Trace) -> Tables:
    """The stored columns of a trace, without computed ones."""
    return {
        name: {column: trace.column(name, column) for column in trace.columns(name).given}
        for name in STORED
        if name != "steps" and trace.columns(name).given
    }


def _overloads(operator: str) -> frozenset[str]:
    return frozenset(schema.overload_name for schema in torch._C._jit_get_schemas_for_operator(operator))


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
