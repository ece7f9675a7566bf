"""Write and read `.ktrace`, the file format of finished traces: small, and readable one column at a time.

A `.ktrace` file is a ZIP archive, stored without compression, of Arrow IPC files with zstd buffers and of `manifest.json`:

- `format` ("ktrace"), `version` (2), and `info`, the metadata of the trace;
- `strings`: the number of strings; they are the column `text` of `strings.arrow`;
- `tables`: for each table its number of `rows` and its `columns`. Derived columns (parents, self times, modules of
  backward operators ...) are not stored; every reader computes them.

For each column, the manifest has either `constant`, the value of every row, or `member`, the archive member that holds the
column, with its encodings:

- `delta`: the member holds each value minus the one before, to be summed in 64 bits. The value of `delta` is a list of
  [row, step] for the few steps that do not fit the stored type; they are 0 in the member.
- `planes`: the N bytes of each value are N columns, `<name>.0` (the lowest bytes) to `<name>.N-1`.

Integers may be stored in a narrower type than the schema's. Floating-point columns with `delta` or `planes` are encoded as
the integers with the same bits. Text is valid UTF-8, with lone surrogates escaped as in `kinetoscope.model.strings`.

A small table is one member, `<table>.arrow`. Each column of a large table is a member of its own,
`<table>.<column>.arrow`, so that reading one column touches nothing else in the file. A member is read, and its checksum
verified, when it is first used.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import threading
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import FormatError, StateError
from kinetoscope.model.arrow import number_array, text_array, to_numpy
from kinetoscope.model.assemble import assemble
from kinetoscope.model.columns import Columns
from kinetoscope.model.dictionary import Column
from kinetoscope.model.schema import STORED
from kinetoscope.model.strings import from_utf8, to_utf8
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.atomic_write import open_atomically
from kinetoscope.storage.unpacking import FREE_BYTES, FREE_RATIO, default_memory_bytes

if TYPE_CHECKING:
    import pyarrow


# Which encoding makes a column smallest depends on its values: increasing ids compress best as deltas, times as byte
# planes of their deltas, names without encoding. So each encoding is tried on a sample, and the smallest result wins.

_WIDTHS = (np.int8, np.int16, np.int32)
_SAMPLE_ROWS = 32_768
# How many deltas may exceed the stored type: the first one of each thread, and a few more.
_MOST_JUMPS = 256
_SMALL_ROWS = 1024
# Deltas and byte planes slow down reading; each must save at least this many bytes per value.
_WORTH_BYTES = 0.05


def encoded(name: str, values: NDArray[Any]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Encode one column of numbers.

    Args:
        name: The name of the column.
        values: Integers of any width, or 64-bit floats.

    Returns:
        The column's entry in the manifest, and the Arrow columns to write (none for a constant).
    """
    # 64-bit values keep their bits, floats included.
    bits = values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)
    if len(bits) and (bits == bits[0]).all() and (values.dtype.kind != "f" or np.isfinite(values[0])):
        return {"constant": values[0].item()}, {}
    if len(bits) < _SMALL_ROWS:
        return {}, {name: values}
    steps, planes = _best(bits)
    entry: dict[str, Any] = {}
    if steps:
        bits, jumps = _steps(bits)
        entry["delta"] = jumps
    narrow = _narrowed(bits)
    if not planes or narrow.itemsize == 1:
        return entry, {name: narrow}
    entry["planes"] = narrow.itemsize
    return entry, {f"{name}.{index}": plane for index, plane in enumerate(_planes(narrow))}


def decoded(
    name: str, kind: str, entry: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]
) -> NDArray[Any]:
    """Undo `encoded`.

    Args:
        name: The name of the column.
        kind: Its numpy type in the schema.
        entry: The column's entry in the manifest.
        stored: The Arrow columns that `column_names` lists.

    Returns:
        The values, of type `kind`.

    Raises:
        ValueError: The stored columns do not decode to that type.
    """
    if "planes" in entry:
        values = _joined([stored[part] for part in column_names(name, entry)])
    else:
        values = stored[name]
    if "delta" in entry:
        values = _summed(values, entry["delta"])
    return _of_kind(name, kind, values)


def column_names(name: str, entry: Mapping[str, Any]) -> list[str]:
    """Return the names of the Arrow columns that store a column.

    Raises:
        ValueError: The manifest's number of byte planes is invalid.
    """
    width = entry.get("planes")
    if width is None:
        return [name]
    if width not in (2, 4, 8):
        raise ValueError(f"column {name} has {width!r} byte planes; valid are 2, 4 and 8")
    return [f"{name}.{index}" for index in range(width)]


def _of_kind(name: str, kind: str, values: NDArray[Any]) -> NDArray[Any]:
    """Convert stored numbers to the column's type; raise ValueError if one does not fit."""
    wanted = np.dtype(kind)
    if values.dtype == wanted:
        return values
    if values.dtype.kind not in "iu":
        raise ValueError(f"column {name} has the type {values.dtype}; expected {kind}")
    if wanted.itemsize == 8:
        return values.astype(np.int64, copy=False).view(wanted)
    limits = np.iinfo(wanted)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        raise ValueError(f"column {name} has values that do not fit {kind}")
    return values.astype(wanted)


def _best(bits: NDArray[np.int64]) -> tuple[bool, bool]:
    middle = len(bits) // 2
    sample = np.concatenate([bits[:_SAMPLE_ROWS], bits[middle : middle + _SAMPLE_ROWS]])
    sizes: dict[tuple[bool, bool], float] = {}
    worth = _WORTH_BYTES * len(sample)
    for steps in (False, True):
        narrow = _narrowed(_steps(sample)[0] if steps else sample)
        sizes[steps, False] = _compressed_bytes(narrow) + steps * worth
        sizes[steps, True] = sum(_compressed_bytes(plane) for plane in _planes(narrow)) + (steps + 1) * worth
    return min(sizes, key=lambda way: sizes[way])


def _steps(bits: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[list[int]]]:
    """Return the deltas, and as [row, step] the few that would need a wider type."""
    steps = np.diff(bits, prepend=np.int64(0))
    for width in _WIDTHS:
        limits = np.iinfo(width)
        outside = (steps < limits.min) | (steps > limits.max)
        if np.count_nonzero(outside) <= _MOST_JUMPS:
            rows = np.flatnonzero(outside)
            jumps = [[row, step] for row, step in zip(rows.tolist(), steps[rows].tolist(), strict=True)]
            steps[rows] = 0
            return steps, jumps
    return steps, []


def _summed(steps: NDArray[Any], jumps: list[list[int]]) -> NDArray[np.int64]:
    values = np.empty(len(steps), dtype=np.int64)
    begin, base = 0, 0
    for row, step in [*jumps, [len(steps), 0]]:
        if not begin <= row <= len(steps):
            raise ValueError(f"a delta list has the row {row}, which is out of order or out of range")
        part = values[begin:row]
        np.cumsum(steps[begin:row], out=part)
        part += np.int64(base)
        begin, base = row, int(values[row - 1] if row else 0) + step
        base = (base + (1 << 63)) % (1 << 64) - (1 << 63)
    return values


def _narrowed(bits: NDArray[np.int64]) -> NDArray[Any]:
    low, high = bits.min(), bits.max()
    for width in _WIDTHS:
        limits = np.iinfo(width)
        if low >= limits.min and high <= limits.max:
            return bits.astype(width)
    return bits


def _planes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Split the values into byte planes, one row each: the lowest bytes of all values, then the next ones, and so on."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little.view(np.uint8).reshape(len(values), values.itemsize).T)


def _joined(planes: list[NDArray[Any]]) -> NDArray[Any]:
    if any(plane.dtype != np.uint8 or len(plane) != len(planes[0]) for plane in planes):
        raise ValueError("the byte planes of a column differ in length, or are not bytes")
    return np.stack(planes, axis=1).reshape(-1).view(np.dtype(f"<i{len(planes)}"))


def _compressed_bytes(values: NDArray[Any]) -> int:
    import pyarrow as pa

    return len(pa.compress(np.ascontiguousarray(values), "zstd"))


def unpacked_bytes(content: memoryview) -> int:
    """Return the uncompressed size of an Arrow file in bytes, without uncompressing any of it.

    Args:
        content: The file: record batches whose buffers may be compressed, without dictionaries.

    Raises:
        ValueError: The file has dictionaries, or impossible sizes or offsets.
        struct.error: The file is truncated or damaged.
    """
    total = 0
    for body, rows, batch in _batches(content):
        size = 0
        compressed = batch.field(3) != 0
        for start, length in struct.iter_unpack("<qq", batch.vector(2, 16)):
            if compressed and length > 0:
                uncompressed = _number(content, "<q", body + start)
                length = length - 8 if uncompressed == -1 else uncompressed
            if length < 0:
                raise ValueError("an Arrow file has a buffer of negative size")
            size += length
        # Types without buffers also have rows.
        total += max(size, rows)
    return total


def _batches(content: memoryview) -> Iterator[tuple[int, int, _Flat]]:
    """Yield the offset of the body, the number of rows and the metadata of each record batch of an Arrow file."""
    end = len(content) - 10
    footer = content[end - _number(content, "<i", end) : end]
    fields = _Flat(footer, _number(footer, "<I", 0))
    if len(fields.vector(2, 24)):
        raise ValueError("an Arrow file has dictionaries; .ktrace files have none")
    for offset, head, _ in struct.iter_unpack("<qi4xq", fields.vector(3, 24)):
        # The message follows a four-byte marker and the message's length.
        message = content[offset : offset + head]
        batch = _Flat(message, 8 + _number(message, "<I", 8)).table(2)
        field = batch.field(0)
        rows = _number(message, "<q", field) if field else 0
        if rows < 0:
            raise ValueError("an Arrow file has a negative number of rows")
        yield offset + head, rows, batch


def _number(content: memoryview, form: str, offset: int) -> int:
    if offset < 0:
        raise ValueError("an Arrow file has an offset before its start")
    number: int = struct.unpack_from(form, content, offset)[0]
    return number


class _Flat:
    """A table of a FlatBuffer, the encoding of Arrow's metadata."""

    def __init__(self, content: memoryview, offset: int) -> None:
        self._content, self._place = content, offset
        self._fields = offset - _number(content, "<i", offset)

    def field(self, number: int) -> int:
        """Return the offset of a field, 0 if it is absent."""
        slot = 4 + 2 * number
        if slot >= _number(self._content, "<H", self._fields):
            return 0
        offset = _number(self._content, "<H", self._fields + slot)
        return self._place + offset if offset else 0

    def table(self, number: int) -> _Flat:
        """Return a field that is a table; raise ValueError if it is absent."""
        offset = self.field(number)
        if not offset:
            raise ValueError("an Arrow file lacks a required field")
        return _Flat(self._content, offset + _number(self._content, "<I", offset))

    def vector(self, number: int, entry_bytes: int) -> memoryview:
        """Return the entries of a list field; raise ValueError if they lie beyond the end."""
        offset = self.field(number)
        if not offset:
            return self._content[:0]
        offset += _number(self._content, "<I", offset)
        size = entry_bytes * _number(self._content, "<I", offset)
        if offset + 4 + size > len(self._content):
            raise ValueError("an Arrow file has a list that lies beyond its end")
        return self._content[offset + 4 : offset + 4 + size]


FORMAT, VERSION = "ktrace", 2
LARGE_ROWS = 65_536
# Fewer characters than this cannot exceed 2 GiB of UTF-8, the limit of Arrow's 32-bit offsets.


def write_ktrace(trace: TraceData, path: Path) -> None:
    """Write a trace to a `.ktrace` file, which appears under its name only when it is complete.

    Args:
        trace: The trace.
        path: The file.

    Raises:
        OSError: The file cannot be written.
    """
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "info": trace.saved_info(),
        "strings": len(trace.strings),
        "tables": {},
    }
    with open_atomically(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in STORED:
            columns = trace.columns(name)
            entries: dict[str, dict[str, Any]] = {}
            for member, arrays in _members(name, columns, entries):
                archive.writestr(member, _ipc(arrays))
            manifest["tables"][name] = {"rows": len(columns), "columns": entries}
        archive.writestr("strings.arrow", _ipc({"text": text_array(map(to_utf8, trace.strings))}))
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))


def _members(
    name: str, columns: Columns, entries: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, pyarrow.Array]]]:
    together: dict[str, pyarrow.Array] = {}
    for column in columns.given:
        values = columns[column]
        if isinstance(values, list):
            entry: dict[str, Any] = {}
            arrays = {column: text_array(map(to_utf8, values))}
        else:
            entry, numbers = encoded(column, values)
            arrays = {part: number_array(stored) for part, stored in numbers.items()}
        entries[column] = entry
        if not arrays:
            continue
        if len(columns) < LARGE_ROWS:
            entry["member"] = f"{name}.arrow"
            together.update(arrays)
        else:
            entry["member"] = f"{name}.{column}.arrow"
            yield entry["member"], arrays
    if together:
        yield f"{name}.arrow", together
    elif entries and len(columns) >= LARGE_ROWS and all("constant" in entry for entry in entries.values()):
        # A reader rejects a large number of rows that no member confirms.
        column = columns.given[0]
        entries[column] = {"member": f"{name}.{column}.arrow"}
        yield entries[column]["member"], {column: number_array(columns[column])}


def _ipc(arrays: dict[str, pyarrow.Array]) -> memoryview:
    import pyarrow as pa

    table = pa.table(arrays)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


_REFERENCE = "row of "
# The escapes that `from_utf8` decodes.
_ESCAPE = re.compile(rb"\\u\{d")
_MOST_ROWS = 1 << 31
# The size of a Python string without its characters.
_TEXT_BYTES = 64


def read_ktrace(
    path: Path, *, max_memory_bytes: int | None = None, max_uncompressed_bytes: int | None = None
) -> TraceData:
    """Open a `.ktrace` file; columns and strings are read when they are first used.

    Args:
        path: The file.
        max_memory_bytes: The most memory that its columns and strings may take, 0 for no limit. The default is half of
            the available memory. Reading a column that would exceed the limit raises `FormatError`.
        max_uncompressed_bytes: The most bytes that the file may uncompress to. The default is 200 times its size, at
            least 1 GiB.

    Returns:
        The trace; closing it closes the file. Reading a damaged column later raises `FormatError`.

    Raises:
        FormatError: The file is truncated, damaged, of a newer version, or not a `.ktrace` file.
        OSError: The file cannot be read.
    """
    with _saying_what_is_damaged(path):
        reader = _Reader(path, max_memory_bytes, max_uncompressed_bytes)
        try:
            trace = TraceData(
                assemble(reader.tables(), reader.strings, reader.rows), reader.strings, reader.info, path
            )
        except BaseException:
            reader.close()
            raise
    trace.on_close(reader.close)
    return trace


class _Reader:
    """One open file: the offsets of its members, and the verified members of small tables."""

    def __init__(self, path: Path, max_memory_bytes: int | None, max_uncompressed_bytes: int | None) -> None:
        """Read the manifest; keep the file open, so that replacing it on disk does not change this trace."""
        self.path = path
        self._made_bytes = 0
        self._most_memory = default_memory_bytes() if max_memory_bytes is None else max_memory_bytes
        if max_uncompressed_bytes is None:
            max_uncompressed_bytes = max(FREE_BYTES, FREE_RATIO * path.stat().st_size)
        self._most_unpacked = max_uncompressed_bytes
        with path.open("rb") as file:
            self._places, manifest = _contents(path, file)
            self.info: Any = manifest["info"]
            self._tables: dict[str, Any] = {
                name: entry for name, entry in manifest["tables"].items() if name in STORED
            }
            self.rows = {name: int(entry["rows"]) for name, entry in self._tables.items()}
            if min(self.rows.values(), default=0) < 0:
                raise ValueError("a table has a negative number of rows")
            if max(self.rows.values(), default=0) >= _MOST_ROWS:
                raise ValueError("a table has 2**31 rows or more")
            if not isinstance(self.info, dict):
                raise TypeError("the metadata is not a JSON object")
            self._string_count: int = manifest["strings"]
            self._file: int | None = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self._file)
        self._lock = threading.RLock()
        # A member with one column is read once; one with several is small, and cached.
        self._shared = {f"{name}.arrow" for name in self._tables}
        self._checked: dict[str, bytearray] = {}
        self._strings: list[str] | None = None
        for name, rows in self.rows.items():
            if rows >= LARGE_ROWS:
                self._confirm_rows(name)

    def close(self) -> None:
        """Close the file; columns that were read stay valid."""
        with self._lock:
            self._checked.clear()
            self._file = None
            self._close()

    def tables(self) -> dict[str, dict[str, Callable[[], Any]]]:
        """Return a function for each stored column that reads and checks it, by table and column name."""
        return {
            name: {
                column.name: partial(self._load, name, column, stored)
                for column in STORED[name].columns
                if (stored := entry["columns"].get(column.name, self._default(name, column))) is not None
            }
            for name, entry in self._tables.items()
        }

    def _default(self, table: str, column: Column) -> dict[str, Any] | None:
        """The entry of a column that a large table lacks; like constants, they count toward the memory limit."""
        if self.rows[table] < LARGE_ROWS or column.derived or column.type == "text":
            return None
        return {"constant": column.default}

    def strings(self) -> list[str]:
        """Return the strings; the first call reads them.

        Raises:
            FormatError: The string table is damaged.
        """
        with self._lock:
            if self._strings is None:
                with _saying_what_is_damaged(self.path):
                    stored = self._arrow("strings.arrow", ["text"])[0]
                    self._allow(stored.nbytes + len(stored) * _TEXT_BYTES, keep=True)
                    strings = _read_texts(stored)
                    if not strings or strings[0] != "" or self._string_count != len(strings):
                        raise ValueError(
                            "the string table does not begin with an empty string, or has the wrong length"
                        )
                    self._strings = strings
            return self._strings

    def _arrow(self, member: str, names: list[str]) -> list[pyarrow.ChunkedArray]:
        import pyarrow as pa

        content = self._member(member)
        schema = pa.ipc.open_file(content).schema
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
        table = pa.ipc.open_file(content, options=options).read_all()
        columns = [table.column(name) for name in names]
        for column in columns:
            # Arrow trusts the lengths and offsets of a file; bad ones would crash the process.
            column.validate(full=True)
            if column.null_count:
                raise ValueError(f"{member} has null values")
        return columns

    def _member(self, name: str) -> bytearray:
        """Read a whole member into memory and verify its checksum, since the file can be overwritten at any time."""
        with self._lock:
            if name in self._checked:
                return self._checked[name]
            if self._file is None:
                raise StateError("the trace is closed; open it again to read more columns")
            if name not in self._places:
                raise ValueError(f"{name} is missing")
            start, size, checksum = self._places[name]
            content = _bytes_at(self._file, start, size, name)
            if zlib.crc32(content) != checksum:
                raise ValueError(f"the checksum of {name} does not match")
            self._allow(unpacked_bytes(memoryview(content)))
            if name in self._shared:
                self._checked[name] = content
            return content

    def _allow(self, count: int, *, keep: bool = False) -> None:
        """Raise FormatError if `count` more bytes exceed a limit; with `keep` they count until the trace is closed."""
        total = self._made_bytes + count
        if total > self._most_unpacked:
            raise FormatError(
                f"{self.path}: its columns uncompress to more than {self._most_unpacked:,} bytes: if you trust the "
                "file, open it with a larger max_uncompressed_bytes"
            )
        if 0 < self._most_memory < total:
            raise FormatError(
                f"{self.path}: its columns need more memory than the limit of {self._most_memory:,} bytes: close "
                "other programs, or open it with a larger max_memory_bytes"
            )
        if keep:
            self._made_bytes = total

    def _load(self, table: str, column: Column, entry: dict[str, Any]) -> Any:
        with _saying_what_is_damaged(self.path):
            values = self._read(table, column, entry)
            if len(values) != self.rows[table]:
                raise ValueError(f"column {column.name} of {table} has the wrong length")
            if column.unit.startswith(_REFERENCE) and len(values):
                named = column.unit.removeprefix(_REFERENCE)
                limit = self._string_count if named == "strings" else self.rows.get(named, 0)
                if values.min() < -1 or values.max() >= limit:
                    raise ValueError(f"column {column.name} of {table} has row numbers out of range")
            return values

    def _read(self, table: str, column: Column, entry: dict[str, Any]) -> Any:
        if "constant" in entry:
            self._allow(self.rows[table] * np.dtype(column.type).itemsize, keep=True)
            return np.full(self.rows[table], entry["constant"], dtype=column.type)
        if column.type == "text":
            texts = self._arrow(entry["member"], [column.name])[0]
            self._allow(texts.nbytes + len(texts) * _TEXT_BYTES, keep=True)
            return _read_texts(texts)
        parts = column_names(column.name, entry)
        arrays = self._arrow(entry["member"], parts)
        self._allow(len(arrays[0]) * np.dtype(column.type).itemsize, keep=True)
        stored = {part: to_numpy(array) for part, array in zip(parts, arrays, strict=True)}
        return decoded(column.name, column.type, entry, stored)

    def _confirm_rows(self, table: str) -> None:
        """Check a large row count against a stored column, so that no small file can claim all memory."""
        rows = self.rows[table]
        members = {entry["member"] for entry in self._tables[table]["columns"].values() if "member" in entry}
        if not members:
            raise ValueError(f"the manifest has {rows} rows for {table}, but no column stores any")
        smallest = min(members, key=lambda name: self._places.get(name, (0, 0, 0))[1])
        if sum(count for _, count, _ in _batches(memoryview(self._member(smallest)))) != rows:
            raise ValueError(
                f"the manifest has {rows} rows for {table}, but its columns have a different number"
            )


def _bytes_at(file: int, start: int, size: int, name: str) -> bytearray:
    """Read exactly `size` bytes at `start`; ValueError if the file ends earlier."""
    if start + size > os.fstat(file).st_size:
        raise ValueError(f"the file ends inside {name}")
    content = bytearray(size)
    view, done = memoryview(content), 0
    while done < size:
        count = os.preadv(file, [view[done:]], start + done)
        if count == 0:
            raise ValueError(f"the file ends inside {name}")
        done += count
    return content


def _read_texts(stored: pyarrow.ChunkedArray) -> list[str]:
    texts: list[str] = stored.to_pylist()
    buffers = (buffer for chunk in stored.chunks for buffer in chunk.buffers() if buffer is not None)
    if any(_ESCAPE.search(buffer) for buffer in buffers):
        return [from_utf8(text) for text in texts]
    return texts


def _contents(path: Path, file: Any) -> tuple[dict[str, tuple[int, int, int]], dict[str, Any]]:
    with zipfile.ZipFile(file) as archive:
        if "manifest.json" not in archive.namelist():
            raise FormatError(f"{path}: a ZIP archive, but not a .ktrace file: it has no manifest.json")
        # A compressed manifest could uncompress to any size.
        if archive.getinfo("manifest.json").compress_type != zipfile.ZIP_STORED:
            raise FormatError(f"{path}: a ZIP archive, but not a .ktrace file: its members are compressed")
        manifest = json.loads(archive.read("manifest.json"))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise FormatError(
                f"{path}: a ZIP archive, but not a .ktrace file: its manifest.json has another format"
            )
        if manifest.get("version") != VERSION:
            raise FormatError(
                f"{path}: a .ktrace file of version {manifest.get('version')!r}; this release reads version {VERSION}: open it "
                "with the release that wrote it, or upgrade kinetoscope"
            )
        members: dict[str, tuple[int, int, int]] = {}
        for entry in archive.infolist():
            # A member's local header has a variable length, which is only stored there.
            file.seek(entry.header_offset)
            header = file.read(30)
            if len(header) < 30 or entry.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"member {entry.filename} is truncated or compressed")
            skip = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            members[entry.filename] = (entry.header_offset + 30 + skip, entry.file_size, entry.CRC)
    return members, manifest


@contextmanager
def _saying_what_is_damaged(path: Path) -> Iterator[None]:
    """Convert errors of reading to FormatError, unless they say already what is wrong or the file cannot be read at all."""
    try:
        yield
    except (FormatError, StateError):
        raise
    # Parsing a damaged file can raise anything: zipfile, json, Arrow and numpy share no exception class.
    except Exception as error:
        # Arrow's have no number, and what a damaged archive has for an offset can be one that no file has.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise FormatError(
            f"{path}: the .ktrace file is truncated or damaged ({error}); write it again from its source"
        ) from error
