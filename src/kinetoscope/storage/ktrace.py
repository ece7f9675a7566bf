"""Reading `.ktrace` files, whose layout `kinetoscope.storage.ktrace` describes."""

from __future__ import annotations

import json
import os
import re
import struct
import threading
import weakref
import zipfile
import zlib
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import FormatError, StateError
from kinetoscope.model.assemble import assemble
from kinetoscope.model.schema import STORED, Column
from kinetoscope.model.strings import from_utf8, to_utf8
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.atomic_write import open_atomically
from kinetoscope.storage.unpacking import FREE_BYTES, FREE_RATIO, default_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.columns import Columns


# How the numbers of a column are written in a `.ktrace` file: `kinetoscope.storage.ktrace` says what each encoding is.
#
# Which one makes a column smallest depends on what it holds: counted-up ids want their steps, times the bytes of their
# steps apart, names nothing. So each is tried on a sample of the column, and the smallest is taken.

_WIDTHS = (np.int8, np.int16, np.int32)
_SAMPLE = 32_768
# So many steps may be too long for a column's type; one where each thread begins, and a few more.
_JUMPS = 256
_SMALL = 1024
# What steps, and bytes apart, must each save of a value to be worth undoing when it is read.
_WORTH_BYTES = 0.05
# So many values are put together at a time, which stay in the processor's cache.
_CACHED = 65_536


def encoded(name: str, values: NDArray[Any]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Encode one column of numbers.

    Args:
        name: Its name.
        values: What it holds: whole numbers, or floating-point ones of 64 bits.

    Returns:
        How it is encoded, as the manifest says it, and the Arrow columns to write (none for a constant).
    """
    bits = as_bits(values)
    if len(bits) and (bits == bits[0]).all() and (values.dtype.kind != "f" or np.isfinite(values[0])):
        return {"constant": values[0].item()}, {}
    if len(bits) < _SMALL:
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
    return entry, {f"{name}.{place}": plane for place, plane in enumerate(_planes(narrow))}


def decoded(
    name: str, kind: str, entry: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]
) -> NDArray[Any]:
    """Undo `encoded`.

    Args:
        name: The column.
        kind: Its numpy type.
        entry: What the manifest says of it.
        stored: The Arrow columns that `column_names` lists.

    Returns:
        The column.

    Raises:
        ValueError: What is stored cannot be such a column.
    """
    if "planes" in entry:
        values = _joined([stored[part] for part in column_names(name, entry)])
    else:
        values = stored[name]
    if "delta" in entry:
        values = _summed(values, entry["delta"])
    return _of_kind(name, kind, values)


def column_names(name: str, entry: Mapping[str, Any]) -> list[str]:
    """The Arrow columns that hold a column.

    Raises:
        ValueError: The encoding is none that this release knows.
    """
    width = entry.get("planes")
    if width is None:
        return [name]
    if width not in (2, 4, 8):
        raise ValueError(f"column {name} is said to be cut into {width!r} bytes")
    return [f"{name}.{place}" for place in range(width)]


def as_bits(values: NDArray[Any]) -> NDArray[np.int64]:
    """The values as signed numbers of 64 bits; what has 64 bits already keeps them."""
    return values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)


def _of_kind(name: str, kind: str, values: NDArray[Any]) -> NDArray[Any]:
    """Bring stored numbers into the type of their column, which must hold them."""
    wanted = np.dtype(kind)
    if values.dtype == wanted:
        return values
    if values.dtype.kind not in "iu":
        raise ValueError(f"column {name} holds {values.dtype} where {kind} is due")
    if wanted.itemsize == 8:
        return values.astype(np.int64, copy=False).view(wanted)
    limits = np.iinfo(wanted)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        raise ValueError(f"column {name} holds numbers that {kind} cannot")
    return values.astype(wanted)


def _best(bits: NDArray[np.int64]) -> tuple[bool, bool]:
    """Whether to store steps, and whether bytes apart: what makes a sample smallest and is worth it."""
    middle = len(bits) // 2
    sample = np.concatenate([bits[:_SAMPLE], bits[middle : middle + _SAMPLE]])
    sizes: dict[tuple[bool, bool], float] = {}
    worth = _WORTH_BYTES * len(sample)
    for steps in (False, True):
        narrow = _narrowed(_steps(sample)[0] if steps else sample)
        sizes[steps, False] = _compressed_bytes(narrow) + steps * worth
        sizes[steps, True] = sum(_compressed_bytes(plane) for plane in _planes(narrow)) + (steps + 1) * worth
    return min(sizes, key=lambda way: sizes[way])


def _steps(bits: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[list[int]]]:
    """Each value minus the one before, and apart from them, by row, the few that would make the type wider."""
    steps = np.diff(bits, prepend=np.int64(0))
    for width in _WIDTHS:
        limits = np.iinfo(width)
        outside = (steps < limits.min) | (steps > limits.max)
        if np.count_nonzero(outside) <= _JUMPS:
            rows = np.flatnonzero(outside)
            jumps = [[row, step] for row, step in zip(rows.tolist(), steps[rows].tolist(), strict=True)]
            steps[rows] = 0
            return steps, jumps
    return steps, []


def _summed(steps: NDArray[Any], jumps: list[list[int]]) -> NDArray[np.int64]:
    """Undo `_steps`: sums begin anew at each jump, from what they had come to and its length."""
    values = np.empty(len(steps), dtype=np.int64)
    begin, base = 0, 0
    for row, step in [*jumps, [len(steps), 0]]:
        if not begin <= row <= len(steps):
            raise ValueError(f"a step is said to be at row {row}")
        part = values[begin:row]
        np.cumsum(steps[begin:row], out=part)
        part += np.int64(base)
        begin, base = row, int(values[row - 1] if row else 0) + step
        base = (base + (1 << 63)) % (1 << 64) - (1 << 63)
    return values


def _narrowed(bits: NDArray[np.int64]) -> NDArray[Any]:
    """The same numbers in the narrowest type that holds them all."""
    low, high = bits.min(), bits.max()
    for width in _WIDTHS:
        limits = np.iinfo(width)
        if low >= limits.min and high <= limits.max:
            return bits.astype(width)
    return bits


def _planes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The lowest bytes of all values, then the next ones, and so on: one row each."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little.view(np.uint8).reshape(len(values), values.itemsize).T)


def _joined(planes: list[NDArray[Any]]) -> NDArray[Any]:
    """Undo `_planes`."""
    if any(plane.dtype != np.uint8 or len(plane) != len(planes[0]) for plane in planes):
        raise ValueError("the bytes of a column are not as they must be")
    together = np.empty((len(planes[0]), len(planes)), dtype=np.uint8)
    for begin in range(0, len(together), _CACHED):
        for place, plane in enumerate(planes):
            together[begin : begin + _CACHED, place] = plane[begin : begin + _CACHED]
    return together.reshape(-1).view(np.dtype(f"<i{len(planes)}"))


def _compressed_bytes(values: NDArray[Any]) -> int:
    """How many bytes zstd makes of the values."""
    return len(_zstd().compress(np.ascontiguousarray(values)))


@cache
def _zstd() -> pyarrow.Codec:
    """The compression that the files use."""
    import pyarrow as pa

    return pa.Codec("zstd")


def unpacked_bytes(content: memoryview) -> int:
    """How many bytes an Arrow file becomes when it is read, found without unpacking any of it.

    Args:
        content: The file: record batches whose buffers may be compressed, and no dictionaries.

    Raises:
        ValueError: It has dictionaries, or says something impossible.
        struct.error: It is cut short or damaged.
    """
    footer = len(content) - 10 - _number(content, "<i", len(content) - 10)
    fields = _Flat(content, footer + _number(content, "<I", footer))
    if fields.vector(2)[1]:
        raise ValueError("an Arrow file has dictionaries, which no trace has")
    begin, count = fields.vector(3)
    total = 0
    for block in range(begin, begin + 24 * count, 24):
        offset, head, _ = struct.unpack_from("<qi4xq", content, block)
        # Behind a mark of four bytes and the length of the message.
        message = _Flat(content, offset + 8 + _number(content, "<I", offset + 8))
        batch = message.table(2)
        place = batch.field(0)
        rows = _number(content, "<q", place) if place else 0
        size = 0
        compressed = batch.field(3) != 0
        first, buffers = batch.vector(2)
        for entry in range(first, first + 16 * buffers, 16):
            start, length = struct.unpack_from("<qq", content, entry)
            if compressed and length > 0:
                told = _number(content, "<q", offset + head + start)
                length = length - 8 if told == -1 else told
            if length < 0:
                raise ValueError("an Arrow file has a buffer of less than no bytes")
            size += length
        if rows < 0:
            raise ValueError("an Arrow file has fewer than no rows")
        # Types without buffers have rows, too.
        total += max(size, rows)
    return total


def _number(content: memoryview, form: str, place: int) -> int:
    """One number, which must lie within the content."""
    if place < 0:
        raise ValueError("an Arrow file refers to what lies before it")
    found: int = struct.unpack_from(form, content, place)[0]
    return found


class _Flat:
    """A table of a FlatBuffer, the form of Arrow's metadata."""

    def __init__(self, content: memoryview, place: int) -> None:
        self._content, self._place = content, place
        self._fields = place - _number(content, "<i", place)

    def field(self, number: int) -> int:
        """Where a field lies; 0 if it is not there."""
        slot = 4 + 2 * number
        if slot >= _number(self._content, "<H", self._fields):
            return 0
        offset = _number(self._content, "<H", self._fields + slot)
        return self._place + offset if offset else 0

    def table(self, number: int) -> _Flat:
        """A field that is a table."""
        place = self.field(number)
        if not place:
            raise ValueError("an Arrow file lacks a part")
        return _Flat(self._content, place + _number(self._content, "<I", place))

    def vector(self, number: int) -> tuple[int, int]:
        """Where the entries of a field begin that is a list, and how many there are."""
        place = self.field(number)
        if not place:
            return 0, 0
        place += _number(self._content, "<I", place)
        return place + 4, _number(self._content, "<I", place)


# Our own finished file, `.ktrace`: small, read a column at a time, made of parts that other tools can read.
#
# It is a ZIP archive, stored without compression, of Arrow IPC files with zstd buffers and of `manifest.json`:
#
# - `format` ("ktrace"), `version` (2), and `info`, the metadata of the trace;
# - `strings`: the number of strings; they are the column `text` of `strings.arrow`;
# - `tables`: for each its number of `rows` and its `columns`. Only given columns are stored. Derived ones (parents, self
#   times, modules of backward operators ...) every reader computes from these.
#
# Of each column the manifest says either `constant`, the value of every row, or the `member` of the archive that holds
# it, and how: `delta`, each value minus the one before, summed up in 64 bits (the list has [row, step] of the few steps that
# do not fit and are 0 in the file); `planes`, as N columns `<name>.0` to `<name>.N-1` of bytes, the lowest first. Whole
# numbers may have a narrower type than the schema says; floating-point ones with `delta` or `planes` are their bits.
# Text is valid UTF-8, lone surrogates escaped as `kinetoscope.model.strings` says.
#
# Small tables are one member, `<table>.arrow`. Columns of large ones are a member each, `<table>.<column>.arrow`, so that
# using one touches nothing else of the file: members are read, and their checksums checked, when they are first used.
#
# Version 1, still read, had one member a table, the number of strings nowhere, and for each column `plain`, `delta` or
# a constant.

FORMAT, VERSION = "ktrace", 2
LARGE_ROWS = 65_536
# Texts of so many characters have fewer bytes than 31 bits can count.
_SMALL_TEXT = 1 << 29


def write_ktrace(trace: TraceData, path: Path) -> None:
    """Write a trace to a `.ktrace` file, which appears under its name only when it is whole.

    Args:
        trace: The trace.
        path: Where to write.

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
            for member, table in _members(name, columns, entries):
                archive.writestr(member, _ipc(table))
            manifest["tables"][name] = {"rows": len(columns), "columns": entries}
        archive.writestr("strings.arrow", _ipc(_table({"text": _texts(trace.strings)})))
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))


def _members(
    name: str, columns: Columns, entries: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, pyarrow.Table]]:
    """The members that hold the given columns of a table; `entries` is told of each column what the manifest says."""
    import pyarrow as pa

    together: dict[str, pyarrow.Array] = {}
    for column in columns.given:
        values = columns[column]
        if isinstance(values, list):
            entry: dict[str, Any] = {}
            arrays = {column: _texts(values)}
        else:
            entry, numbers = encoded(column, values)
            arrays = {part: pa.array(stored) for part, stored in numbers.items()}
        entries[column] = entry
        if not arrays:
            continue
        if len(columns) < LARGE_ROWS:
            entry["member"] = f"{name}.arrow"
            together.update(arrays)
        else:
            entry["member"] = f"{name}.{column}.arrow"
            yield entry["member"], _table(arrays)
    if together:
        yield f"{name}.arrow", _table(together)
    elif entries and len(columns) >= LARGE_ROWS and all("constant" in entry for entry in entries.values()):
        # A reader believes so many rows only when it sees them.
        column = columns.given[0]
        entries[column] = {"member": f"{name}.{column}.arrow"}
        yield entries[column]["member"], _table({column: pa.array(columns[column])})


def _table(arrays: dict[str, pyarrow.Array]) -> pyarrow.Table:
    """Arrays of one length as an Arrow table."""
    import pyarrow as pa

    return pa.table(arrays)


def _ipc(table: pyarrow.Table) -> memoryview:
    """Write one Arrow IPC file into memory."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def _texts(texts: list[str]) -> pyarrow.Array:
    """Texts as Arrow, which counts their bytes in 64 bits where 32 may not do."""
    import pyarrow as pa

    small = sum(map(len, texts)) < _SMALL_TEXT
    return pa.array([to_utf8(text) for text in texts], pa.string() if small else pa.large_string())


_REFERENCE = "row of "
# What `from_utf8` looks for.
_ESCAPE = re.compile(rb"\\u\{d")
_MOST_ROWS = 1 << 31
# What a text takes beside its characters.
_TEXT_BYTES = 64
# Whatever parsing a damaged file may raise: ZIP, JSON, Arrow and numpy have families of their own.
_DAMAGE = Exception


def read_ktrace(
    path: Path, *, max_memory_bytes: int | None = None, max_uncompressed_bytes: int | None = None
) -> TraceData:
    """Open a `.ktrace` file; columns and strings are read when they are first used.

    Args:
        path: The file.
        max_memory_bytes: How much memory its columns and strings may take, 0 for no limit; without it half of what is
            available. What comes on top is a `FormatError` before it is read.
        max_uncompressed_bytes: How many bytes the file may become; without it 200 times its size or 1 GiB.

    Returns:
        The trace; closing it lets go of the file. A part that turns out damaged later is a `FormatError` then.

    Raises:
        FormatError: The file is cut short, damaged, of a newer version, or something else.
        OSError: The file cannot be read.
    """
    try:
        reader = _Reader(path, max_memory_bytes, max_uncompressed_bytes)
        try:
            trace = TraceData(
                assemble(reader.tables(), reader.strings, reader.rows), reader.strings, reader.info, path
            )
        except BaseException:
            reader.close()
            raise
    except (OSError, FormatError):
        raise
    except _DAMAGE as error:
        raise _damaged(path, error) from error
    trace.on_close(reader.close)
    return trace


class _Reader:
    """One open file: where its members lie, and which of them were checked."""

    def __init__(self, path: Path, max_memory_bytes: int | None, max_uncompressed_bytes: int | None) -> None:
        """Read the manifest; the file stays open, so that a later one of this name does not take its place."""
        self.path = path
        self._made_bytes = 0
        self._most_memory = default_memory_bytes() if max_memory_bytes is None else max_memory_bytes
        self._most_unpacked = (
            max(FREE_BYTES, FREE_RATIO * path.stat().st_size)
            if max_uncompressed_bytes is None
            else max_uncompressed_bytes
        )
        self._file: int | None = None
        with path.open("rb") as file:
            self._places, manifest = _contents(path, file)
            self.info: Any = manifest["info"]
            self._tables: dict[str, Any] = {
                name: _plain_words(name, known)
                for name, known in manifest["tables"].items()
                if name in STORED
            }
            self.rows = {name: int(known["rows"]) for name, known in self._tables.items()}
            if min(self.rows.values(), default=0) < 0:
                raise ValueError("a table has fewer than no rows")
            if max(self.rows.values(), default=0) >= _MOST_ROWS:
                raise ValueError("a table has more rows than rows have numbers")
            if not isinstance(self.info, dict):
                raise TypeError("the metadata is not as it must be")
            self._string_count: int | None = manifest.get("strings")
            self._file = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self._file)
        self._lock = threading.RLock()
        # Members of one column are read once; those of several are small and worth keeping.
        self._shared = {f"{name}.arrow" for name in self._tables}
        self._checked: dict[str, pyarrow.Buffer] = {}
        self._strings: list[str] | None = None
        self._seen_rows: set[str] = set()

    def close(self) -> None:
        """Let go of the file; columns that were read stay valid."""
        with self._lock:
            self._checked.clear()
            self._file = None
            self._close()

    def tables(self) -> dict[str, dict[str, Callable[[], Any]]]:
        """Functions that read the columns the file has; references are checked against the size of what they name."""
        return {
            name: {
                column.name: partial(self._load, name, column, known["columns"][column.name])
                for column in STORED[name].columns
                if column.name in known["columns"]
            }
            | self._defaults(name, known)
            for name, known in self._tables.items()
        }

    def _defaults(self, table: str, known: dict[str, Any]) -> dict[str, Callable[[], Any]]:
        """The columns that a large table does not have, as constants, which are made only when its rows were seen."""
        if self.rows[table] < LARGE_ROWS:
            return {}
        return {
            column.name: partial(self._load, table, column, {"constant": column.default})
            for column in STORED[table].columns
            if not column.derived and column.name not in known["columns"] and column.type != "text"
        }

    def strings(self) -> list[str]:
        """The string table, read the first time.

        Raises:
            FormatError: It is damaged.
        """
        with self._lock:
            if self._strings is None:
                try:
                    stored = self._arrow("strings.arrow", ["text"])[0]
                    self._allow(stored.nbytes + len(stored) * _TEXT_BYTES, keep=True)
                    strings = _read_texts(stored)
                    if not strings or strings[0] != "" or self._string_count not in (None, len(strings)):
                        raise ValueError("the string table is not as it must be")
                except (FormatError, StateError):
                    raise
                except _DAMAGE as error:
                    raise _damaged(self.path, error) from error
                self._strings = strings
            return self._strings

    def _arrow(self, member: str, names: list[str]) -> list[pyarrow.ChunkedArray]:
        """Read columns of one member."""
        import pyarrow as pa

        content = self._member(member)
        schema = pa.ipc.open_file(content).schema
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
        table = pa.ipc.open_file(content, options=options).read_all()
        columns = [table.column(name) for name in names]
        if any(column.null_count for column in columns):
            raise ValueError(f"{member} has gaps")
        return columns

    def _member(self, name: str) -> pyarrow.Buffer:
        """Read a member whole and check it: somebody may write over the file at any moment."""
        import pyarrow as pa

        with self._lock:
            if name in self._checked:
                return self._checked[name]
            if self._file is None:
                raise StateError("the trace was closed; open it again to read more of it")
            if name not in self._places:
                raise ValueError(f"{name} is missing")
            start, size, checksum = self._places[name]
            content = _bytes_at(self._file, start, size, name)
            if zlib.crc32(content) != checksum:
                raise ValueError(f"the checksum of {name} does not fit")
            self._allow(unpacked_bytes(memoryview(content)))
            buffer = pa.py_buffer(content)
            if name in self._shared:
                self._checked[name] = buffer
            return buffer

    def _allow(self, count: int, *, keep: bool = False) -> None:
        """Refuse what would become more than the limits allow.

        Args:
            count: How many bytes are about to be made.
            keep: They stay as long as the trace does, and count from now on.

        Raises:
            FormatError: It is too much.
        """
        total = self._made_bytes + count
        if total > self._most_unpacked:
            raise FormatError(
                f"{self.path}: its columns take more than {self._most_unpacked:,} bytes when they are unpacked: if "
                "the file is known to be good, open it with a larger max_uncompressed_bytes"
            )
        if 0 < self._most_memory < total:
            raise FormatError(
                f"{self.path}: its columns take more memory than the {self._most_memory:,} bytes that they may: close "
                "other programs, or open it with a larger max_memory_bytes"
            )
        if keep:
            self._made_bytes = total

    def _load(self, table: str, column: Column, entry: dict[str, Any]) -> Any:
        """Read and check one column."""
        try:
            values = self._read(table, column, entry)
            if len(values) != self.rows[table]:
                raise ValueError(f"column {column.name} of {table} has the wrong length")
            if column.unit.startswith(_REFERENCE) and len(values):
                named = column.unit.removeprefix(_REFERENCE)
                limit = self._count_of_strings() if named == "strings" else self.rows.get(named, 0)
                if values.min() < -1 or values.max() >= limit:
                    raise ValueError(f"column {column.name} of {table} refers to rows that are not there")
        except (FormatError, StateError):
            raise
        except _DAMAGE as error:
            raise _damaged(self.path, error) from error
        return values

    def _count_of_strings(self) -> int:
        """How many strings there are, without reading them where the manifest says it."""
        return len(self.strings()) if self._string_count is None else self._string_count

    def _read(self, table: str, column: Column, entry: dict[str, Any]) -> Any:
        """Read one column and undo its encoding."""
        if "constant" in entry:
            self._see_rows(table)
            self._allow(self.rows[table] * np.dtype(column.type).itemsize, keep=True)
            return np.full(self.rows[table], entry["constant"], dtype=column.type)
        if column.type == "text":
            texts = self._arrow(entry["member"], [column.name])[0]
            self._allow(texts.nbytes + len(texts) * _TEXT_BYTES, keep=True)
            return _read_texts(texts)
        parts = column_names(column.name, entry)
        arrays = self._arrow(entry["member"], parts)
        self._allow(len(arrays[0]) * np.dtype(column.type).itemsize, keep=True)
        stored = {part: array.to_numpy() for part, array in zip(parts, arrays, strict=True)}
        return decoded(column.name, column.type, entry, stored)

    def _see_rows(self, table: str) -> None:
        """Believe in many rows only where a column has them, so that no small file asks for all memory."""
        rows = self.rows[table]
        if rows < LARGE_ROWS or table in self._seen_rows:
            return
        entries = [entry for entry in self._tables[table]["columns"].items() if "member" in entry[1]]
        if not entries:
            raise ValueError(f"{table} claims {rows} rows and holds none")
        name, entry = min(entries, key=lambda one: self._places.get(one[1]["member"], (0, 0, 0))[1])
        if len(self._arrow(entry["member"], column_names(name, entry)[:1])[0]) != rows:
            raise ValueError(f"{table} does not have the {rows} rows that it claims")
        self._seen_rows.add(table)


def _bytes_at(file: int, start: int, size: int, name: str) -> bytearray:
    """Read bytes of an open file, all of them.

    Raises:
        ValueError: They are not there.
    """
    if start + size > os.fstat(file).st_size:
        raise ValueError(f"the file ends before the end of {name}")
    content = bytearray(size)
    view, done = memoryview(content), 0
    while done < size:
        count = os.preadv(file, [view[done:]], start + done)
        if count == 0:
            raise ValueError(f"the file ends before the end of {name}")
        done += count
    return content


def _read_texts(stored: pyarrow.ChunkedArray) -> list[str]:
    """Texts as they were before they were made valid UTF-8."""
    texts: list[str] = stored.to_pylist()
    held = (buffer for chunk in stored.chunks for buffer in chunk.buffers() if buffer is not None)
    if any(_ESCAPE.search(buffer) for buffer in held):
        return [from_utf8(text) for text in texts]
    return texts


def _plain_words(table: str, known: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says of a table, in the words of version 2."""
    as_now = {
        "plain": {"member": f"{table}.arrow"},
        "delta": {"member": f"{table}.arrow", "delta": []},
    }
    columns = {
        name: as_now[entry] if isinstance(entry, str) else entry for name, entry in known["columns"].items()
    }
    return {"rows": known["rows"], "columns": columns}


def _contents(path: Path, file: Any) -> tuple[dict[str, tuple[int, int, int]], dict[str, Any]]:
    """Find start, size and checksum of each member, and read the manifest."""
    with zipfile.ZipFile(file) as archive:
        if "manifest.json" not in archive.namelist():
            raise FormatError(f"{path}: a ZIP archive, but no .ktrace file: it holds no manifest.json")
        # A compressed manifest could become as large as it likes.
        if archive.getinfo("manifest.json").compress_type != zipfile.ZIP_STORED:
            raise FormatError(f"{path}: a ZIP archive, but no .ktrace file: its members are compressed")
        manifest = json.loads(archive.read("manifest.json"))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise FormatError(
                f"{path}: a ZIP archive, but no .ktrace file: its manifest.json is something else's"
            )
        if manifest.get("version") not in range(1, VERSION + 1):
            raise FormatError(
                f"{path}: a .ktrace file of version {manifest.get('version')!r}; this release reads versions 1 to "
                f"{VERSION}: open it with the release that wrote it, or update kinetoscope"
            )
        places: dict[str, tuple[int, int, int]] = {}
        for entry in archive.infolist():
            # The header before a member repeats its name and may carry extra bytes, so its length is read there.
            file.seek(entry.header_offset)
            header = file.read(30)
            if len(header) < 30 or entry.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"member {entry.filename} is cut short or compressed")
            skip = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            places[entry.filename] = (entry.header_offset + 30 + skip, entry.file_size, entry.CRC)
    return places, manifest


def _damaged(path: Path, error: BaseException) -> FormatError:
    """Say that a file cannot be used, and what is known about why."""
    return FormatError(
        f"{path}: the .ktrace file is cut short or damaged ({error}); write it again from its source"
    )
