"""Reading `.ktrace` files, whose layout `kinetoscope.trace._file` describes."""

from __future__ import annotations

import json
import os
import re
import threading
import weakref
import zipfile
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import FormatError, StateError
from kinetoscope.trace._assemble import assemble
from kinetoscope.trace._file import FORMAT, LARGE_ROWS, VERSION
from kinetoscope.trace._file_columns import column_names, decoded, unpacked_bytes
from kinetoscope.trace._memory_limit import default_memory_bytes
from kinetoscope.trace._schema import STORED, Column
from kinetoscope.trace._text import from_utf8
from kinetoscope.trace._trace import Trace
from kinetoscope.trace._unpacking import FREE_BYTES, FREE_RATIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow

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
) -> Trace:
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
            trace = Trace(
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
                    strings = _texts(stored)
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
            return _texts(texts)
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


def _texts(stored: pyarrow.ChunkedArray) -> list[str]:
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
