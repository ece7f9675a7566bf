"""Read Chrome's trace event format, as Kineto (torch.profiler) and many other tools write it.

`_core.ChromeReader` reads the text as a stream and returns columns, from which this module builds a trace. Some facts have
to be inferred from what torch writes:

- A backward function identifies the thread of its forward operator by torch's own thread number (`Fwd thread id` above 0),
  and the engine's wrapper around it has the same name after `autograd::engine::evaluate_function: `.
- A kernel has the `correlation` of the call that launched it and the `External id` of the operator;
  `kinetoscope.formats.chrome.read_links` turns these into launches.
- Slices of `gpu_user_annotation` repeat host ranges on a stream. They are neither work nor steps.

A kernel without a launch is not a loss: it was launched before the recording started. Nor is a launch without a kernel.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope._errors import FormatError
from kinetoscope.formats.chrome.read_links import (
    FORWARD_BACKWARD,
    Backward,
    FlowArrows,
    find_launches,
    link_forward,
    name_threads,
    pair_arrows,
)
from kinetoscope.formats.chrome.read_processes import (
    FileProcess,
    add_process_info,
    header_of_process,
    host_processes,
    split,
)
from kinetoscope.formats.chrome.read_tracks import (
    CATEGORIES,
    OPERATORS,
    OWN,
    LazyColumns,
    Names,
    made,
    read_names,
    read_tracks,
)
from kinetoscope.model.losses import Loss, counted_losses, loss_columns, losses_of
from kinetoscope.model.names import device_name
from kinetoscope.model.nesting import nest, spread_down
from kinetoscope.model.processes import Placement
from kinetoscope.model.rows import Mask, Rows, as_columns
from kinetoscope.model.schema import (
    ENGINE_WRAPPER,
    FLAG_ASYNC,
    FLAG_BEGUN_BEFORE,
    FLAG_UNFINISHED,
    SCOPE_BACKWARD,
    SCOPE_MODULE,
    SCOPE_PYTHON,
    SCOPE_USER,
    STORED,
    TRANSFER_MARKS,
    DeviceType,
    SpanKind,
)
from kinetoscope.model.steps import MARK as STEP_MARK
from kinetoscope.model.strings import StringTable, parsed_json
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.byte_source import ByteSource
from kinetoscope.storage.unpacking import LIMIT_IN_WORDS, UnpackedText, default_memory_bytes

Tables = dict[str, dict[str, Any]]
Native = dict[str, Any]
Progress = Callable[[int, int | None, int], object]


# Files of torch before 2.4 have Unix times. Times of other clocks are far smaller.
_YEAR_2001_NS = 10**18
_YEAR_2100_NS = 41 * 10**17
_CYCLE = re.compile(r"PyTorch Profiler \((?P<number>\d{1,18})\)")
# Keys that a trace stores elsewhere, or that exist only for viewers.
_OMITTED_KEYS = {
    "stackFrames",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "losses",
    "stop_ns",
    "start_realtime_ns",
}

NOT_RECORDED = "not_recorded"
"""The metadata key that lists what the source file lacks, so that no export adds it.

The list has names of event arguments, `cat` for categories, and `WINDOW`.
"""
WINDOW = "Record Window End"
"""The last event of Kineto's files; in that list it represents all events about the recorded window."""


def read_info(
    header: Mapping[str, Any], base_ns: int, stop_ns: int, device_types: Sequence[int]
) -> dict[str, Any]:
    """Return the metadata of the run, as in `Trace.info`.

    Args:
        header: The values of the other keys of the file.
        base_ns: The earliest time in the file, in nanoseconds of its clock.
        stop_ns: The latest time, in nanoseconds from the earliest.
        device_types: The types of the devices that have streams.
    """
    info: dict[str, Any] = {key: value for key, value in header.items() if key not in _OMITTED_KEYS}
    info["stop_ns"] = stop_ns
    since = header.get("baseTimeNanoseconds")
    if type(since) is int and 0 <= since < 2**62:
        if since or "start_realtime_ns" not in header:
            info["start_realtime_ns"] = since + base_ns
    elif _YEAR_2001_NS <= base_ns < _YEAR_2100_NS:
        info["start_realtime_ns"] = base_ns
    if "host" not in info and isinstance(host := header.get("host_name"), str):
        info["host"] = host
    if "devices" not in info and (devices := _devices(header.get("deviceProperties"), device_types)):
        info["devices"] = devices
    complete = info.get("complete")
    info["complete"] = complete if isinstance(complete, bool) else True
    return info


def not_recorded(
    windows: Sequence[tuple[str, int, int, int]],
    categories: Collection[str],
    spans: Container[str],
    allocations: Mapping[str, Any] | None,
) -> list[str]:
    """Return what a file lacks that exports would otherwise write, for `NOT_RECORDED`.

    Args:
        windows: The events about the recorded window.
        categories: The categories of events; empty for events without one.
        spans: The names of the columns of spans.
        allocations: The columns of the memory events, or functions that make them; None without any.
    """
    lacking = [] if any(name == WINDOW for name, *_ in windows) else [WINDOW]
    if "" in categories:
        lacking.append("cat")
    if "external_id" not in spans:
        lacking.append("External id")
    if allocations is not None:
        for key, column in (("Total Allocated", "allocated_bytes"), ("Total Reserved", "reserved_bytes")):
            if column not in allocations or (made(allocations[column]) < 0).any():
                lacking.append(key)
        if not made(allocations["address"]).any():
            lacking.append("Addr")
    return lacking


def implausible_durations(native: Native, strings: Sequence[str]) -> list[Loss]:
    """Return a loss that names the spans whose durations are implausible; it empties the native reader's count."""
    count = native["losses"].pop("implausible_durations", 0)
    names = sorted({strings[row] for row in native["implausible"]}) if count else []
    examples = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [Loss.of("implausible_durations", count, where=f"spans: {examples}")] if names else []


def read_losses(
    header: Mapping[str, Any], counted: Mapping[str, int], more: Sequence[Loss] = ()
) -> dict[str, list[Any]]:
    """Return the table `losses`: losses while reading, and those that the file lists."""
    losses = [
        replace(loss, why=LIMIT_IN_WORDS) if loss.code == "beyond_unpacking_limit" else loss
        for loss in counted_losses(counted)
    ]
    losses += more
    listed = header.get("losses")
    for loss in listed if isinstance(listed, list) else []:
        if isinstance(loss, dict) and isinstance(loss.get("what"), str):
            times = loss.get("count")
            count = times if type(times) is int and 0 <= times < 2**62 else 1
            where, why, code = (str(loss.get(name, "")) for name in ("where", "why", "code"))
            losses.append(Loss(loss["what"], count, where, why, code))
    return loss_columns(losses)


def read_cycles(windows: Sequence[tuple[str, int, int, int]], stop_ns: int) -> dict[str, list[int]]:
    """Return the table `cycles`: Kineto's recorded windows, or else one cycle for the whole file."""
    recorded = {
        (start_ns, max(0, duration_ns), int(name["number"]))
        for text, start_ns, duration_ns, _ in windows
        if (name := _CYCLE.fullmatch(text)) is not None
    }
    return as_columns(("start_ns", "duration_ns", "number"), sorted(recorded) or [(0, stop_ns, 0)])


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def _devices(properties: object, device_types: Sequence[int]) -> list[dict[str, Any]]:
    kind = device_name(device_types[0] if device_types else DeviceType.CUDA, -1)
    return [
        {"type": kind, "index": entry["id"], "name": entry["name"]}
        for entry in (properties if isinstance(properties, list) else [])
        if isinstance(entry, dict)
        and type(entry.get("id")) is int
        and isinstance(entry.get("name"), str)
        and entry["name"]
    ]


MODULE_MARK = "nn.Module: "
_FRAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
_LAST_LINE = 2**31 - 1
_FRAME_COLUMNS = ("function", "file", "line")


def tables_of_functions(
    strings: StringTable, stacks: Mapping[str, Any] | None, modules: Mapping[str, Any] | None
) -> Tables:
    """Return the tables `stacks`, `frames` and `modules` for python_function events, without reordering rows.

    Args:
        strings: The string table of the trace, which grows.
        stacks: The native reader's stacks: `parent`, and the `name` of the innermost frame, parents first.
        modules: The native reader's modules: `name` and `caller`, callers first.
    """
    tables: Tables = {}
    rows, row_of = strings.texts, strings.row
    if stacks is not None:
        names, inverse = np.unique(stacks["name"], return_inverse=True)
        frame_rows: dict[tuple[int, int, int], int] = {}
        keys = [_frame(strings, rows[name]) for name in names.tolist()]
        frames = np.array([frame_rows.setdefault(key, len(frame_rows)) for key in keys], np.int32)
        tables["stacks"] = {"parent": stacks["parent"], "frame": frames[inverse.reshape(-1)]}
        tables["frames"] = as_columns(_FRAME_COLUMNS, frame_rows)
    if modules is not None:
        called = [rows[name].removeprefix(MODULE_MARK) for name in np.asarray(modules["name"]).tolist()]
        tables["modules"] = {
            "class": [row_of(name.rpartition("_")[0] or name) for name in called],
            # torch does not write the attribute's name, but it numbers the instances of a class.
            "name": list(map(row_of, called)),
            "caller": modules["caller"],
        }
    return tables


def tables_of_texts(
    strings: StringTable, texts: Sequence[Sequence[str]]
) -> tuple[Tables, NDArray[np.int32], NDArray[np.int32]]:
    """Return the tables for the "Call stack" texts of torch 1.8 to 1.13, and for rows of Chrome's `stackFrames`.

    Args:
        strings: The string table of the trace, which grows.
        texts: The frames of each distinct text, innermost first.

    Returns:
        The tables, and the stack and innermost module of each text, followed by -1 for spans without a text.
    """
    stack_rows = np.full(len(texts) + 1, -1, np.int32)
    module_rows = np.full(len(texts) + 1, -1, np.int32)
    stacks: dict[tuple[int, int], int] = {}
    modules: dict[int, tuple[int, int]] = {}
    for row, text in enumerate(texts):
        stack = module = -1
        for frame in filter(None, reversed(text)):
            name = strings.row(frame)
            if frame.startswith(MODULE_MARK):
                # An instance has one row, with its first caller.
                module = modules.setdefault(name, (len(modules), module))[0]
            else:
                stack = stacks.setdefault((stack, name), len(stacks))
        stack_rows[row], module_rows[row] = stack, module
    calls = [(name, caller) for name, (_, caller) in modules.items()]
    tables = tables_of_functions(
        strings, as_columns(("parent", "name"), stacks), as_columns(("name", "caller"), calls)
    )
    return tables, stack_rows, module_rows


def _frame(strings: StringTable, text: str) -> tuple[int, int, int]:
    """Return the function, file and line of a frame, which torch writes as `file(line): function`; other text is a function name."""
    if (parts := _FRAME.fullmatch(text)) is None:
        return strings.row(text), 0, 0
    digits = parts["line"].lstrip("0")
    # torch reads some frames after they were freed, and then writes arbitrary line numbers.
    line = int(digits) if 0 < len(digits) <= len(str(_LAST_LINE)) else 0
    function, file = strings.row(parts["function"]), strings.row(parts["file"])
    return function, file, line if line <= _LAST_LINE else 0


# How the native reader marks the id of a frame in Chrome's table `stackFrames` among call stacks.
_FRAME_ID = "\x1f"


def _frames_of(text: str, table: object) -> list[str]:
    if not text.startswith(_FRAME_ID):
        return text.split(";")
    names: list[str] = []
    passed: set[str] = set()
    key = text.removeprefix(_FRAME_ID)
    while isinstance(table, dict) and key not in passed and isinstance(entry := table.get(key), dict):
        passed.add(key)
        names.append(str(entry.get("name", "")))
        key = str(entry.get("parent", ""))
    return names


# What the beginning of a name, or the whole of it, says about the kind of a span.
_KIND_OF_NAME = re.compile(
    "|".join(
        f"(?P<{name}>{pattern})"
        for name, pattern in {
            "WRAPPER": re.escape(ENGINE_WRAPPER),
            SpanKind.STEP.name: re.escape(STEP_MARK),
            SpanKind.COLLECTIVE.name: "|".join(map(re.escape, TRANSFER_MARKS)),
            SpanKind.MODULE.name: re.escape(MODULE_MARK),
            # Ranges that torch itself adds. Releases before 1.9 wrote them as operators.
            SpanKind.USER_ANNOTATION.name: r"Optimizer\.step#|Optimizer\.zero_grad#|enumerate\(DataLoader\)#",
            # Of MTIA devices.
            SpanKind.MEMCPY.name: r"dma_request\Z",
            SpanKind.SYNC.name: r"event_wait\Z",
            # Generated backward functions, and those that accumulate gradients.
            SpanKind.BACKWARD.name: r"(?:[A-Za-z_]\w*Backward\d+|torch::autograd::\w+)\Z",
        }.items()
    )
)
_WRAPPER, _NO_KIND = 254, 255


def kinds_of_names(strings: Sequence[str]) -> NDArray[np.uint8]:
    """Return the kind that each string says a span of this name has, `_WRAPPER` for autograd's, `_NO_KIND` without.

    A backward function is recognized by the autograd wrapper with the same name; without wrappers, as in torch 1.8, by its
    own name.
    """
    kinds = np.full(len(strings), _NO_KIND, np.uint8)
    wrapped = {text.removeprefix(ENGINE_WRAPPER) for text in strings if text.startswith(ENGINE_WRAPPER)}
    for row, text in enumerate(strings):
        if (match := _KIND_OF_NAME.match(text)) is not None:
            name = str(match.lastgroup)
            kinds[row] = _WRAPPER if name == "WRAPPER" else SpanKind[name]
        elif text in wrapped:
            kinds[row] = SpanKind.BACKWARD
    return kinds


# torch before 1.10 wrote the sizes of allocations and frees but no addresses. There, a free is matched with the youngest
# live block of its size on its device, and both get an invented address. So the live bytes are always right, but which of
# several equal blocks was freed is a guess. A free without a match is of a block from before the recording.


def with_addresses(allocations: Mapping[str, Any]) -> NDArray[np.uint64]:
    """Invent addresses for allocations and frees without one.

    Args:
        allocations: The columns of the table, sorted by time.

    Returns:
        The column `address`.
    """
    address: NDArray[np.uint64] = allocations["address"]
    allocated, freed = allocations["bytes"], allocations["freed_bytes"]
    rows = np.flatnonzero((address == 0) & ((allocated > 0) | (freed > 0)))
    if len(rows) == 0:
        return address
    is_free = allocated[rows] == 0
    size = np.where(is_free, freed[rows], allocated[rows])
    kind, index = (allocations[name][rows] for name in ("device_type", "device_index"))
    unused = int(address.max()) + 1
    if unused > 2**48 - len(rows):
        unused = 1
    live: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    numbers: list[int] = []
    for frees, *key in zip(is_free.tolist(), kind.tolist(), index.tolist(), size.tolist(), strict=True):
        blocks = live[tuple(key)]
        if frees and blocks:
            numbers.append(blocks.pop())
            continue
        numbers.append(unused)
        if not frees:
            blocks.append(unused)
        unused += 1
    new_addresses = address.copy()
    new_addresses[rows] = numbers
    return new_addresses


# torch writes name, group, sizes, data type and peer of a collective as arguments of `record_param_comms` and, in newer
# releases, of its kernels. Keys: names in the table `collectives`; values: torch's names.

_MARK = '"Collective name"'
_TEXTS = {
    "call": "Collective name",
    "group": "Process Group Name",
    "description": "Process Group Description",
    "type": "dtype",
    "ranks": "Process Group Ranks",
}
_NUMBERS = {
    "rank": "Rank",
    "size": "Group size",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "sequence": "Seq",
}
_LISTS = {"in_splits": "In split size", "out_splits": "Out split size"}
_PEERS = ("Dst Rank", "Src Rank")


def facts_of_arguments(texts: Sequence[str], strings: StringTable) -> NDArray[np.int32] | None:
    """Extract the facts about collectives from arguments of spans.

    Args:
        texts: The arguments as JSON.
        strings: The string table; the facts are added to it.

    Returns:
        For each text the row of its facts in `strings`, -1 without facts, followed by -1 for spans without arguments.
        None if no text has any.
    """
    facts = np.full(len(texts) + 1, -1, np.int32)
    for row, text in enumerate(texts):
        if _MARK in text and (collective := _facts(text)):
            facts[row] = strings.row(json.dumps(collective))
    return facts if (facts >= 0).any() else None


def read_collectives(arguments: NDArray[np.int32], facts: NDArray[np.int32]) -> dict[str, NDArray[np.int32]]:
    """Return the table `collectives`, from each span's row of arguments and the result of `facts_of_arguments`."""
    spans = np.flatnonzero(facts[arguments] >= 0)
    return {"span": spans.astype(np.int32), "facts": facts[arguments[spans]]}


def _facts(text: str) -> dict[str, Any]:
    arguments = parsed_json(text)
    if not isinstance(arguments, dict) or not isinstance(arguments.get("Collective name"), str):
        return {}
    from kinetoscope.tables.device.collective_facts import type_named

    facts: dict[str, Any] = {
        name: arguments[key] for name, key in _TEXTS.items() if isinstance(arguments.get(key), str)
    }
    facts |= {name: arguments[key] for name, key in _NUMBERS.items() if type(arguments.get(key)) is int}
    if (item_bytes := type_named(facts.get("type", ""))[1]) > 0:
        facts["item_bytes"] = item_bytes
    for name, key in _LISTS.items():
        if values := _list(arguments.get(key)):
            facts[name] = values
    for key in _PEERS:
        if type(arguments.get(key)) is int:
            facts["peer"] = arguments[key]
    return facts


def _list(value: object) -> list[Any]:
    if isinstance(value, str):
        value = parsed_json(value)
    return value if isinstance(value, list) else []


# Files that Kinetoscope wrote have the module and the flags of a span among its arguments, so that viewers show them. Here
# they become columns again. The header of such a file has the modules and cycles, see `kinetoscope.formats.chrome.write`.

_FLAGS = {"Unfinished": FLAG_UNFINISHED, "Begun before": FLAG_BEGUN_BEFORE, "Asynchronous": FLAG_ASYNC}
_MODULE, _MODULE_CLASS, _MODULE_ROW = "Module", "Module class", "Module row"
_TIMES = (("spans", "start_ns"), ("allocations", "time_ns"), ("counters", "time_ns"), ("flows", "time_ns"))
_KEYS = (*_FLAGS, _MODULE, _MODULE_CLASS, _MODULE_ROW)


def restore_own_times(header: Mapping[str, Any], native: MutableMapping[str, Any]) -> None:
    """In a file that Kinetoscope wrote, make times relative to the start of the trace instead of the first event.

    Args:
        header: The header of the file.
        native: The native reader's result, with times relative to its `base_ns`; changed in place.
    """
    base_ns = native["base_ns"]
    if not isinstance(header.get(OWN), dict) or base_ns == 0:
        return
    native["base_ns"] = 0
    native["last_ns"] += base_ns
    for table, column in _TIMES:
        if table in native and column in native[table]:
            native[table][column] = _later_by(native[table][column], base_ns)
    native["windows"] = [(name, start_ns + base_ns, *more) for name, start_ns, *more in native["windows"]]


def _later_by(times_ns: Any, base_ns: int) -> Any:
    return (lambda: times_ns() + base_ns) if callable(times_ns) else times_ns + base_ns


def _end_ns(header: Mapping[str, Any], last_ns: int) -> int:
    """The end of the recording: from the header, if Kinetoscope wrote the file, else the file's last time."""
    stop_ns = header.get("stop_ns") if isinstance(header.get(OWN), dict) else None
    return stop_ns if isinstance(stop_ns, int) and last_ns < stop_ns < 2**62 else last_ns


def restore_own_columns(
    header: MutableMapping[str, Any], tables: dict[str, Any], strings: StringTable
) -> None:
    """Convert the additional facts in a file that Kinetoscope wrote to columns; do nothing for other files.

    Args:
        header: The header of the file; Kinetoscope's own key is removed.
        tables: The columns of all tables; changed in place.
        strings: The string table; names of modules are added.
    """
    if not isinstance(file_facts := header.pop(OWN, None), dict):
        return
    spans = tables["spans"]
    if "own_stack" in spans and "call_texts" in file_facts:
        # A slice has a stack only if it differs from its parent's.
        nested = nest(spans["thread"], spans["start_ns"], spans["duration_ns"])
        spans["own_stack"] = spread_down(nested.parent, nested.depth, spans["own_stack"], -1)
    if (cycles := _cycles(file_facts.get("cycles"))) is not None:
        tables["cycles"] = cycles
    paths = _modules(file_facts.get("modules"), tables, strings)
    if "arguments" not in spans:
        return
    module_count = len(tables["modules"]["class"]) if paths else 0
    row_of_text: dict[str, int] = {}
    texts = made(tables["arguments"]["json"])
    split = [_split_arguments(text, paths, module_count, row_of_text) for text in texts]
    flags, modules, rows = np.array([*split, (0, -1, -1)], np.int32).T
    column = spans["arguments"]
    if flags.any():
        spans["flags"] = spans["flags"] | flags[column].astype(np.uint8)
    if paths:
        spans["own_module"] = modules[column]
    spans["arguments"] = rows[column]
    tables["arguments"] = {"json": list(row_of_text)}


def _split_arguments(
    text: str, paths: Mapping[str, int], module_count: int, row_of_text: dict[str, int]
) -> tuple[int, int, int]:
    """Flags, module and remaining row of a span's arguments; the rest is added to the table, -1 if nothing remains."""
    flags, module = 0, -1
    if any(f'"{key}":' in text for key in _KEYS):
        arguments = json.loads(text)
        for key, flag in _FLAGS.items():
            flags |= flag if arguments.pop(key, None) is True else 0
        path, row = arguments.pop(_MODULE, None), arguments.pop(_MODULE_ROW, None)
        arguments.pop(_MODULE_CLASS, None)
        module = paths.get(path, -1) if isinstance(path, str) else -1
        if type(row) is int and 0 <= row < module_count:
            module = row
        text = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False) if arguments else ""
    return flags, module, row_of_text.setdefault(text, len(row_of_text)) if text else -1


def _modules(listed: object, tables: dict[str, Any], strings: StringTable) -> dict[str, int]:
    """Build the table `modules` from the header; return the first row of each path."""
    if not isinstance(listed, dict):
        return {}
    names, classes, paths = (_texts(listed.get(key)) for key in ("name", "class", "path"))
    rows = len(paths)
    parents, callers = (_whole_numbers(listed.get(key), -1, rows) for key in ("parent", "caller"))
    if not len(names) == len(classes) == len(parents) == len(callers) == rows:
        return {}
    tables["modules"] = {
        "parent": parents,
        "name": list(map(strings.row, names)),
        "class": list(map(strings.row, classes)),
        "caller": callers,
    }
    return {path: row for row, path in reversed(list(enumerate(paths)))}


def _cycles(listed: object) -> dict[str, list[int]] | None:
    names = STORED["cycles"].column_names
    if not isinstance(listed, dict):
        return None
    columns = {name: _whole_numbers(listed.get(name), 1 - 2**62, 2**62) for name in names}
    lengths = {len(column) for column in columns.values()}
    return columns if len(lengths) == 1 and 0 not in lengths else None


def cycles_of_processes(header: Mapping[str, Any], pids: Sequence[int]) -> dict[str, list[int]] | None:
    """Return the table `cycles` of a file of several processes that Kinetoscope wrote; None for other files.

    Args:
        header: The header of the file.
        pids: The number of each process in the file.
    """
    file_facts = header.get(OWN)
    listed = file_facts.get("cycles") if isinstance(file_facts, dict) else None
    cycles = _cycles(listed)
    whose = listed.get("pid") if isinstance(listed, dict) else None
    if cycles is None or not isinstance(whose, list) or len(whose) != len(cycles["number"]):
        return None
    row_of = {pid: row for row, pid in enumerate(pids)}
    return cycles | {"process_row": [row_of.get(pid, -1) if type(pid) is int else -1 for pid in whose]}


def _texts(value: object) -> Sequence[str]:
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else []


def _whole_numbers(value: object, least: int, end: int) -> list[int]:
    numbers = value if isinstance(value, list) else []
    return numbers if all(type(number) is int and least <= number < end for number in numbers) else []


_SPAN_COLUMNS = (
    "thread", "start_ns", "duration_ns", "name", "kind", "flags", "scope", "category", "correlation", "external_id",
    "sequence", "shapes", "arguments", "record_function", "event_index", "stream", "own_stack", "own_module", "forward_thread", "forward",
)  # fmt: skip
# The native reader's results that show that a file is a trace.
_CONTENTS = ("spans", "allocations", "counters", "flows", "metadata", "windows")


def read_chrome_trace(
    source: UnpackedText | str | os.PathLike[str] | IO[bytes],
    *,
    max_memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> TraceData:
    """Read a trace in Chrome's trace event format, optionally compressed.

    Args:
        source: Anything that `kinetoscope.open` accepts, or its decompressed text.
        max_memory_bytes: See `kinetoscope.open`.
        progress: See `kinetoscope.open`.

    Returns:
        The trace; unusable and dropped parts of the file are rows of `losses`.

    Raises:
        FormatError: The text is not a trace.
        OSError: The file cannot be read.
    """
    if not isinstance(source, UnpackedText):
        with ByteSource.of(source) as opened, closing(UnpackedText(opened)) as text:
            return read_chrome_trace(text, max_memory_bytes=max_memory_bytes, progress=progress)
    limit = default_memory_bytes() if max_memory_bytes is None else max_memory_bytes
    native = _parsed(source, limit, progress)
    native["losses"] = {**native["losses"], **source.losses}
    trace = made_trace(native)
    trace.path = source.source.path
    if source.source.path is None:
        trace.info["source"] = source.source.name
    return trace


def _parsed(text: UnpackedText, max_memory_bytes: int, progress: Progress | None) -> Native:
    reader = new_reader(max_memory_bytes)
    source = text.source
    reported_bytes = 0
    for block in text:
        with _format_errors(text):
            reader.feed(block)
        if progress is not None:
            reported_bytes = source.read_bytes
            progress(reported_bytes, source.total_bytes, reader.events)
    # The end of a compressed file may be read after its last block was returned.
    if progress is not None and reported_bytes != source.read_bytes:
        progress(source.read_bytes, source.total_bytes, reader.events)
    with _format_errors(text):
        native = reader.finish(later=True)
        unusable = sum(
            native["losses"][name] for name in ("bad_events", "bad_times", "too_deep", "ignored_events")
        )
        rows = native["rows"]
        if unusable and not any(rows[name] if name in rows else len(native[name]) for name in _CONTENTS):
            if native["losses"]["bad_times"] == unusable:
                raise ValueError(
                    f"none of its {unusable:,} events has a usable time: `ts` is to be microseconds, from 0 or since 1970"
                )
            raise ValueError(f"valid JSON, but none of its {unusable:,} values is a trace event")
        return native


@contextmanager
def _format_errors(text: UnpackedText) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        hint = "" if not text.losses else "; also, the compressed file is damaged or exceeds the size limit"
        raise FormatError(f"{text.source.name}: {error}{hint}") from error


def new_reader(max_memory_bytes: int = 0) -> _core.ChromeReader:
    """Return a native reader for Kineto's categories, whose result `made_trace` accepts.

    Args:
        max_memory_bytes: The most memory for its columns and texts; 0 for no limit.
    """
    return _core.ChromeReader(
        list(CATEGORIES),
        [int(kind) for kind, _ in CATEGORIES.values()],
        [on_device for _, on_device in CATEGORIES.values()],
        max_memory_bytes,
    )


def made_trace(native: Native) -> TraceData:
    """Build a trace from the native reader's result.

    Args:
        native: The result of `_core.ChromeReader.finish`; it is emptied, so that no column is held twice.
    """
    header = {key: _value(text) for key, text in native.pop("header", ())}
    restore_own_times(header, native)
    names = read_names(native.get("metadata", ()))
    processes = host_processes(native, names)
    if len(processes) < 2:
        return _Builder(native, header, names, processes[0] if processes else None).trace()
    from kinetoscope.combine.processes import merge_processes

    parts, unsure = split(native, names, processes, shares_axis=OWN in header)
    traces = []
    for part, process in zip(parts, processes, strict=True):
        traces.append(_Builder(part, header_of_process(header, process), names, process).trace())
    # Except in our own files, nothing says whether somebody aligned the clocks of the processes.
    placements = [
        Placement(part["base_ns"] - native["base_ns"], error_ns=-1 if index and OWN not in header else 0)
        for index, part in enumerate(parts)
    ]
    merged = merge_processes(traces, placements)
    tables = merged.recorded_columns()
    listed = implausible_durations(native, native["strings"]) + losses_of(merged.columns("losses"))
    if (cycles := cycles_of_processes(header, [process.key[0] for process in processes])) is not None:
        tables["cycles"] = cycles
    tables["losses"] = read_losses(header, {**native["losses"], "unsure_processes": unsure}, listed)
    return TraceData.from_columns(tables, strings=merged.strings, info=merged.info)


class _Builder:
    """Builds a trace from the native reader's columns.

    Columns that have to be computed are computed when they are first used, so that opening a file of many million events
    takes no longer than reading it.
    """

    def __init__(
        self, native: Native, header: dict[str, Any], names: Names, process: FileProcess | None
    ) -> None:
        self.native = native
        self.header = header
        self.names = names
        self.process = process
        self.spans = LazyColumns(native.pop("spans"))
        self.categories: list[str] = native.pop("categories")
        self.strings = StringTable(native.pop("strings"))
        self.tables: Tables = {}
        self.tracks = read_tracks(native.pop("threads"), names, self.categories)
        self.tables["threads"] = dict(self.tracks.threads)
        self.tables["streams"] = self.tracks.streams
        self.parts = LazyColumns({"arrows": self._arrows, "backward": self._backward})

    def trace(self) -> TraceData:
        native, tracks = self.native, self.tracks
        flows = native.get("flows")
        self.fwdbwd = [row for row, text in enumerate(self.strings.texts) if text == FORWARD_BACKWARD]
        windows = native.pop("windows", ())
        lacking = not_recorded(windows, self.categories, self.spans, native.get("allocations"))
        # numpy imports much for a search for nothing.
        has_arrows = self.fwdbwd and flows and np.isin(made(flows["category"]), self.fwdbwd).any()
        self._dictionaries()
        self._stacks()
        # The native reader's category of each span is a row of the file's categories, -1 without.
        category_rows = np.array([*map(self.strings.row, self.categories), 0], np.int32)
        self.spans["file_category"] = self.spans.pop("category")
        self.spans["category"] = lambda: category_rows[self.spans.take("file_category")]
        self.spans["category_kind"] = self.spans.pop("kind")
        self.spans["kind"] = self._kind
        self.spans["scope"] = self._scope
        if "forward_number" in self.spans:
            self.spans["forward_thread"] = self._forward_thread
            self.tables["threads"]["torch_tid"] = self._torch_tid
        if has_arrows:
            self.spans["forward"] = lambda: link_forward(self.spans, self._arrows_to_backward())
        if tracks.on_device.any():
            self.spans["stream"] = lambda: tracks.stream_of[self.spans["thread"]]
            self._add_later(
                "launches", lambda: find_launches(self.spans, self._on_device(), self.parts["arrows"])
            )
        self.tables["spans"] = self.spans.given(_SPAN_COLUMNS)
        header = self.header
        if OWN in header:
            self.tables["spans"] = {name: self.spans[name] for name in _SPAN_COLUMNS if name in self.spans}
        last_ns = _end_ns(header, native["last_ns"])
        info = read_info(header, native["base_ns"], last_ns, tracks.streams["device_type"])
        add_process_info(info, self.process, self.names)
        if not OPERATORS.isdisjoint(self.categories):
            info.setdefault("engine", "kineto")
        implausible = implausible_durations(native, self.strings.texts)
        losses = native.pop("losses")
        if OWN not in header:
            if lacking:
                info[NOT_RECORDED] = lacking
            losses = {**losses, "ascend_spans": tracks.ascend_spans}
        self.tables["losses"] = read_losses(header, losses, implausible)
        self.tables["cycles"] = read_cycles(windows, last_ns)
        restore_own_columns(header, self.tables, self.strings)
        info.pop(OWN, None)
        trace = TraceData.from_columns(self.tables, strings=self.strings.texts, info=info)
        trace.on_close(self._close)
        return trace

    def _close(self) -> None:
        for part in (self.spans, self.parts, self.tables, self.native):
            part.clear()

    def _on_device(self) -> Mask:
        is_on_device: Mask = self.tracks.on_device[self.spans["thread"]]
        return is_on_device

    def _arrows(self) -> FlowArrows:
        flows = self.native.pop("flows", None)
        return pair_arrows(None if flows is None else LazyColumns(flows), self.spans)

    def _arrows_to_backward(self) -> FlowArrows:
        arrows: FlowArrows = self.parts["arrows"]
        chosen = np.isin(arrows.category, self.fwdbwd)
        if isinstance(self.header.get(OWN), dict) and "sequence" in self.spans:
            # In a file that Kinetoscope wrote, an arrow may end at a span inside the backward function that starts in the same
            # nanosecond, but only the function has a sequence number.
            chosen &= self.spans["sequence"][arrows.end] >= 0
        return FlowArrows(arrows.category[chosen], arrows.begin[chosen], arrows.end[chosen])

    def _backward(self) -> Backward:
        number = self.spans.take("forward_number") if "forward_number" in self.spans else None
        return name_threads(self.spans, number, self._arrows_to_backward())

    def _kind(self) -> NDArray[np.uint8]:
        spans = self.spans
        kind: NDArray[np.uint8] = spans.take("category_kind")
        named = kinds_of_names(self.strings.texts)[spans["name"]]
        on_device = self._on_device()
        is_operator = ~on_device & (kind == SpanKind.OPERATOR)
        marks = np.isin(named, (SpanKind.STEP, SpanKind.COLLECTIVE, SpanKind.USER_ANNOTATION))
        renamed = marks & (is_operator | ~on_device & (kind == SpanKind.USER_ANNOTATION))
        renamed |= (named == SpanKind.MODULE) & (kind == SpanKind.PYTHON)
        kind[renamed] = named[renamed]
        backward = named == SpanKind.BACKWARD
        for rows in (self.parts["backward"].rows, self._arrows_to_backward().end):
            backward[rows] |= named[rows] != _WRAPPER
        kind[backward & is_operator & ~renamed] = SpanKind.BACKWARD
        if DeviceType.MTIA in self.tracks.streams["device_type"]:
            pieces = on_device & (kind == SpanKind.KERNEL) & np.isin(named, (SpanKind.MEMCPY, SpanKind.SYNC))
            kind[pieces] = named[pieces]
        return kind

    def _scope(self) -> NDArray[np.uint8]:
        kind = self.spans["kind"]
        scope = np.zeros(len(SpanKind), np.uint8)
        scope[SpanKind.BACKWARD] = SCOPE_BACKWARD
        scope[SpanKind.PYTHON] = SCOPE_PYTHON
        scope[SpanKind.MODULE] = SCOPE_MODULE
        scope[[SpanKind.USER_ANNOTATION, SpanKind.STEP, SpanKind.COLLECTIVE]] = SCOPE_USER
        scopes: NDArray[np.uint8] = scope[kind]
        scopes[self._on_device()] = 0
        return scopes

    def _forward_thread(self) -> NDArray[np.int32]:
        threads = np.full(len(self.spans["thread"]), -1, np.int32)
        backward: Backward = self.parts["backward"]
        threads[backward.rows] = backward.threads
        return threads

    def _torch_tid(self) -> Rows:
        tids = np.full(len(self.tracks.on_device), -1, np.int64)
        for number, row in self.parts["backward"].numbered.items():
            tids[row] = number
        return tids

    def _add_later(self, table: str, make: Callable[[], dict[str, Any]]) -> None:
        """Add a table whose columns are all computed when one is first used."""
        self.parts[table] = make
        names = STORED[table].column_names
        self.tables[table] = {name: partial(lambda name: self.parts[table][name], name) for name in names}

    def _stacks(self) -> None:
        """Read Python stacks and modules, from python_function events or from the "Call stack" texts of older releases."""
        native, spans = self.native, self.spans
        stacks, modules, texts = (native.pop(name, None) for name in ("stacks", "modules", "call_stacks"))
        if "own_stack" in spans:
            self.tables |= tables_of_functions(self.strings, stacks, modules)
        elif "call_stack" in spans and texts is not None:
            tables, stack_rows, module_rows = tables_of_texts(
                self.strings, [_frames_of(text, self.header.get("stackFrames")) for text in texts]
            )
            self.tables |= tables
            spans["own_stack"] = lambda: stack_rows[spans["call_stack"]]
            if len(tables["modules"]["class"]):
                spans["own_module"] = lambda: module_rows[spans["call_stack"]]

    def _dictionaries(self) -> None:
        native, spans = self.native, self.spans
        for name in ("shapes", "arguments", "kernels", "copies", "allocations", "counters"):
            if (table := native.pop(name, None)) is not None:
                self.tables[name] = self._memory_events(table) if name == "allocations" else dict(table)
                if name == "counters":
                    self.tables[name].pop("process", None)
        if "arguments" in spans and "arguments" in self.tables and native["collective_arguments"]:
            facts = facts_of_arguments(made(self.tables["arguments"]["json"]), self.strings)
            if facts is not None:
                self._add_later("collectives", lambda: read_collectives(spans["arguments"], facts))

    @staticmethod
    def _memory_events(recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of allocations; `recorded` is kept until the last column that depends on it is computed."""
        columns = dict(recorded)

        def device_type() -> NDArray[np.uint8]:
            # torch calls AMD devices CUDA everywhere except in memory events.
            kinds = made(columns["device_type"])
            return np.where(kinds == DeviceType.HIP, np.uint8(DeviceType.CUDA), kinds)

        def address() -> NDArray[np.uint64]:
            names = ("address", "bytes", "freed_bytes", "device_index")
            blocks = {name: made(columns[name]) for name in names} | {"device_type": device_type()}
            return with_addresses(blocks)

        return {**columns, "device_type": device_type, "address": address}
