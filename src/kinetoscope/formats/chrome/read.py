"""Reading Chrome's trace event format, as Kineto (torch.profiler) and many other tools write it.

The text is read as a stream by `_core.ChromeReader`, which gives columns; here they become a trace. What the columns do
not say outright is told by what torch is known to write:

- A backward function names the thread of its forward operator by a number of torch's own (`Fwd thread id` above 0), and
  the engine's wrapper around it has its name behind `autograd::engine::evaluate_function: `.
- A kernel has the `correlation` of the call that launched it and the `External id` of the operator. See
  `kinetoscope.formats.chrome.read_links` for how these become launches.
- Slices of `gpu_user_annotation` repeat ranges of the host on a stream: never work, never steps.

A kernel without a launch is no loss: it was launched before the recording began. Nor is a launch without a kernel.
"""

from __future__ import annotations

import json
import re
from contextlib import closing, contextmanager
from enum import IntEnum
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope._errors import FormatError
from kinetoscope.formats.chrome.read_calls import MODULE_MARK, Calls, Strings
from kinetoscope.formats.chrome.read_info import (
    NOT_RECORDED,
    not_recorded,
    read_cycles,
    read_header,
    read_info,
    read_losses,
)
from kinetoscope.formats.chrome.read_links import (
    FORWARD_BACKWARD,
    Arrows,
    Backward,
    find_launches,
    link_forward,
    name_threads,
    pair_arrows,
)
from kinetoscope.formats.chrome.read_own import (
    OWN,
    described_in_list,
    keep_own_times,
    stop_ns,
    sure_arrows,
    take_own_facts,
)
from kinetoscope.formats.chrome.read_tracks import (
    CATEGORIES,
    CUDA,
    HIP,
    MTIA,
    OPERATORS,
    Later,
    Tracks,
    read_tracks,
    tell_processes,
)
from kinetoscope.model.assemble import ENGINE_WRAPPER
from kinetoscope.model.schema import (
    SCOPE_BACKWARD,
    SCOPE_MODULE,
    SCOPE_PYTHON,
    SCOPE_USER,
    STORED,
    TRANSFER_MARKS,
    SpanKind,
)
from kinetoscope.model.steps import MARK as STEP_MARK
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.byte_source import ByteSource
from kinetoscope.storage.unpacking import UnpackedText, default_memory_bytes
from kinetoscope.tables.device.collective_facts import type_named

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Native = dict[str, Any]
    Tables = dict[str, dict[str, Any]]
    Progress = Callable[[int, int | None, int], object]


# What the names of spans say of them; each distinct name is looked at once.

# Backward functions that torch's own code generator names, and those that accumulate gradients.
_BACKWARD = re.compile(r"(?:[A-Za-z_]\w*Backward\d+|torch::autograd::\w+)")
_MTIA_COPY, _MTIA_WAIT = "dma_request", "event_wait"
# Ranges that torch itself marks, which its releases before 1.9 wrote as operators.
_RANGES = ("Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")


class NameClass(IntEnum):
    """What a name says: one thing at most."""

    NOTHING = 0
    STEP = 1
    TRANSFER = 2
    MODULE = 3
    WRAPPER = 4
    BACKWARD = 5
    MTIA_COPY = 6
    RANGE = 7
    MTIA_WAIT = 8


def classify(strings: Sequence[str]) -> NDArray[np.uint8]:
    """The `NameClass` of each string.

    What stands behind autograd's wrapper is a backward function, whatever it is called; without wrappers, as in torch
    1.8, it is told by its name.
    """
    found = np.zeros(len(strings), np.uint8)
    wrapped: set[str] = set()
    for row, text in enumerate(strings):
        if text.startswith(ENGINE_WRAPPER):
            found[row] = NameClass.WRAPPER
            wrapped.add(text[len(ENGINE_WRAPPER) :])
        elif text.startswith(STEP_MARK):
            found[row] = NameClass.STEP
        elif text.startswith(TRANSFER_MARKS):
            found[row] = NameClass.TRANSFER
        elif text.startswith(MODULE_MARK):
            found[row] = NameClass.MODULE
        elif text.startswith(_RANGES):
            found[row] = NameClass.RANGE
        elif text == _MTIA_COPY:
            found[row] = NameClass.MTIA_COPY
        elif text == _MTIA_WAIT:
            found[row] = NameClass.MTIA_WAIT
        elif _BACKWARD.fullmatch(text):
            found[row] = NameClass.BACKWARD
    for row, text in enumerate(strings):
        if text in wrapped and not found[row]:
            found[row] = NameClass.BACKWARD
    return found


# The allocations of files that do not say addresses: torch before 1.10 wrote only how much memory changed.
#
# A free is then taken for that of the youngest block of its size that still lives on its device, and both get a made-up
# address. So the live bytes are right at every moment, while which of several equal blocks was freed is a guess. A free
# without such a block is of one from before the recording.


def with_addresses(allocations: Mapping[str, Any]) -> NDArray[np.uint64] | None:
    """Make up the addresses that are missing.

    Args:
        allocations: The columns of the table, in order of time.

    Returns:
        The column `address`; None where nothing is missing.
    """
    address: NDArray[np.uint64] = allocations["address"]
    taken, freed = allocations["bytes"], allocations["freed_bytes"]
    rows = np.flatnonzero((address == 0) & ((taken > 0) | (freed > 0)))
    if len(rows) == 0:
        return None
    size = np.where(taken[rows] > 0, taken[rows], freed[rows])
    begins = taken[rows] > 0
    kind, index = (allocations[name][rows] for name in ("device_type", "device_index"))
    order = np.lexsort((rows, size, index, kind))
    place = np.arange(len(order))
    new = np.ones(len(order), dtype=bool)
    keys = [values[order] for values in (kind, index, size)]
    new[1:] = np.logical_or.reduce([values[1:] != values[:-1] for values in keys])
    group = np.cumsum(new) - 1
    # How many blocks of the size live after each event, if none lived before the first and a free of none counts nothing:
    # the sum of ups and downs, less its lowest value so far below zero.
    step = np.where(begins[order], 1, -1)
    walked = np.cumsum(step)
    walked -= (walked - step)[new][group]
    # Each group in a band of its own far below the last, so that one running minimum serves all.
    band = np.int64(2 * len(order) + 2)
    lowest = np.minimum.accumulate(np.minimum(walked, 0) - group * band) + group * band
    unmatched = ~begins[order] & (walked < np.where(new, 0, np.append(0, lowest[:-1])))
    live = walked - lowest
    # Level of a block: how many of its size lie below it. A free is of the last begin at its level.
    level = np.where(begins[order], live, live + 1)
    by_level = np.lexsort((place, level, group))
    by_level = by_level[~unmatched[by_level]]
    before = np.append(-1, by_level[:-1])
    is_free = ~begins[order][by_level]
    owner = place.copy()
    owner[by_level[is_free]] = before[is_free]
    first = int(address.max()) + 1
    if first > 2**48 - len(allocations["bytes"]) - 1:
        first = 1
    made = address.copy()
    made[rows[order]] = (first + order[owner]).astype(np.uint64)
    return made


# What files of torch say of calls between ranks, in the words of the table `collectives`.
#
# torch writes it among the arguments of `record_param_comms` and, in newer releases, of the kernels that carried the call
# out: name, group, sizes and type of elements, and the other rank.

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


def facts_of_arguments(texts: Sequence[str], strings: Strings) -> NDArray[np.int32] | None:
    """The row of strings with the facts in each text of arguments, -1 without and for none, the last entry.

    Args:
        texts: What the file said of its spans, as JSON.
        strings: The string table; the facts are added to it.

    Returns:
        The rows; None where no text holds any.
    """
    facts = np.full(len(texts) + 1, -1, np.int32)
    for row, text in enumerate(texts):
        if _MARK in text and (told := _facts(text)):
            facts[row] = strings.of(json.dumps(told))
    return facts if (facts >= 0).any() else None


def read_collectives(arguments: NDArray[np.int32], facts: NDArray[np.int32]) -> dict[str, NDArray[np.int32]]:
    """The table `collectives`, from what `facts_of_arguments` found and the row of arguments of each span."""
    spans = np.flatnonzero(facts[arguments] >= 0)
    return {"span": spans.astype(np.int32), "facts": facts[arguments[spans]]}


def _facts(text: str) -> dict[str, Any]:
    """The facts among the arguments of a span, in the words that a recording has for them."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, dict) or not isinstance(told.get("Collective name"), str):
        return {}
    facts: dict[str, Any] = {
        name: told[key] for name, key in _TEXTS.items() if isinstance(told.get(key), str)
    }
    facts |= {name: told[key] for name, key in _NUMBERS.items() if type(told.get(key)) is int}
    if (item_bytes := type_named(facts.get("type", ""))[1]) > 0:
        facts["item_bytes"] = item_bytes
    for name, key in _LISTS.items():
        if values := _list(told.get(key)):
            facts[name] = values
    for key in _PEERS:
        if type(told.get(key)) is int:
            facts["peer"] = told[key]
    return facts


def _list(value: object) -> list[Any]:
    """A list, which torch writes as a text, cut in the middle where it is long."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    return value if isinstance(value, list) else []


_GIVEN = (
    "thread", "start_ns", "duration_ns", "name", "kind", "flags", "scope", "category", "correlation", "external_id",
    "sequence", "shapes", "arguments", "record_function", "stream", "own_stack", "own_module", "forward_thread", "forward",
)  # fmt: skip
# What the native reader takes events for.
_HELD = ("spans", "allocations", "counters", "flows", "metadata", "windows")


def read_chrome_trace(
    source: UnpackedText | str | os.PathLike[str] | IO[bytes],
    *,
    max_memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> TraceData:
    """Read a trace in Chrome's trace event format, plain or packed by gzip or zstd.

    Args:
        source: What `kinetoscope.open` takes, or its text.
        max_memory_bytes: See `kinetoscope.open`.
        progress: See `kinetoscope.open`.

    Returns:
        The trace. What could not be used of the file, or did not fit, is a row of its `losses`.

    Raises:
        FormatError: The text is no trace.
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
    """Feed the native reader with a text, and tell how far it is."""
    reader = new_reader(max_memory_bytes)
    source = text.source
    told_bytes = 0
    for block in text:
        with _named(text):
            reader.feed(block)
        if progress is not None:
            told_bytes = source.read_bytes
            progress(told_bytes, source.total_bytes, reader.events)
    # What ends a packed file may have been read after its last block was there.
    if progress is not None and told_bytes != source.read_bytes:
        progress(source.read_bytes, source.total_bytes, reader.events)
    with _named(text):
        native = reader.finish(later=True)
        unusable = sum(
            native["losses"][name] for name in ("bad_events", "bad_times", "too_deep", "ignored_events")
        )
        if unusable and not any(_rows(native, name) for name in _HELD):
            raise ValueError(f"this is JSON, but none of its {unusable:,} values is an event of a trace")
        return native


def _rows(native: Native, name: str) -> int:
    """How many rows the native reader has of something."""
    if name == "spans":
        return int(native["span_rows"])
    part = native[name]
    return len(next(iter(part.values()))) if isinstance(part, dict) else len(part)


@contextmanager
def _named(text: UnpackedText) -> Iterator[None]:
    """Name the file in what the native reader says of it."""
    try:
        yield
    except ValueError as error:
        hint = "" if not text.losses else "; besides, the file is damaged or goes beyond what is unpacked"
        raise FormatError(f"{text.source.name}: {error}{hint}") from error


def new_reader(max_memory_bytes: int = 0) -> _core.ChromeReader:
    """A native reader that knows the categories of Kineto, for `made_trace`.

    Args:
        max_memory_bytes: What its columns and texts may take; 0 means no limit.
    """
    return _core.ChromeReader(
        list(CATEGORIES),
        [int(kind) for kind, _ in CATEGORIES.values()],
        [on_device for _, on_device in CATEGORIES.values()],
        max_memory_bytes,
    )


def made_trace(native: Native) -> TraceData:
    """Make a trace of what the native reader found.

    Args:
        native: What `_core.ChromeReader.finish` returned; it is used up, so that no column is kept twice.
    """
    return _Made(native).trace()


class _Made:
    """The parts of a trace on their way from the reader's columns to ours.

    What a table of spans alone does not need is made when it is first asked for: a file of many million events is open
    when its events are read.
    """

    def __init__(self, native: Native) -> None:
        self.native = native
        self.header = read_header(native.pop("header", ())) or described_in_list(native.get("metadata", ()))
        keep_own_times(self.header, native)
        self.spans = Later(native.pop("spans"))
        self.categories: list[str] = native.pop("categories")
        self.strings = Strings(native.pop("strings"))
        self.tables: Tables = {}
        self.rows: dict[str, int | Callable[[], int]] = {}
        self.tracks = self._tracks()
        self.parts = Later({"arrows": self._arrows, "backward": self._backward, "launches": self._launches})

    def trace(self) -> TraceData:
        """Put the tables together."""
        native, tracks = self.native, self.tracks
        flows = native.get("flows")
        fwdbwd = [row for row, text in enumerate(self.strings.rows) if text == FORWARD_BACKWARD]
        windows = native.pop("windows", ())
        lacking = not_recorded(windows, self.categories, self.spans, native.get("allocations"))
        has_arrows = flows is not None and bool(np.isin(flows["category"], fwdbwd).any())
        self._dictionaries()
        self._stacks()
        self._categories()
        self._kinds()
        if "forward_number" in self.spans:
            self.spans["forward_thread"] = self._forward_thread
            self.tables["threads"]["torch_tid"] = self._torch_tid
        if has_arrows:
            self.spans["forward"] = self._forward
        if tracks.on_device.any():
            self.spans["stream"] = lambda: tracks.stream_of[self.spans["thread"]]
            self.tables["launches"] = {
                name: partial(self._launch_column, name) for name in STORED["launches"].column_names
            }
            self.rows["launches"] = lambda: len(self._launch_column("host"))
        if len(tracks.processes) > 1:
            self.tables["threads"]["process"] = self._processes
        self.spans.release()
        spans = self.tables["spans"] = self.spans.given(_GIVEN)
        if all(callable(column) for column in spans.values()):
            self.rows["spans"] = native["span_rows"]
        header = self.header
        if OWN in header:
            self.tables["spans"] = {name: self.spans[name] for name in _GIVEN if name in self.spans}
        last_ns = stop_ns(header, self._last_ns())
        info = read_info(header, native["base_ns"], last_ns, tracks.streams["device_type"].tolist())
        tell_processes(info, tracks)
        if not OPERATORS.isdisjoint(self.categories):
            info.setdefault("engine", "kineto")
        losses = native.pop("losses")
        if OWN not in header:
            if lacking:
                info[NOT_RECORDED] = lacking
            losses = {**losses, "ascend_spans": tracks.ascend_spans}
        self.tables["losses"] = read_losses(header, losses)
        self.tables["cycles"] = read_cycles(windows, last_ns)
        take_own_facts(header, self.tables, self.strings)
        info.pop(OWN, None)
        return TraceData.from_columns(self.tables, strings=self.strings.rows, info=info, rows=self.rows)

    def _tracks(self) -> Tracks:
        """Threads and streams."""
        tracks = read_tracks(
            self.native.pop("threads"),
            self.native.pop("metadata", ()),
            self.spans["thread"],
            self.categories,
            self.spans,
        )
        self.tables["threads"] = dict(tracks.threads)
        self.tables["streams"] = tracks.streams
        return tracks

    def _on_device(self) -> NDArray[np.bool_]:
        """Which spans ran on a device."""
        found: NDArray[np.bool_] = self.tracks.on_device[self.spans["thread"]]
        return found

    # Made when they are first asked for

    def _arrows(self) -> Arrows:
        """The flows of the file, with the spans at their ends."""
        return pair_arrows(self.native.pop("flows", None), self.spans)

    def _arrows_to_backward(self) -> Arrows:
        """Those from forward operators to backward functions."""
        arrows: Arrows = self.parts["arrows"]
        rows = [row for row, text in enumerate(self.strings.rows) if text == FORWARD_BACKWARD]
        chosen = np.isin(arrows.category, rows)
        found = Arrows(arrows.category[chosen], arrows.begin[chosen], arrows.end[chosen])
        return sure_arrows(self.header, self.spans, found)

    def _backward(self) -> Backward:
        """The spans that name the thread of their forward operator, and which thread that is."""
        number = self.spans.take("forward_number") if "forward_number" in self.spans else None
        return name_threads(self.spans, number, self.tracks.process, self._arrows_to_backward())

    def _kinds(self) -> None:
        """Have kinds made of names where categories say too little, and scopes of kinds."""
        self.spans.rename("kind", "category_kind")
        self.spans["kind"] = self._kind
        self.spans["scope"] = self._scope

    def _kind(self) -> NDArray[np.uint8]:
        """The column `kind`."""
        spans = self.spans
        kind: NDArray[np.uint8] = spans.take("category_kind")
        named = classify(self.strings.rows)[spans["name"]]
        on_device = self._on_device()
        host = ~on_device
        marks = np.isin(named, (NameClass.STEP, NameClass.TRANSFER, NameClass.RANGE))
        kind[host & (kind == SpanKind.OPERATOR) & marks] = SpanKind.USER_ANNOTATION
        ranges = host & (kind == SpanKind.USER_ANNOTATION)
        kind[ranges & (named == NameClass.STEP)] = SpanKind.STEP
        kind[ranges & (named == NameClass.TRANSFER)] = SpanKind.COLLECTIVE
        kind[(kind == SpanKind.PYTHON) & (named == NameClass.MODULE)] = SpanKind.MODULE
        backward = named == NameClass.BACKWARD
        for rows in (self.parts["backward"].rows, self._arrows_to_backward().end):
            backward[rows] |= named[rows] != NameClass.WRAPPER
        kind[backward & host & (kind == SpanKind.OPERATOR)] = SpanKind.BACKWARD
        if MTIA in self.tracks.streams["device_type"]:
            pieces = on_device & (kind == SpanKind.KERNEL)
            kind[pieces & (named == NameClass.MTIA_COPY)] = SpanKind.MEMCPY
            kind[pieces & (named == NameClass.MTIA_WAIT)] = SpanKind.SYNC
        return kind

    def _scope(self) -> NDArray[np.uint8]:
        """The column `scope`."""
        kind = self.spans["kind"]
        scope = np.zeros(len(SpanKind), np.uint8)
        scope[SpanKind.BACKWARD] = SCOPE_BACKWARD
        scope[SpanKind.PYTHON] = SCOPE_PYTHON
        scope[SpanKind.MODULE] = SCOPE_MODULE
        scope[[SpanKind.USER_ANNOTATION, SpanKind.STEP, SpanKind.COLLECTIVE]] = SCOPE_USER
        found: NDArray[np.uint8] = scope[kind]
        found[self._on_device()] = 0
        return found

    def _forward_thread(self) -> NDArray[np.int32]:
        """The column `forward_thread`."""
        found = np.full(len(self.spans["thread"]), -1, np.int32)
        backward: Backward = self.parts["backward"]
        found[backward.rows] = backward.threads
        return found

    def _torch_tid(self) -> NDArray[np.int64]:
        """torch's numbers of the threads that have one."""
        found = np.full(len(self.tracks.process), -1, np.int64)
        for (_, number), row in self.parts["backward"].numbered.items():
            found[row] = number
        return found

    def _forward(self) -> NDArray[np.int32]:
        """The column `forward`."""
        return link_forward(self.spans, self._arrows_to_backward())

    def _launches(self) -> dict[str, Any]:
        """The table `launches`."""
        return find_launches(self.spans, self._on_device(), self.parts["arrows"])

    def _launch_column(self, name: str) -> NDArray[np.int32]:
        """One of its columns."""
        found: NDArray[np.int32] = self.parts["launches"][name]
        return found

    def _processes(self) -> NDArray[np.int64]:
        """The process of each thread; a stream is of the one that launched most on it."""
        tracks, launches, thread = self.tracks, self.parts["launches"], self.spans["thread"]
        found: NDArray[np.int64] = tracks.threads["process"].copy()
        stream, of = thread[launches["device"]], tracks.process[thread[launches["host"]]]
        for row in np.unique(stream).tolist():
            numbers, counts = np.unique(of[stream == row], return_counts=True)
            owner = int(numbers[counts.argmax()])
            found[row] = -1 if owner == tracks.main_process else owner
        return found

    # Made at once

    def _categories(self) -> None:
        """Have the column `category` made, with what it names in the string table."""
        rows = np.array([*map(self.strings.of, self.categories), 0], np.int32)
        self.spans.rename("category", "file_category")

        def make() -> NDArray[np.int32]:
            category: NDArray[np.int32] = self.spans.take("file_category")
            return np.take(rows, category, out=category, mode="wrap")

        self.spans["category"] = make

    def _stacks(self) -> None:
        """Python stacks and modules: from calls on the timeline, or from the texts of older releases."""
        native, spans = self.native, self.spans
        stacks, modules, texts = (native.pop(name, None) for name in ("stacks", "modules", "call_stacks"))
        calls = Calls(self.strings)
        if "own_stack" in spans:
            self.tables |= calls.of_functions(stacks, modules)
        elif "call_stack" in spans and texts is not None:
            tables, stack_rows, module_rows = calls.of_texts(texts)
            self.tables |= tables
            spans["own_stack"] = lambda: stack_rows[spans["call_stack"]]
            if len(tables["modules"]["class"]):
                spans["own_module"] = lambda: module_rows[spans["call_stack"]]

    def _dictionaries(self) -> None:
        """What goes into a table as it is, and the collectives among the arguments."""
        native, spans = self.native, self.spans
        for name in ("shapes", "arguments", "kernels", "copies", "allocations", "counters"):
            if (table := native.pop(name, None)) is not None:
                self.tables[name] = dict(table)
        if (blocks := self.tables.get("allocations")) is not None:
            kinds = blocks["device_type"]
            # In torch AMD's devices are CUDA everywhere but in the marks of memory.
            blocks["device_type"] = np.where(kinds == HIP, np.uint8(CUDA), kinds)
            if (made_up := with_addresses(blocks)) is not None:
                blocks["address"] = made_up
        if "arguments" in spans and "arguments" in self.tables:
            facts = facts_of_arguments(self.tables["arguments"]["json"], self.strings)
            if facts is not None:
                self.parts["collectives"] = lambda: read_collectives(spans["arguments"], facts)
                self.tables["collectives"] = {
                    name: partial(lambda name: self.parts["collectives"][name], name)
                    for name in ("span", "facts")
                }
                self.rows["collectives"] = lambda: len(self.parts["collectives"]["span"])

    def _last_ns(self) -> int:
        """The end of what the file holds."""
        last_ns: int = self.native["last_ns"]
        for name in ("allocations", "counters"):
            if name in self.tables:
                last_ns = max(last_ns, int(self.tables[name]["time_ns"].max(initial=0)))
        for _, start_ns, duration_ns in self.native.get("windows", ()):
            last_ns = max(last_ns, start_ns + max(0, duration_ns))
        return last_ns
