"""Assign the tracks of a Chrome trace to threads and streams of devices."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.rows import Mask, as_columns
from kinetoscope.model.schema import COLLECTED_DEVICES, DeviceType, SpanKind
from kinetoscope.model.strings import parsed_json

OWN = "kinetoscope"
"""The header key that marks a file as written by Kinetoscope."""

HOST, DEVICE = False, True

CATEGORIES: dict[str, tuple[SpanKind, bool]] = {
    name: kind
    for kind, names in {
        (SpanKind.OPERATOR, HOST): ("cpu_op", "Operator"),
        (SpanKind.USER_ANNOTATION, HOST): ("user_annotation", "cpu_instant_event", "external_correlation"),
        (SpanKind.PYTHON, HOST): ("python_function",),
        (SpanKind.OVERHEAD, HOST): ("overhead",),
        (SpanKind.RUNTIME, HOST): (
            "cuda_runtime",
            "Runtime",
            "xpu_runtime",
            "mtia_runtime",
            "glow_runtime",
            "privateuse1_runtime",
        ),
        (SpanKind.DRIVER, HOST): ("cuda_driver", "Driver", "xpu_driver", "privateuse1_driver"),
        (SpanKind.KERNEL, DEVICE): ("kernel", "Kernel", "concurrent_kernel", "hpu_op", "mtia_ccp_events"),
        (SpanKind.MEMCPY, DEVICE): ("gpu_memcpy", "Memcpy"),
        (SpanKind.MEMSET, DEVICE): ("gpu_memset", "Memset"),
        (SpanKind.SYNC, DEVICE): ("cuda_sync", "cuda_event"),
        (SpanKind.COLLECTIVE, DEVICE): ("collective_comm",),
        # Ranges and measurements around work on the device; not work themselves.
        (SpanKind.USER_ANNOTATION, DEVICE): (
            "gpu_user_annotation",
            "cuda_profiler_range",
            "xpu_scope_profiler",
            "mtia_insight",
            "mtia_counters",
        ),
    }.items()
    for name in names
}
"""Kind of span and whether it is on a device, by Kineto's category, including the names of torch 1.8.

Categories of counters and memory events are here only if slices with that category exist.
"""

OPERATORS = frozenset(("cpu_op", "Operator"))
STREAM_COLUMNS = ("device_type", "device_index", "number", "name")
DEVICE_WORK = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET, SpanKind.COLLECTIVE)
"""The kinds of device spans that the host launches."""

# The device type, by the prefix of categories that are specific to it.
_DEVICE_TYPES: dict[str, int] = {name.lower(): kind for name, kind in COLLECTED_DEVICES.items()}


def made(column: Any) -> Any:
    """Return a column, or what the function returns that makes it."""
    return column() if callable(column) else column


class LazyColumns(dict[str, Any]):
    """Values, some of which are still functions that make them, called when a value is first used. Thread-safe."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> Any:
        """Return a value, computing it if needed; its function is released then."""
        with self._lock:
            value = super().__getitem__(name)
            if callable(value):
                value = self[name] = value()
            return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, computing it if needed."""
        if name not in self:
            return default
        return self[name]

    def take(self, name: str) -> Any:
        """Return a value and remove it."""
        with self._lock:
            value = self[name]
            del self[name]
            return value

    def given(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the existing ones of some names: values if computed, else functions that return them."""
        return {
            name: partial(self.__getitem__, name)
            if callable(super(LazyColumns, self).get(name))
            else self[name]
            for name in names
            if name in self
        }


# Kineto's name of a thread.
_THREAD_NAME = re.compile(r"thread -?\d+(?: \((?P<name>.*)\))?", re.DOTALL)
# Kineto's label of a process that is a device.
DEVICE_LABEL = re.compile(r"(?P<type>GPU|XPU|HPU|MTIA|PrivateUse1) \d+(?: of rank \d+)?")
# Composer writes an event of this name with the rank as `value`; in its merged files the process is the rank.
_COMPOSER_RANK = "global_rank"
_MOST_RANKS = 10**9
# In Kineto's files the process of a device is the device's index. Anything larger is a process id.
_MOST_DEVICES = 1024

# torch_npu's name of the process of its device.
_ASCEND = "Ascend Hardware"


@dataclass
class FileTracks:
    """The tracks of a file as rows of `threads`, in the order of the native reader.

    Attributes:
        on_device: Which tracks are streams of a device.
        threads: The columns of the table `threads`.
        streams: The columns of the table `streams`.
        stream_of: The row in `streams` of each track, -1 for host threads.
        ascend_spans: The number of spans of Ascend devices, which torch_npu writes like host spans.
    """

    on_device: Mask
    threads: dict[str, Any]
    streams: dict[str, Any]
    stream_of: NDArray[np.int32]
    ascend_spans: int


@dataclass
class Names:
    """The contents of metadata events, by process and track as written in the file."""

    threads: dict[tuple[int, str, int, str], list[str]] = field(default_factory=dict)
    processes: dict[tuple[int, str], str] = field(default_factory=dict)
    labels: dict[tuple[int, str], str] = field(default_factory=dict)
    ranks: dict[tuple[int, str], int] = field(default_factory=dict)


def read_tracks(
    native: Mapping[str, Any],
    names: Names,
    categories: Sequence[str],
) -> FileTracks:
    """Classify tracks as threads or streams, and name them.

    Args:
        native: The native reader's tracks: `process`, `number`, `process_text`, `number_text`, `on_device`; of the spans of each
            the `first_row` (and behind the last track the number of all), its `first_category`, and the largest `device_index`.
        names: The names in the file.
        categories: The categories of the file.
    """
    processes, numbers = (np.asarray(native[key], np.int64).tolist() for key in ("process", "number"))
    process_texts, number_texts = native["process_text"], native["number_text"]
    on_device = np.asarray(native["on_device"]) != 0
    count = len(processes)
    spans_of = np.diff(native["first_row"])
    devices = [
        index if index >= 0 else process if 0 <= process < _MOST_DEVICES else 0
        for process, index in zip(processes, native["device_index"].tolist(), strict=True)
    ]
    begins_with = native["first_category"].tolist()
    fallback = _type_of_runtime(categories)

    streams: list[tuple[int, int, int, str]] = []
    thread_names: list[str] = []
    stream_of = np.full(count, -1, np.int32)
    for row in range(count):
        key = (processes[row], process_texts[row])
        texts = names.threads.get((*key, numbers[row], number_texts[row]), [])
        if not on_device[row]:
            process_thread = names.threads.get((*key, processes[row], process_texts[row]), [])
            thread_names.append(_thread_name(texts, process_thread, number_texts[row]))
            continue
        begins = begins_with[row]
        kind = _type_of_category(categories[begins]) if begins >= 0 else None
        label = DEVICE_LABEL.fullmatch(names.labels.get(key, ""))
        if kind is None and label is not None and label["type"] != "GPU":
            kind = COLLECTED_DEVICES[label["type"]]
        name = (texts[0].strip() if texts else "") or number_texts[row] or f"stream {numbers[row]}"
        stream_of[row] = len(streams)
        streams.append((fallback if kind is None else kind, devices[row], numbers[row], name))
        thread_names.append(f"{name} of device {devices[row]}")
    return FileTracks(
        on_device,
        {
            "index": range(count),
            "os_tid": numbers,
            "torch_tid": [-1] * count,
            "name": thread_names,
        },
        as_columns(STREAM_COLUMNS, streams),
        stream_of,
        sum(
            int(spans_of[row])
            for row, key in enumerate(zip(processes, process_texts, strict=True))
            if not on_device[row] and names.processes.get(key) == _ASCEND
        ),
    )


def read_names(metadata: Sequence[tuple[str, int, int, str, str, str]]) -> Names:
    """Collect the names, labels and ranks in metadata events."""
    names = Names()
    for event_name, process, number, text, process_text, number_text in metadata:
        key, parsed = (process, process_text), parsed_json(text)
        arguments = parsed if isinstance(parsed, dict) else {}
        name, label = (
            value if isinstance(value := arguments.get(argument), str) else ""
            for argument in ("name", "labels")
        )
        if event_name == "thread_name" and name:
            names.threads.setdefault((*key, number, number_text), []).append(name)
        elif event_name == "process_name":
            names.processes.setdefault(key, name)
        elif event_name == "process_labels":
            names.labels.setdefault(key, label)
        elif event_name == _COMPOSER_RANK:
            rank = arguments.get("value")
            if type(rank) is int and 0 <= rank < _MOST_RANKS:
                names.ranks.setdefault(key, rank)
    return names


def _thread_name(texts: list[str], process_thread: list[str], number_text: str) -> str:
    """The name of a thread: the last one that Kineto wrote, because the first may be the creating thread's."""
    bare = [_bare(name) for name in texts]
    inherited = {_bare(name) for name in process_thread}
    return next((name for name in bare if name not in inherited), bare[0] if bare else number_text)


def _bare(name: str) -> str:
    match = _THREAD_NAME.fullmatch(name)
    return ((match["name"] or "") if match else name).strip()


def _type_of_category(category: str) -> int | None:
    return _DEVICE_TYPES.get(category.partition("_")[0])


def _type_of_runtime(categories: Sequence[str]) -> int:
    types = {
        kind
        for category in categories
        if category.endswith(("_runtime", "_driver")) and (kind := _type_of_category(category)) is not None
    }
    return types.pop() if len(types) == 1 else DeviceType.CUDA
