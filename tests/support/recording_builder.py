"""Writes recording files byte by byte, whole ones and broken ones, without the recorder."""

import itertools
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetoscope.storage.live_recording import LAYOUT, MAGIC

HEADER_BYTES: int = LAYOUT["header_bytes"]
CHUNK_HEADER_BYTES: int = LAYOUT["chunk_header_bytes"]
CHUNK_MAGIC: int = LAYOUT["chunk_magic"]
FREE, SPANS, ALLOCATIONS, DICTIONARY, NOTES, SAMPLES, ROWS = (
    LAYOUT["chunk_kinds"][kind]
    for kind in ("free", "spans", "allocations", "dictionary", "notes", "samples", "rows")
)
MOST_CLOCK_PAIRS: int = LAYOUT["clock_pairs"]

SPAN = struct.Struct("<QQII")
SPAN_BEFORE_7 = struct.Struct("<QQIIIIqHBBI")
NOTE = struct.Struct("<QQqIBBBb")
ALLOCATION = struct.Struct("<QQqBbHI")
SAMPLE = struct.Struct("<QQIIIBBH")
ROWS_HEADER = struct.Struct("<QIIHHI")


@dataclass
class Chunk:
    """One chunk as it will stand in the file; every field may be a lie."""

    kind: int
    thread: int
    payload: bytes
    committed: int
    order: int
    magic: int = CHUNK_MAGIC

    def to_bytes(self, chunk_bytes: int) -> bytes:
        """The chunk, filled up with zeros."""
        header = struct.pack("<IIIIQQ", self.magic, self.kind, self.thread, 0, self.order, self.committed)
        return (header.ljust(CHUNK_HEADER_BYTES, b"\0") + self.payload).ljust(chunk_bytes, b"\0")


@dataclass
class RecordingBuilder:
    """Collects entries and records; ticks are nanoseconds unless `clock` says otherwise.

    Methods that add to the dictionary return the id of what they add, so that records can name it.
    """

    chunk_bytes: int = 1024
    clock: int = 0
    start_tick: int = 1_000
    stop_tick: int = 1_000_000
    state: int = 1
    version: int = 1
    process: int = 4242
    pairs: list[tuple[int, int, int]] = field(
        default_factory=lambda: [(1_000, 5_000, 1_700_000_000_000_000_000)]
    )
    dropped_spans: int = 0
    dropped_allocations: int = 0
    recycled_spans: int = 0
    recycled_allocations: int = 0
    dropped_notes: int = 0
    recycled_notes: int = 0
    truncated_strings: int = 0
    dropped_dictionary: int = 0
    dropped_samples: int = 0
    ring_dropped_samples: int = 0
    recycled_samples: int = 0
    torn_samples: int = 0
    recycled_chunks: int = 0
    dropped_rows: int = 0
    ring_dropped_rows: int = 0
    recycled_rows: int = 0
    extra_chunks: list[Chunk] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    spans: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    allocations: dict[int, list[bytes]] = field(default_factory=dict)
    notes: dict[int, list[bytes]] = field(default_factory=dict)
    samples: list[bytes] = field(default_factory=list)
    rows: dict[int, list[bytes]] = field(default_factory=dict)
    _ids: dict[int, int] = field(default_factory=dict)
    _strings: dict[bytes, int] = field(default_factory=dict)
    _sites: dict[tuple[int, ...], int] = field(default_factory=dict)

    def _next_id(self, kind: int) -> int:
        self._ids[kind] = self._ids.get(kind, 0) + 1
        return self._ids[kind]

    def entry(self, kind: int, payload: bytes) -> None:
        """Adds a dictionary entry as it is."""
        self.entries.append(
            (struct.pack("<II", kind, len(payload)) + payload).ljust(-(-(8 + len(payload)) // 8) * 8, b"\0")
        )

    def string(self, text: str | bytes) -> int:
        """Adds a text once; str with lone surrogates and broken bytes are both welcome."""
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if not raw:
            return 0
        if raw not in self._strings:
            self._strings[raw] = number = self._next_id(1)
            self.entry(1, struct.pack("<I", number) + raw)
        return self._strings[raw]

    def name(self, text: str | bytes, overload: str = "") -> int:
        """Adds an operator's name."""
        number = self._next_id(2)
        self.entry(2, struct.pack("<III", number, self.string(text), self.string(overload)))
        return number

    def frame(self, function: str, file: str, line: int) -> int:
        """Adds a frame."""
        number = self._next_id(3)
        self.entry(3, struct.pack("<IIII", number, self.string(function), self.string(file), line))
        return number

    def stack(self, parent: int, frame: int) -> int:
        """Adds a stack whose innermost call is `frame`."""
        number = self._next_id(4)
        self.entry(4, struct.pack("<III", number, parent, frame))
        return number

    def module(
        self, class_name: str, *, parent: int = 0, name: str = "", caller: int = 0, address: int = 0
    ) -> int:
        """Adds a module and its place."""
        number = self._next_id(5)
        self.entry(5, struct.pack("<IIIIQ", number, self.string(class_name), caller, 0, address))
        self.module_name(number, parent, name)
        return number

    def module_name(self, module: int, parent: int, name: str) -> None:
        """Says (again) where a module hangs."""
        self.entry(6, struct.pack("<III", module, parent, self.string(name)))

    def parameter(self, module: int = 0, name: str = "", address: int = 0) -> int:
        """Adds a parameter."""
        number = self._next_id(7)
        self.entry(7, struct.pack("<IIIIQ", number, module, self.string(name), 0, address))
        return number

    def shapes(self, dims: str, types: str = "[]", concrete: str = "[]", strides: str = "") -> int:
        """Adds input shapes; all parts are JSON texts. Recordings of earlier releases have no strides."""
        number = self._next_id(8)
        texts = [text.encode() for text in (dims, types, concrete)]
        self.entry(8, struct.pack("<IIII", number, *map(len, texts)) + b"".join(texts) + strides.encode())
        return number

    def thread(self, index: int, *, os_tid: int = 0, torch_tid: int = 0, name: str = "") -> None:
        """Adds or renames a thread."""
        self.entry(9, struct.pack("<IIQ", index, os_tid, torch_tid) + name.encode())

    def info(self, key: str, json_text: str) -> None:
        """Adds a fact about the run."""
        self.entry(10, struct.pack("<I", len(key.encode())) + key.encode() + json_text.encode())

    def span(
        self,
        start: int,
        end: int,
        name: int = 0,
        *,
        thread: int = 1,
        stack: int = 0,
        module: int = 0,
        shapes: int = 0,
        sequence: int = -1,
        forward_thread: int = 0,
        scope: int = 0,
        flags: int = 0,
        parameter: int = 0,
    ) -> None:
        """Adds a span in ticks after the start of the recording; end 0 means that it never ended."""
        end_tick = 0 if end == 0 else self.start_tick + end
        self.spans.setdefault(thread, []).append(
            (
                self.start_tick + start,
                end_tick,
                name,
                stack,
                module,
                shapes,
                sequence,
                forward_thread,
                scope,
                flags,
                parameter,
            )
        )

    def site(self, *numbers: int) -> int:
        """Adds once what spans have in common: name, stack, shapes, module, parameter, scope and upper sequence bits."""
        if numbers not in self._sites:
            self._sites[numbers] = number = self._next_id(11)
            self.entry(11, struct.pack("<7I", number, *numbers))
        return self._sites[numbers]

    def _span(self, numbers: tuple[int, ...]) -> bytes:
        """A span as the version of the format has it."""
        if self.version < 7:
            return SPAN_BEFORE_7.pack(*numbers)
        start, end, name, stack, module, shapes, sequence, forward_thread, scope, flags, parameter = numbers
        rest = scope | (sequence >> 32 & 0xFFFFFF) << 8
        site = self.site(name, stack, shapes, module, parameter, rest)
        duration = end - start + 1 if end else 0
        flags |= 8 if scope >= 100 else 0
        return SPAN.pack(start << 4 | flags, forward_thread << 48 | duration, site, sequence & 0xFFFFFFFF)

    def allocation(
        self,
        time: int,
        address: int,
        size: int,
        *,
        thread: int = 1,
        device_type: int = 0,
        device_index: int = -1,
        stack: int = 0,
    ) -> None:
        """Adds an allocation, or with size 0 a free."""
        self.allocations.setdefault(thread, []).append(
            ALLOCATION.pack(self.start_tick + time, address, size, device_type, device_index, 0, stack)
        )

    def note(
        self,
        span_start: int,
        kind: int,
        value: int,
        size: int = 0,
        *,
        thread: int = 1,
        parameter: int = 0,
        argument: int = 0,
        device_type: int = 0,
        device_index: int = -1,
    ) -> None:
        """Adds a note about the span of the thread that began then."""
        self.notes.setdefault(thread, []).append(
            NOTE.pack(
                self.start_tick + span_start,
                value,
                size,
                parameter,
                kind,
                argument,
                device_type,
                device_index,
            )
        )

    def sample(
        self,
        time: int,
        since: int,
        stack: int,
        *,
        thread: int = 1,
        module: int = 0,
        state: int = 1,
        waited: int = 0,
    ) -> None:
        """Adds a sample of a thread's stack, for the time from `since` to `time`; needs version 3.

        `waited`: 0 says nothing, 1 that the system does not tell, and more the microseconds without a processor and 2.
        """
        self.samples.append(
            SAMPLE.pack(
                self.start_tick + time,
                self.start_tick + since,
                thread,
                stack,
                module,
                state,
                waited & 0xFF,
                waited >> 8,
            )
        )

    def append(
        self,
        table: str,
        columns: dict[str, list[Any]] | bytes,
        *,
        time: int = 0,
        rows: int | None = None,
        session: int = 0,
        buffered: bool = False,
    ) -> None:
        """Appends rows of a named table at that time; needs version 5. Columns that are bytes stand for their JSON."""
        text = columns if isinstance(columns, bytes) else json.dumps(columns).encode()
        if rows is None:
            rows = 0 if isinstance(columns, bytes) else len(next(iter(columns.values())))
        name = table.encode()
        header = ROWS_HEADER.pack(self.start_tick + time, rows, len(text), len(name), int(buffered), 0)
        whole = header + name + text
        self.rows.setdefault(session, []).append(whole.ljust(-(-len(whole) // 8) * 8, b"\0"))

    def chunks(self) -> list[Chunk]:
        """Lays everything out: dictionary, spans, allocations, notes, samples, rows, then the extra chunks."""
        order = itertools.count(1)
        room = self.chunk_bytes - CHUNK_HEADER_BYTES
        spans = {thread: [self._span(span) for span in own] for thread, own in self.spans.items()}
        span_bytes = SPAN.size if self.version >= 7 else SPAN_BEFORE_7.size
        chunks = [
            Chunk(DICTIONARY, 0, payload, len(payload), next(order))
            for payload in _packed(self.entries, room)
        ]
        for kind, size, records in (
            (SPANS, span_bytes, spans),
            (ALLOCATIONS, ALLOCATION.size, self.allocations),
            (NOTES, NOTE.size, self.notes),
            (SAMPLES, SAMPLE.size, {0: self.samples}),
            (ROWS, 1, self.rows),
        ):
            chunks.extend(
                Chunk(kind, thread, payload, len(payload) // size, next(order))
                for thread, own in records.items()
                for payload in _packed(own, room)
            )
        return chunks + self.extra_chunks

    def to_bytes(self) -> bytes:
        """The whole file."""
        chunks = self.chunks()
        header = MAGIC + struct.pack(
            "<IIIIIIQQQQQQQQQ",
            self.version,
            self.chunk_bytes,
            self.state,
            self.clock,
            self.process,
            len(self.pairs),
            len(chunks),
            self.start_tick,
            self.stop_tick if self.state else 0,
            self.dropped_spans,
            self.dropped_allocations,
            self.recycled_spans,
            self.recycled_allocations,
            self.truncated_strings,
            self.dropped_dictionary,
        )
        header += b"".join(struct.pack("<Qqq", *pair) for pair in self.pairs[:MOST_CLOCK_PAIRS])
        header = header.ljust(
            len(header) + 24 * (MOST_CLOCK_PAIRS - min(len(self.pairs), MOST_CLOCK_PAIRS)), b"\0"
        )
        header += struct.pack("<QQ40x", self.dropped_notes, self.recycled_notes)
        header += struct.pack(
            "<QQQQ", self.dropped_samples, self.ring_dropped_samples, self.recycled_samples, self.torn_samples
        )
        if self.version >= 4:
            header += struct.pack(
                "<QQQ", max((chunk.order for chunk in chunks), default=0), self.recycled_chunks, 0
            )
        if self.version >= 5:
            header += struct.pack("<QQQ", self.dropped_rows, self.ring_dropped_rows, self.recycled_rows)
        return header.ljust(HEADER_BYTES, b"\0") + b"".join(
            chunk.to_bytes(self.chunk_bytes) for chunk in chunks
        )

    def write(self, path: Path) -> Path:
        """Writes the file and returns its path."""
        path.write_bytes(self.to_bytes())
        return path


def _packed(items: list[bytes], room: int) -> Iterator[bytes]:
    """Joins items to payloads of at most `room` bytes; an item is never divided."""
    payload = b""
    for item in items:
        if payload and len(payload) + len(item) > room:
            yield payload
            payload = b""
        payload += item
    if payload:
        yield payload
