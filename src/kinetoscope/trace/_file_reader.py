"""Reading `.ktrace` files, whose layout `kinetoscope.trace._file` describes."""

from __future__ import annotations

import json
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import FormatError
from kinetoscope.trace._assemble import assemble
from kinetoscope.trace._file import FORMAT, VERSION
from kinetoscope.trace._schema import STORED, Column
from kinetoscope.trace._text import from_utf8
from kinetoscope.trace._trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow

_REFERENCE = "row of "


def read_ktrace(path: Path) -> Trace:
    """Open a `.ktrace` file; columns are read when they are first used.

    Args:
        path: The file.

    Returns:
        The trace; closing it lets go of the file. A part that turns out damaged later is a `FormatError` then.

    Raises:
        FormatError: The file is cut short, damaged, of a newer version, or something else.
        OSError: The file cannot be read.
    """
    import pyarrow as pa

    try:
        reader = _Reader(path)
        try:
            strings = [from_utf8(text) for text in reader.column("strings", "text").to_pylist()]
            tables = reader.tables(len(strings))
            if not strings or strings[0] != "" or not isinstance(reader.info, dict):
                raise ValueError("the string table or the metadata is not as it must be")
            trace = Trace(assemble(tables, strings, reader.rows), strings, reader.info, path)
        except BaseException:
            reader.close()
            raise
    except _DAMAGE as error:
        raise _damaged(path, error) from error
    except pa.ArrowException as error:
        raise _damaged(path, error) from error
    trace.on_close(reader.close)
    return trace


_DAMAGE = (
    zipfile.BadZipFile,
    NotImplementedError,  # the archive asks for something of ZIP that nobody writes here
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
)


class _Reader:
    """One open file: where its members lie, and which of them were checked."""

    def __init__(self, path: Path) -> None:
        """Read the manifest and map the file."""
        import pyarrow as pa

        self.path = path
        self._places, manifest = _members(path)
        self.info: Any = manifest["info"]
        self._tables: dict[str, Any] = {
            name: known for name, known in manifest["tables"].items() if name in STORED
        }
        self.rows = {name: int(known["rows"]) for name, known in self._tables.items()}
        if min(self.rows.values(), default=0) < 0:
            raise ValueError("a table has fewer than no rows")
        self._source = pa.memory_map(str(path))
        self._checked: dict[str, pyarrow.Buffer] = {}

    def close(self) -> None:
        """Let go of the file; columns that were read stay valid."""
        self._checked.clear()
        self._source.close()

    def tables(self, strings: int) -> dict[str, dict[str, Callable[[], Any]]]:
        """Functions that read the columns the file has; references are checked against the size of what they name."""
        sizes = self.rows | {"strings": strings}
        return {
            name: {
                column.name: self._loader(name, column, known["columns"][column.name], sizes)
                for column in STORED[name].columns
                if column.name in known["columns"]
            }
            for name, known in self._tables.items()
        }

    def column(self, table: str, name: str) -> pyarrow.ChunkedArray:
        """Read one column of one member."""
        import pyarrow as pa

        member = self._member(f"{table}.arrow")
        schema = pa.ipc.open_file(member).schema
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name)])
        return pa.ipc.open_file(member, options=options).read_all().column(name)

    def _member(self, name: str) -> pyarrow.Buffer:
        """Return a member without copying it; its checksum is checked the first time."""
        if name not in self._checked:
            if name not in self._places:
                raise ValueError(f"{name} is missing")
            start, size, checksum = self._places[name]
            self._source.seek(start)
            content = self._source.read_buffer(size)
            if len(content) != size or zlib.crc32(content) != checksum:
                raise ValueError(f"the checksum of {name} does not fit")
            self._checked[name] = content
        return self._checked[name]

    def _loader(self, table: str, column: Column, encoding: Any, sizes: dict[str, int]) -> Callable[[], Any]:
        """Make the function that reads one column."""

        def load() -> Any:
            try:
                values = self._read(table, column, encoding)
                if len(values) != self.rows[table]:
                    raise ValueError(f"column {column.name} of {table} has the wrong length")
                if column.unit.startswith(_REFERENCE) and len(values):
                    limit = sizes.get(column.unit.removeprefix(_REFERENCE), 0)
                    if values.min() < -1 or values.max() >= limit:
                        raise ValueError(f"column {column.name} of {table} refers to rows that are not there")
                return values
            except (*_DAMAGE, OSError) as error:
                raise _damaged(self.path, error) from error

        return load

    def _read(self, table: str, column: Column, encoding: Any) -> Any:
        """Read one column and undo its encoding."""
        if isinstance(encoding, dict):
            return np.full(self.rows[table], encoding["constant"], dtype=column.type)
        stored = self.column(table, column.name)
        if column.type == "text":
            return [from_utf8(text) for text in stored.to_pylist()]
        values = stored.to_numpy()
        if encoding == "delta":
            return np.cumsum(values, dtype=column.type)
        return values.astype(column.type, casting="safe", copy=False)


def _members(path: Path) -> tuple[dict[str, tuple[int, int, int]], dict[str, Any]]:
    """Find start, size and checksum of each member, and read the manifest."""
    with zipfile.ZipFile(path) as archive:
        if "manifest.json" not in archive.namelist():
            raise FormatError(f"{path}: a ZIP archive, but no .ktrace file: it holds no manifest.json")
        manifest = json.loads(archive.read("manifest.json"))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise FormatError(
                f"{path}: a ZIP archive, but no .ktrace file: its manifest.json is something else's"
            )
        if manifest.get("version") != VERSION:
            raise FormatError(
                f"{path}: a .ktrace file of version {manifest.get('version')!r}; this release reads version "
                f"{VERSION}: open it with the release that wrote it, or update kinetoscope"
            )
        places: dict[str, tuple[int, int, int]] = {}
        with path.open("rb") as file:
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
    if isinstance(error, FormatError):
        return error
    return FormatError(
        f"{path}: the .ktrace file is cut short or damaged ({error}); write it again from its source"
    )
