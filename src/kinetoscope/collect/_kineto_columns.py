"""From what our reader made of torch's text to the columns of a live recording: what the text does not say, or too much."""

from __future__ import annotations

import ctypes
import functools
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinetoscope.trace import STORED, SpanKind, Trace
from kinetoscope.trace._schema import EVENT_METADATA_KEY, FLAG_ASYNC, TRANSFER_MARKS

Tables = dict[str, dict[str, Any]]

_OF_THE_CPU = ("cpu_op", "user_annotation", "python_function")
# Namespace and name of an operator as schemas spell them, and behind a point what may be an overload.
_WITH_OVERLOAD = re.compile(r"(\w+::\w+)\.([\w.]+)")
# What torch writes in place of a name that it does not know how to write.
UNWRITABLE = "unknown"
DEVICE_TYPES = {"CUDA": 1, "XPU": 12, "HPU": 15, "MTIA": 19, "PrivateUse1": 20}

# torch's own numbers of threads by those of the system, as far as they are known in this process.
_numbers: dict[int, int] = {}
_numbers_lock = threading.Lock()


def leave_out(
    native: dict[str, Any], kinds: frozenset[str] | None, off_ns: Sequence[tuple[int, float]]
) -> None:
    """Take out what was not asked for: torch writes all operators, whichever were chosen and while they are switched off.

    Args:
        native: What `_core.ChromeReader.finish` returned; changed.
        kinds: The names of the kinds of host events that are wanted; None means all.
        off_ns: Windows in nanoseconds of the clock on the wall; what began on the host in them goes.
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
        # Python's numbers, for an open end is infinite.
        start_ns = spans["start_ns"] + _base_ns(native)
        for begin_ns, end_ns in off_ns:
            unwanted |= on_host & (start_ns >= begin_ns) & (start_ns < end_ns)
    if not unwanted.any():
        return
    kept = ~unwanted
    place = np.where(kept, np.cumsum(kept) - 1, -1)
    native["spans"] = {name: values[kept] for name, values in spans.items()}
    for name in ("kernels", "copies"):
        if (table := native.get(name)) is not None:
            moved = place[table["span"]]
            native[name] = {column: values[moved >= 0] for column, values in table.items()}
            native[name]["span"] = moved[moved >= 0].astype(np.int32)


def mark_transfers(native: dict[str, Any]) -> None:
    """Flag the ranges of backends that carry out calls between ranks: they end on other threads, and torch's text is silent on that."""
    spans, strings = native["spans"], native["strings"]
    named = np.array([text.startswith(TRANSFER_MARKS) for text in strings], dtype=bool)
    if named.any():
        ranges = (spans["kind"] == SpanKind.USER_ANNOTATION) & named[spans["name"]]
        spans["flags"][ranges & (native["threads"]["on_device"][spans["thread"]] == 0)] |= FLAG_ASYNC


def split_overloads(tables: Tables, strings: list[str]) -> list[str]:
    """Tell the overload of an operator from its name: torch writes both as one, `aten::add.Tensor`.

    Args:
        tables: The columns of a trace; changed.
        strings: Its string table.

    Returns:
        The string table with the names that it lacked.
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
    # Ranges may be called anything.
    operators = np.isin(spans["kind"], (SpanKind.OPERATOR, SpanKind.BACKWARD))
    spans["overload"] = np.where(operators, overload_of[spans["name"]], np.int32(0))
    spans["name"] = np.where(operators, name_of[spans["name"]], spans["name"])
    return texts


def number_threads(tables: Tables) -> None:
    """Give every thread of the host torch's own number of it.

    torch writes these numbers only where a backward function names the thread of its forward. They are also known of
    threads that began or ended a recording. What is left has the number that the system gave it. In one process a thread
    has the same number in every recording, once it has one.

    Args:
        tables: The columns of a trace; changed.
    """
    threads, spans = tables["threads"], tables["spans"]
    told = threads["torch_tid"].copy()
    of_host = np.ones(len(told), dtype=bool)
    if "stream" in spans:
        of_host[spans["thread"][spans["stream"] >= 0]] = False
    with _numbers_lock:
        rows = np.flatnonzero(of_host).tolist()
        for row in rows:
            if told[row] > 0:
                _numbers[int(threads["os_tid"][row])] = int(told[row])
        for row in rows:
            os_tid = int(threads["os_tid"][row])
            told[row] = _numbers.setdefault(os_tid, os_tid)
    threads["torch_tid"] = told


def note_this_thread() -> None:
    """Keep torch's number of the thread that asks."""
    ask = _torchs_number()
    if ask is not None:
        with _numbers_lock:
            _numbers[threading.get_native_id()] = int(ask())


def device_of(activities: Sequence[str]) -> int | None:
    """torch's number of the type of device that was asked for, None without or with several."""
    found = {DEVICE_TYPES[name] for name in activities if name in DEVICE_TYPES}
    return found.pop() if len(found) == 1 else None


def note_event_metadata(tables: Tables, events: Sequence[Any], base_ns: int) -> None:
    """Put the metadata that Kineto shows of its event objects into the arguments of their spans.

    Args:
        tables: The columns of a trace; changed.
        events: torch's event objects of the same recording.
        base_ns: The clock on the wall at time 0 of the trace.
    """
    told = {
        (int(event.start_ns()) - base_ns, int(event.correlation_id())): str(event.metadata_json())
        for event in events
        if event.metadata_json()
    }
    spans = tables.get("spans", {})
    if not told or "start_ns" not in spans:
        return
    none = np.full(len(spans["start_ns"]), -1, dtype=np.int64)
    correlation, external_id = spans.get("correlation", none), spans.get("external_id", none)
    # Operators are counted by their own number; what a device's runtime calls and runs is, by the runtime's.
    number: Any = np.where(correlation >= 0, correlation, external_id)
    texts = list(tables.get("arguments", {}).get("json", ()))
    rows = {text: row for row, text in enumerate(texts)}
    column = np.array(spans.get("arguments", none), dtype=np.int32)
    for span, key in enumerate(zip(spans["start_ns"].tolist(), number.tolist(), strict=True)):
        if key not in told:
            continue
        given = json.loads(texts[column[span]]) if column[span] >= 0 else {}
        text = json.dumps({**given, EVENT_METADATA_KEY: told[key]})
        column[span] = rows.setdefault(text, len(texts))
        if column[span] == len(texts):
            texts.append(text)
    spans["arguments"] = column
    tables["arguments"] = {"json": texts}


def restore_quotes(tables: Tables, strings: list[str], results: Any, base_ns: int) -> list[str]:
    """Give ranges the double quotes of their names back: torch 2.15 writes single ones, and its event objects have them.

    Args:
        tables: The columns of a trace; changed.
        strings: Its string table.
        results: torch's `_ProfilerResult`, with event objects.
        base_ns: The clock on the wall at time 0 of the trace.

    Returns:
        The string table with the names that it lacked.
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
    told = {
        (int(event.start_ns()) - base_ns, event.name().replace('"', "'")): event.name()
        for event in results.events()
        if '"' in event.name()
    }
    texts = list(strings)
    places = {text: place for place, text in enumerate(texts)}
    names = np.array(spans["name"], dtype=np.int32)
    for row in rows:
        name = told.get((int(spans["start_ns"][row]), texts[names[row]]))
        if name is not None:
            names[row] = places.setdefault(name, len(texts))
            if names[row] == len(texts):
                texts.append(name)
    spans["name"] = names
    return texts


def unwritable_ranges(trace: Trace) -> int:
    """How many ranges there are whose names torch did not know how to write."""
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
    """The overloads of an operator that torch knows here."""
    return frozenset(schema.overload_name for schema in torch._C._jit_get_schemas_for_operator(operator))


def _base_ns(native: Mapping[str, Any]) -> int:
    """The clock on the wall at time 0 of what was read; torch before 2.4 counts from 1970 without saying so."""
    since = next((text for key, text in native["header"] if key == "baseTimeNanoseconds"), "0")
    return int(json.loads(since)) + int(native["base_ns"])


@functools.cache
def _torchs_number() -> Any | None:
    """`at::RecordFunction::currentThreadId`, which torch shows Python nowhere; None where it is not found."""
    for library in _libraries():
        try:
            found = ctypes.CDLL(str(library))["_ZN2at14RecordFunction15currentThreadIdEv"]
        except (OSError, AttributeError):
            continue
        found.restype, found.argtypes = ctypes.c_uint64, []
        return found
    return None


def _libraries() -> Iterator[Path]:
    """Where torch keeps what is loaded already."""
    return iter(sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")))
