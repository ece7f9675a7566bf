"""Reading Chrome's trace event format, as Kineto (torch.profiler) and many other tools write it.

The text is read as a stream by `_core.ChromeReader`, which gives columns; here they become a trace. What the columns do
not say outright is told by what torch is known to write:

- A backward function names the thread of its forward operator by a number of torch's own (`Fwd thread id` above 0), and
  the engine's wrapper around it has its name behind `autograd::engine::evaluate_function: `.
- A kernel has the `correlation` of the call that launched it and the `External id` of the operator. See
  `kinetoscope.formats._chrome_read_links` for how these become launches.
- Slices of `gpu_user_annotation` repeat ranges of the host on a stream: never work, never steps.

A kernel without a launch is no loss: it was launched before the recording began. Nor is a launch without a kernel.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope._errors import FormatError
from kinetoscope.formats._chrome_categories import CATEGORIES, CUDA, HIP, MTIA, OPERATORS
from kinetoscope.formats._chrome_read_calls import Calls, Strings
from kinetoscope.formats._chrome_read_collectives import read_collectives
from kinetoscope.formats._chrome_read_info import read_cycles, read_header, read_info, read_losses
from kinetoscope.formats._chrome_read_links import (
    FORWARD_BACKWARD,
    Arrows,
    find_launches,
    link_forward,
    number_threads,
    pair_arrows,
)
from kinetoscope.formats._chrome_read_memory import with_addresses
from kinetoscope.formats._chrome_read_names import NameClass, classify
from kinetoscope.formats._chrome_read_own import OWN, keep_own_times, stop_ns, sure_arrows, take_own_facts
from kinetoscope.formats._chrome_read_tracks import Tracks, read_tracks
from kinetoscope.trace import SpanKind, Trace
from kinetoscope.trace._byte_source import ByteSource
from kinetoscope.trace._memory_limit import default_memory_bytes
from kinetoscope.trace._schema import SCOPE_BACKWARD, SCOPE_MODULE, SCOPE_PYTHON, SCOPE_USER
from kinetoscope.trace._unpacking import UnpackedText

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Native = dict[str, Any]
    Tables = dict[str, dict[str, Any]]
    Progress = Callable[[int, int | None, int], object]

_TAKEN_OVER = (
    "thread", "start_ns", "duration_ns", "name", "kind", "flags", "correlation", "external_id", "sequence", "shapes",
    "arguments", "record_function",
)  # fmt: skip
# What the native reader takes events for.
_HELD = ("spans", "allocations", "counters", "flows", "metadata", "windows")


def read_chrome_trace(
    source: UnpackedText | str | os.PathLike[str] | IO[bytes],
    *,
    max_memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> Trace:
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
    for block in text:
        with _named(text):
            reader.feed(block)
        if progress is not None:
            progress(source.read_bytes, source.total_bytes, reader.events)
    with _named(text):
        native = reader.finish()
        unusable = sum(
            native["losses"][name] for name in ("bad_events", "bad_times", "too_deep", "ignored_events")
        )
        if unusable and not any(_rows(native, name) for name in _HELD):
            raise ValueError(f"this is JSON, but none of its {unusable:,} values is an event of a trace")
        return native


def _rows(native: Native, name: str) -> int:
    """How many rows the native reader has of something."""
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


def made_trace(native: Native) -> Trace:
    """Make a trace of what the native reader found.

    Args:
        native: What `_core.ChromeReader.finish` returned; it is used up, so that no column is kept twice.
    """
    return _Made(native).trace()


class _Made:
    """The parts of a trace on their way from the reader's columns to ours; each step adds or replaces some."""

    def __init__(self, native: Native) -> None:
        self.native = native
        self.header = read_header(native.pop("header", ()))
        keep_own_times(self.header, native)
        self.found: dict[str, Any] = native.pop("spans")
        self.categories: list[str] = native.pop("categories")
        self.strings = Strings(native.pop("strings"))
        self.spans: dict[str, Any] = {
            name: self.found.pop(name) for name in _TAKEN_OVER if name in self.found
        }
        self.tables: Tables = {"spans": self.spans}

    def trace(self) -> Trace:
        """All steps, in the order in which they need each other."""
        native, spans = self.native, self.spans
        tracks = self._tracks()
        on_device = tracks.on_device[spans["thread"]]
        arrows = pair_arrows(native.get("flows"), spans)
        of_backward = sure_arrows(self.header, spans, self._arrows_of(arrows, {FORWARD_BACKWARD}))
        self._kinds(on_device, of_backward)
        self._forward(tracks, of_backward)
        launches = find_launches(spans, on_device, arrows)
        if launches:
            self.tables["launches"] = launches
            self._processes_of_streams(tracks, launches)
        del on_device
        self._streams(tracks)
        self._stacks()
        self._dictionaries()
        header = self.header
        last_ns = stop_ns(header, self._last_ns())
        info = read_info(header, native["base_ns"], last_ns, tracks.streams["device_type"].tolist())
        self._about_processes(info, tracks)
        if not OPERATORS.isdisjoint(self.categories):
            info.setdefault("engine", "kineto")
        self.tables["losses"] = read_losses(header, native.pop("losses"))
        self.tables["cycles"] = read_cycles(native.pop("windows", ()), last_ns)
        take_own_facts(header, self.tables, self.strings)
        info.pop(OWN, None)
        return Trace.from_columns(self.tables, strings=self.strings.rows, info=info)

    def _tracks(self) -> Tracks:
        """Threads and streams."""
        tracks = read_tracks(
            self.native.pop("threads"),
            self.native.pop("metadata", ()),
            self.spans["thread"],
            self.categories,
            self.found["category"],
            self.found.pop("device_index", None),
        )
        self.tables["threads"] = tracks.threads
        self.tables["streams"] = tracks.streams
        return tracks

    def _arrows_of(self, arrows: Arrows, categories: set[str]) -> Arrows:
        """The flows of some categories."""
        rows = [row for row, text in enumerate(self.strings.rows) if text in categories]
        chosen = np.isin(arrows.category, rows)
        return Arrows(arrows.category[chosen], arrows.begin[chosen], arrows.end[chosen])

    def _kinds(self, on_device: NDArray[np.bool_], of_backward: Arrows) -> None:
        """Make kinds of names where categories say too little, and scopes of kinds."""
        spans, kind = self.spans, self.spans["kind"]
        named = classify(self.strings.rows)[spans["name"]]
        host = ~on_device
        marks = np.isin(named, (NameClass.STEP, NameClass.TRANSFER, NameClass.RANGE))
        kind[host & (kind == SpanKind.OPERATOR) & marks] = SpanKind.USER_ANNOTATION
        ranges = host & (kind == SpanKind.USER_ANNOTATION)
        kind[ranges & (named == NameClass.STEP)] = SpanKind.STEP
        kind[ranges & (named == NameClass.TRANSFER)] = SpanKind.COLLECTIVE
        kind[(kind == SpanKind.PYTHON) & (named == NameClass.MODULE)] = SpanKind.MODULE
        backward = named == NameClass.BACKWARD
        if "forward_number" in self.found:
            backward |= (self.found["forward_number"] > 0) & (named != NameClass.WRAPPER)
        backward[of_backward.end] |= named[of_backward.end] != NameClass.WRAPPER
        kind[backward & host & (kind == SpanKind.OPERATOR)] = SpanKind.BACKWARD
        if MTIA in self.tables["streams"]["device_type"]:
            transfers = on_device & (kind == SpanKind.KERNEL) & (named == NameClass.MTIA_COPY)
            kind[transfers] = SpanKind.MEMCPY
        scope = np.zeros(len(kind), np.uint8)
        scope[kind == SpanKind.BACKWARD] = SCOPE_BACKWARD
        scope[kind == SpanKind.PYTHON] = SCOPE_PYTHON
        scope[kind == SpanKind.MODULE] = SCOPE_MODULE
        scope[ranges] = SCOPE_USER
        spans["scope"] = scope

    def _forward(self, tracks: Tracks, of_backward: Arrows) -> None:
        """Name the threads on which forward operators ran, and link what sequence numbers do not."""
        number = self.found.pop("forward_number", None)
        if number is not None:
            numbered = number_threads(self.spans, number, tracks.process, of_backward)
            if numbered:
                self._forward_threads(tracks, number, numbered)
        forward = link_forward(self.spans, of_backward)
        if forward is not None:
            self.spans["forward"] = forward

    def _forward_threads(
        self, tracks: Tracks, number: NDArray[np.int64], numbered: dict[tuple[int, int], int]
    ) -> None:
        """The column `forward_thread`, and torch's numbers of the threads that have one."""
        thread = self.spans["thread"]
        forward_thread = np.full(len(thread), -1, np.int32)
        backward = np.flatnonzero(number > 0)
        processes = tracks.process[thread[backward]]
        for (process, known), row in numbered.items():
            forward_thread[backward[(number[backward] == known) & (processes == process)]] = row
            tracks.threads["torch_tid"][row] = known
        self.spans["forward_thread"] = forward_thread

    def _processes_of_streams(self, tracks: Tracks, launches: dict[str, Any]) -> None:
        """A stream is of the process that launched most on it, where a file has several."""
        thread, process = self.spans["thread"], tracks.process
        if len(tracks.processes) < 2:
            return
        stream, of = thread[launches["device"]], process[thread[launches["host"]]]
        for row in np.unique(stream).tolist():
            numbers, counts = np.unique(of[stream == row], return_counts=True)
            owner = int(numbers[counts.argmax()])
            tracks.threads["process"][row] = -1 if owner == tracks.main_process else owner

    def _streams(self, tracks: Tracks) -> None:
        """The column `stream`, and what a stream of each span's category is called."""
        if len(tracks.streams["number"]):
            self.spans["stream"] = tracks.stream_of[self.spans["thread"]]
        rows = np.array([self.strings.of(text) for text in self.categories], np.int32)
        category = self.found.pop("category")
        self.spans["category"] = np.take(
            np.append(rows, 0).astype(np.int32), category, out=category, mode="wrap"
        )

    def _stacks(self) -> None:
        """Python stacks and modules: from calls on the timeline, or from the texts of older releases."""
        native, found = self.native, self.found
        stacks, modules, texts = (native.pop(name, None) for name in ("stacks", "modules", "call_stacks"))
        calls = Calls(self.strings)
        of_span = found.pop("call_stack", None)
        for name in ("own_stack", "own_module"):
            if name in found:
                self.spans[name] = found.pop(name)
        if "own_stack" in self.spans or "own_module" in self.spans:
            self.tables |= calls.of_functions(stacks, modules)
        elif of_span is not None and texts is not None:
            tables, stack_rows, module_rows = calls.of_texts(texts)
            self.tables |= tables
            if len(tables["modules"]["class"]):
                self.spans["own_module"] = module_rows[of_span]
            self.spans["own_stack"] = stack_rows[of_span]

    def _dictionaries(self) -> None:
        """What goes into a table as it is, and the collectives among the arguments."""
        native = self.native
        for name in ("shapes", "arguments", "kernels", "copies", "allocations", "counters"):
            if (table := native.pop(name, None)) is not None:
                self.tables[name] = dict(table)
        if (blocks := self.tables.get("allocations")) is not None:
            kinds = blocks["device_type"]
            # In torch AMD's devices are CUDA everywhere but in the marks of memory.
            blocks["device_type"] = np.where(kinds == HIP, np.uint8(CUDA), kinds)
            if (made_up := with_addresses(blocks)) is not None:
                blocks["address"] = made_up
        if "arguments" in self.spans and "arguments" in self.tables:
            self.tables["collectives"] = read_collectives(
                self.spans["arguments"], self.tables["arguments"]["json"], self.strings
            )

    def _last_ns(self) -> int:
        """The end of what the file holds."""
        spans = self.spans
        last_ns = int((spans["start_ns"] + spans["duration_ns"]).max(initial=0))
        for name in ("allocations", "counters"):
            if name in self.tables:
                last_ns = max(last_ns, int(self.tables[name]["time_ns"].max(initial=0)))
        for _, start_ns, duration_ns in self.native.get("windows", ()):
            last_ns = max(last_ns, start_ns + max(0, duration_ns))
        return last_ns

    def _about_processes(self, info: dict[str, Any], tracks: Tracks) -> None:
        """Which process the trace is of."""
        if tracks.main_process is not None:
            info["process"] = tracks.main_process
        else:
            info.pop("process", None)
        if len(tracks.processes) > 1:
            info["processes"] = tracks.processes
        elif tracks.processes and tracks.processes[0]["name"]:
            info.setdefault("process_name", tracks.processes[0]["name"])
