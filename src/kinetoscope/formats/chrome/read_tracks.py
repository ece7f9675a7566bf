"""Whose the tracks of a Chrome trace are: the threads of which process, or the streams of which device."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.schema import SpanKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


# What the categories of Kineto's events are: the kind of span, and whether it ran on a device.
#
# The names are those of Kineto's activity types, of today and of torch 1.8. Counters and the marks of memory are no spans
# and stand here only where a slice of that category has been seen.

HOST, DEVICE = False, True

CATEGORIES: dict[str, tuple[SpanKind, bool]] = {
    "cpu_op": (SpanKind.OPERATOR, HOST),
    "Operator": (SpanKind.OPERATOR, HOST),
    "user_annotation": (SpanKind.USER_ANNOTATION, HOST),
    "python_function": (SpanKind.PYTHON, HOST),
    "cpu_instant_event": (SpanKind.USER_ANNOTATION, HOST),
    "external_correlation": (SpanKind.USER_ANNOTATION, HOST),
    "overhead": (SpanKind.OVERHEAD, HOST),
    "cuda_runtime": (SpanKind.RUNTIME, HOST),
    "Runtime": (SpanKind.RUNTIME, HOST),
    "xpu_runtime": (SpanKind.RUNTIME, HOST),
    "mtia_runtime": (SpanKind.RUNTIME, HOST),
    "glow_runtime": (SpanKind.RUNTIME, HOST),
    "privateuse1_runtime": (SpanKind.RUNTIME, HOST),
    "cuda_driver": (SpanKind.DRIVER, HOST),
    "Driver": (SpanKind.DRIVER, HOST),
    "xpu_driver": (SpanKind.DRIVER, HOST),
    "privateuse1_driver": (SpanKind.DRIVER, HOST),
    "kernel": (SpanKind.KERNEL, DEVICE),
    "Kernel": (SpanKind.KERNEL, DEVICE),
    "concurrent_kernel": (SpanKind.KERNEL, DEVICE),
    "hpu_op": (SpanKind.KERNEL, DEVICE),
    "mtia_ccp_events": (SpanKind.KERNEL, DEVICE),
    "gpu_memcpy": (SpanKind.MEMCPY, DEVICE),
    "Memcpy": (SpanKind.MEMCPY, DEVICE),
    "gpu_memset": (SpanKind.MEMSET, DEVICE),
    "Memset": (SpanKind.MEMSET, DEVICE),
    "cuda_sync": (SpanKind.SYNC, DEVICE),
    "cuda_event": (SpanKind.SYNC, DEVICE),
    "collective_comm": (SpanKind.COLLECTIVE, DEVICE),
    # Ranges and measurements around what ran on the device: never work of their own.
    "gpu_user_annotation": (SpanKind.USER_ANNOTATION, DEVICE),
    "cuda_profiler_range": (SpanKind.USER_ANNOTATION, DEVICE),
    "xpu_scope_profiler": (SpanKind.USER_ANNOTATION, DEVICE),
    "mtia_insight": (SpanKind.USER_ANNOTATION, DEVICE),
    "mtia_counters": (SpanKind.USER_ANNOTATION, DEVICE),
}
"""Category -> kind, and whether its events are on a device."""

OPERATORS = frozenset(("cpu_op", "Operator"))
CALLS_OF_RUNTIMES = (SpanKind.RUNTIME, SpanKind.DRIVER)
DEVICE_WORK = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET, SpanKind.COLLECTIVE)
"""Kinds of spans on a device that something on the host launched."""

CUDA, XPU, HPU, MTIA, PRIVATE_USE_1 = 1, 12, 15, 19, 20
"""torch's device types; AMD's devices are CUDA, as in torch."""
HIP = 6

DEVICE_TYPES: dict[str, int] = {
    "cuda": CUDA,
    "xpu": XPU,
    "hpu": HPU,
    "mtia": MTIA,
    "privateuse1": PRIVATE_USE_1,
}
"""What categories begin with that only one type of device has, and what torch calls that type."""


# Columns that are made when they are first asked for, from others that are too.


class Later(Mapping[str, Any]):
    """Values by name, each a value or a function that makes it once. May be used from several threads."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take over values, and functions that make them: each whenever it is asked to."""
        self._values = dict(values)
        self._makers = {name: value for name, value in self._values.items() if callable(value)}
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> Any:
        """The value, made now if nobody has asked before."""
        with self._lock:
            value = self._values[name]
            if callable(value):
                value = self._values[name] = value()
            return value

    def __setitem__(self, name: str, value: Any) -> None:
        """Put a value, or a function that makes it, in the place of another."""
        with self._lock:
            self._values[name] = value
            self._makers.pop(name, None)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a value; it is not made for that."""
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._values)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)

    def take(self, name: str) -> Any:
        """The value, which is not kept any longer."""
        value = self[name]
        with self._lock:
            self._values.pop(name, None)
            self._makers.pop(name, None)
        return value

    def rename(self, name: str, new: str) -> None:
        """Call a value or the function that makes it something else."""
        with self._lock:
            self._values[new] = self._values.pop(name)
            if name in self._makers:
                self._makers[new] = self._makers.pop(name)

    def release(self) -> None:
        """Let go of values whose functions, taken over at the beginning, can make them again."""
        with self._lock:
            self._values.update(self._makers)

    def given(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Those of some names that there are: values that are made, and functions for the others."""
        made: dict[str, Any] = {}
        for name in names:
            if name in self._values:
                value: Any = self._values[name]
                wanted: Callable[[], Any] = partial(self._handed_over, name)
                made[name] = wanted if callable(value) else value
        return made

    def _handed_over(self, name: str) -> Any:
        """The value for somebody who keeps it."""
        value = self[name]
        with self._lock:
            self._makers.pop(name, None)
        return value


# How Kineto calls a thread.
_THREAD_NAME = re.compile(r"thread -?\d+(?: \((?P<name>.*)\))?", re.DOTALL)
# What Kineto puts beside a process that is a device.
_DEVICE_LABEL = re.compile(r"(?P<type>GPU|XPU|HPU|MTIA|PrivateUse1) \d+(?: of rank \d+)?")
# What we put there where a trace has several ranks.
_RANK_LABEL = re.compile(r".* of rank (?P<rank>\d{1,9})", re.DOTALL)
# Composer has an event of this name on each rank, whose `value` it is; in a merged file the process is the rank.
_COMPOSER_RANK = "global_rank"
_MOST_RANKS = 10**9
# Kineto's process of a device is the device's index; anything larger is the number of a process.
_MOST_DEVICES = 1024
# Processes that a file names by words get numbers from here on.
_FIRST_MADE_UP = 1 << 40


# What torch_npu calls the process of its device.
_ASCEND = "Ascend Hardware"


@dataclass
class Tracks:
    """The tracks of a file as rows of `threads`, in the order of the native reader.

    Attributes:
        on_device: Which of them are streams of a device.
        process: The number of each one's process; -1 for devices, and where the file has none.
        threads: The columns of the table `threads`.
        streams: The columns of the table `streams`.
        stream_of: For each track its row of `streams`, -1 for those of the host.
        main_process: The process with the most spans on the host, None without any.
        processes: What is known of each process of the host: `process`, `name`, `labels`.
        ascend_spans: How many spans are of an Ascend device, which writes them as if they were of the host.
    """

    on_device: NDArray[np.bool_]
    process: NDArray[np.int64]
    threads: dict[str, Any]
    streams: dict[str, Any]
    stream_of: NDArray[np.int32]
    main_process: int | None
    processes: list[dict[str, Any]]
    ascend_spans: int


@dataclass
class _Names:
    """What the metadata events of a file say, by process and track as the file writes them."""

    threads: dict[tuple[int, str, int, str], list[str]] = field(default_factory=dict)
    processes: dict[tuple[int, str], str] = field(default_factory=dict)
    labels: dict[tuple[int, str], str] = field(default_factory=dict)
    ranks: dict[tuple[int, str], int] = field(default_factory=dict)


def read_tracks(
    native: Mapping[str, Any],
    metadata: Sequence[tuple[str, int, int, str, str, str]],
    thread: NDArray[np.int32],
    categories: Sequence[str],
    spans: Later,
) -> Tracks:
    """Tell threads and streams apart and name them.

    Args:
        native: The reader's tracks: `process`, `number`, `process_text`, `number_text`, `on_device`.
        metadata: The reader's metadata events.
        thread: The track of each span, ascending.
        categories: The categories of the file.
        spans: The columns of the spans; of those that say the device and the category no more is made than is needed.
    """
    names = _named(metadata)
    processes, numbers = (np.asarray(native[key], np.int64).tolist() for key in ("process", "number"))
    process_texts, number_texts = native["process_text"], native["number_text"]
    on_device = np.asarray(native["on_device"]) != 0
    count = len(processes)
    first = np.searchsorted(thread, np.arange(count + 1))
    spans_of = np.diff(first)
    made_up = _made_up_numbers(processes, process_texts)
    process_of = np.array(
        [
            made_up.get(text, number) if not device else -1
            for number, text, device in zip(processes, process_texts, on_device.tolist(), strict=True)
        ],
        np.int64,
    )
    main = _main_process(process_of, spans_of, on_device)
    device_index = spans.take("device_index") if "device_index" in spans else None
    devices = _device_indices(processes, first, device_index)
    del device_index
    category = spans["category"] if on_device.any() else np.zeros(0, np.int32)
    fallback = _type_of_runtime(categories)

    streams: dict[str, list[Any]] = {"device_type": [], "device_index": [], "number": [], "name": []}
    thread_names: list[str] = []
    stream_of = np.full(count, -1, np.int32)
    for row in range(count):
        key = (processes[row], process_texts[row])
        given = names.threads.get((*key, numbers[row], number_texts[row]), [])
        if not on_device[row]:
            in_charge = names.threads.get((*key, processes[row], process_texts[row]), [])
            thread_names.append(_thread_name(given, in_charge, number_texts[row]))
            continue
        begins = int(category[first[row]]) if spans_of[row] else -1
        kind = _type_of_category(categories[begins]) if begins >= 0 else None
        label = _DEVICE_LABEL.fullmatch(names.labels.get(key, ""))
        if kind is None and label is not None and label["type"] != "GPU":
            kind = DEVICE_TYPES[label["type"].lower()]
        name = (given[0].strip() if given else "") or number_texts[row] or f"stream {numbers[row]}"
        stream_of[row] = len(streams["name"])
        streams["device_type"].append(fallback if kind is None else kind)
        streams["device_index"].append(devices[row])
        streams["number"].append(numbers[row])
        streams["name"].append(name)
        thread_names.append(f"{name} of device {devices[row]}")
    ranks = _ranks(names, list(zip(processes, process_texts, strict=True)))
    return Tracks(
        on_device,
        process_of,
        {
            "index": np.arange(count, dtype=np.int32),
            "os_tid": np.array(numbers, np.int64),
            "torch_tid": np.full(count, -1, np.int64),
            "name": thread_names,
            "process": np.where(process_of == (-1 if main is None else main), -1, process_of),
            **({"rank": ranks} if (ranks >= 0).any() else {}),
        },
        {
            "device_type": np.array(streams["device_type"], np.uint8),
            "device_index": np.array(streams["device_index"], np.int32),
            "number": np.array(streams["number"], np.int64),
            "name": streams["name"],
        },
        stream_of,
        main,
        _described(names, processes, process_texts, process_of, on_device),
        sum(
            int(spans_of[row])
            for row, key in enumerate(zip(processes, process_texts, strict=True))
            if not on_device[row] and names.processes.get(key) == _ASCEND
        ),
    )


def _ranks(names: _Names, keys: list[tuple[int, str]]) -> NDArray[np.int32]:
    """The rank of the process of each track, -1 where neither its label nor an event of Composer's says one."""
    said = [_RANK_LABEL.fullmatch(names.labels.get(key, "")) for key in keys]
    ranks = [
        names.ranks.get(key, -1) if label is None else int(label["rank"])
        for key, label in zip(keys, said, strict=True)
    ]
    return np.array(ranks, np.int32)


def tell_processes(info: dict[str, Any], tracks: Tracks) -> None:
    """Put into what is known about the run which process the trace is of, and which others are in it."""
    if tracks.main_process is not None:
        info["process"] = tracks.main_process
    else:
        info.pop("process", None)
    if len(tracks.processes) > 1:
        info["processes"] = tracks.processes
    elif tracks.processes and tracks.processes[0]["name"]:
        info.setdefault("process_name", tracks.processes[0]["name"])
    ranks = np.unique(tracks.threads["rank"]) if "rank" in tracks.threads else np.zeros(0, np.int32)
    if len(tracks.processes) == 1 and len(ranks) == 1:
        info.setdefault("rank", int(ranks[0]))


def _named(metadata: Sequence[tuple[str, int, int, str, str, str]]) -> _Names:
    """Sort the metadata events by what they name."""
    names = _Names()
    for what, process, number, text, process_text, number_text in metadata:
        key = (process, process_text)
        if what == "thread_name":
            said = _said(text, "name")
            if said:
                names.threads.setdefault((*key, number, number_text), []).append(said)
        elif what == "process_name":
            names.processes.setdefault(key, _said(text, "name"))
        elif what == "process_labels":
            names.labels.setdefault(key, _said(text, "labels"))
        elif what == _COMPOSER_RANK and (rank := _number(text)) is not None:
            names.ranks.setdefault(key, rank)
    return names


def _argument(text: str, key: str) -> Any:
    """An argument of a metadata event, None without."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found.get(key) if isinstance(found, dict) else None


def _said(text: str, key: str) -> str:
    """A text among the arguments of a metadata event, empty without."""
    value = _argument(text, key)
    return value if isinstance(value, str) else ""


def _number(text: str) -> int | None:
    """The value of a metadata event that has a small number, None without."""
    value = _argument(text, "value")
    return value if type(value) is int and 0 <= value < _MOST_RANKS else None


def _thread_name(given: list[str], in_charge: list[str], number_text: str) -> str:
    """What a thread is called.

    Kineto names a thread again when it has changed its name, and may begin with the name of the thread that made it.
    """
    shown = [_bare(name) for name in given]
    inherited = {_bare(name) for name in in_charge}
    return next((name for name in shown if name not in inherited), shown[0] if shown else number_text)


def _bare(name: str) -> str:
    """The name of a thread without what Kineto puts around it."""
    found = _THREAD_NAME.fullmatch(name)
    return ((found["name"] or "") if found else name).strip()


def _made_up_numbers(processes: list[int], texts: list[str]) -> dict[str, int]:
    """Numbers for processes that have words in their place; those without words keep theirs."""
    taken = set(processes)
    made: dict[str, int] = {}
    following = _FIRST_MADE_UP
    for text in texts:
        if text and text not in made:
            while following in taken:
                following += 1
            made[text] = following
            following += 1
    return made


def _main_process(
    process_of: NDArray[np.int64], spans_of: NDArray[np.int64], on_device: NDArray[np.bool_]
) -> int | None:
    """The process of the host with the most spans."""
    counted: Counter[int] = Counter()
    for process, spans, device in zip(
        process_of.tolist(), spans_of.tolist(), on_device.tolist(), strict=True
    ):
        if not device and process >= 0:
            counted[process] += spans
    return counted.most_common(1)[0][0] if counted else None


def _device_indices(
    processes: list[int], first: NDArray[np.int64], device_index: NDArray[Any] | None
) -> list[int]:
    """The device of each track: what its spans say, or else the number of its process, which is it in Kineto's files."""
    found = [process if 0 <= process < _MOST_DEVICES else 0 for process in processes]
    if device_index is not None and len(device_index):
        held = np.flatnonzero(np.diff(first) > 0)
        largest = np.maximum.reduceat(device_index, first[:-1][held])
        for row, index in zip(held.tolist(), largest.tolist(), strict=True):
            if index >= 0:
                found[row] = index
    return found


def _type_of_category(category: str) -> int | None:
    """The device type that alone has spans of a category; None where several have."""
    begin = category.partition("_")[0]
    return DEVICE_TYPES.get(begin)


def _type_of_runtime(categories: Sequence[str]) -> int:
    """The device type whose runtime a file has calls of: CUDA's where it has none, or several."""
    types = {
        kind
        for category in categories
        if category.endswith(("_runtime", "_driver")) and (kind := _type_of_category(category)) is not None
    }
    return types.pop() if len(types) == 1 else CUDA


def _described(
    names: _Names,
    processes: list[int],
    texts: list[str],
    process_of: NDArray[np.int64],
    on_device: NDArray[np.bool_],
) -> list[dict[str, Any]]:
    """The processes of the host, each once."""
    found: dict[int, dict[str, Any]] = {}
    for row in np.flatnonzero(~on_device & (process_of >= 0)).tolist():
        key = (processes[row], texts[row])
        number = int(process_of[row])
        if number not in found:
            found[number] = {"process": number, "name": names.processes.get(key) or texts[row]}
            if labels := names.labels.get(key):
                found[number]["labels"] = labels
    return list(found.values())
