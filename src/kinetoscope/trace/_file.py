"""Our own finished file, `.ktrace`: small, lazy to read, and made of parts that other tools can read.

It is a ZIP archive, stored without compression, of:

- `manifest.json`: `format` ("ktrace"), `version`, `info`, and for each table its number of rows and, for each column
  that is not as it seems, how it is encoded;
- `<table>.arrow`: the given columns of a table as one Arrow IPC file with zstd buffers. Derived columns (parents, self
  times, modules of backward operators ...) are not stored: every reader computes the same from these;
- `strings.arrow`: the string table, one column `text`.

Encodings: `delta`: each value minus the one before, the first as it is. `constant`: no column at all, the
manifest has the value. Text is valid UTF-8, lone surrogates escaped as `kinetoscope.trace._text` says.
Columns are read when they are first used. Members lie in the archive uncompressed, so they are mapped, not copied.
"""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import FormatError
from kinetoscope.trace._assemble import assemble
from kinetoscope.trace._replace import replaced
from kinetoscope.trace._schema import STORED, Table
from kinetoscope.trace._text import from_utf8, to_utf8
from kinetoscope.trace._trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow

    from kinetoscope.trace._columns import Columns

FORMAT, VERSION = "ktrace", 1
_DELTA = frozenset({("spans", "start_ns"), ("allocations", "time_ns")})


def write_ktrace(trace: Trace, path: Path) -> None:
    """Write a trace to a `.ktrace` file, which appears under its name only when it is whole.

    Args:
        trace: The trace.
        path: Where to write.

    Raises:
        OSError: The file cannot be written.
    """
    manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION, "info": trace.info, "tables": {}}
    with replaced(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in STORED:
            columns = trace.columns(name)
            encodings, table = _encoded(name, columns)
            manifest["tables"][name] = {"rows": len(columns), "columns": encodings}
            if table is not None:
                archive.writestr(f"{name}.arrow", _ipc(table))
        archive.writestr("strings.arrow", _ipc(_strings_table(trace.strings)))
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))


def read_ktrace(path: Path) -> Trace:
    """Open a `.ktrace` file; columns are read when they are first used.

    Args:
        path: The file.

    Returns:
        The trace; closing it lets go of the file.

    Raises:
        FormatError: The file is cut short, damaged, of a newer version, or something else.
        OSError: The file cannot be read.
    """
    import pyarrow as pa

    try:
        members, manifest = _members(path)
        source = pa.memory_map(str(path))
        try:
            strings = [
                from_utf8(text) for text in _column(source, members["strings.arrow"], "text").to_pylist()
            ]
            tables = {
                name: _lazy_columns(path, source, members.get(f"{name}.arrow"), STORED[name], known)
                for name, known in manifest["tables"].items()
                if name in STORED
            }
            rows = {name: int(known["rows"]) for name, known in manifest["tables"].items()}
        except BaseException:
            source.close()
            raise
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        raise _damaged(path, error) from error
    trace = Trace(assemble(tables, strings, rows), strings, manifest["info"], path)
    trace.on_close(source.close)
    return trace


def _encoded(name: str, columns: Columns) -> tuple[dict[str, Any], pyarrow.Table | None]:
    """Encode the given columns of a table; say how each is encoded where it is not plain."""
    import pyarrow as pa

    encodings: dict[str, Any] = {}
    arrays: dict[str, pyarrow.Array] = {}
    for column in columns.given:
        values = columns[column]
        if isinstance(values, list):
            encodings[column] = "plain"
            arrays[column] = pa.array([to_utf8(text) for text in values], pa.string())
        elif len(values) and (values == values[0]).all():
            encodings[column] = {"constant": values[0].item()}
        elif (name, column) in _DELTA:
            encodings[column] = "delta"
            arrays[column] = pa.array(np.diff(values, prepend=values.dtype.type(0)))
        else:
            encodings[column] = "plain"
            arrays[column] = pa.array(values)
    return encodings, pa.table(arrays) if arrays else None


def _ipc(table: pyarrow.Table) -> bytes:
    """Write one Arrow IPC file into memory."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _strings_table(strings: list[str]) -> pyarrow.Table:
    """The string table as Arrow."""
    import pyarrow as pa

    return pa.table({"text": pa.array([to_utf8(text) for text in strings], pa.string())})


def _members(path: Path) -> tuple[dict[str, tuple[int, int]], dict[str, Any]]:
    """Find where each member lies in the file, and read the manifest."""
    with zipfile.ZipFile(path) as archive:
        try:
            manifest = json.loads(archive.read("manifest.json"))
        except KeyError as error:
            raise FormatError(
                f"{path}: a ZIP archive, but no .ktrace file: it holds no manifest.json"
            ) from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise FormatError(
                f"{path}: a ZIP archive, but no .ktrace file: its manifest.json is something else's"
            )
        if manifest.get("version") != VERSION:
            raise FormatError(
                f"{path}: a .ktrace file of version {manifest.get('version')!r}; this release reads version {VERSION}: "
                "open it with the release that wrote it, or update kinetoscope"
            )
        members: dict[str, tuple[int, int]] = {}
        with path.open("rb") as file:
            for entry in archive.infolist():
                # The header before a member repeats its name and may carry extra bytes, so its length is read there.
                file.seek(entry.header_offset)
                header = file.read(30)
                if len(header) < 30 or entry.compress_type != zipfile.ZIP_STORED:
                    raise zipfile.BadZipFile(f"member {entry.filename} is cut short or compressed")
                name_bytes, extra_bytes = (
                    int.from_bytes(header[26:28], "little"),
                    int.from_bytes(header[28:30], "little"),
                )
                start = entry.header_offset + 30 + name_bytes + extra_bytes
                members[entry.filename] = (start, entry.file_size)
    return members, manifest


def _lazy_columns(
    path: Path,
    source: pyarrow.MemoryMappedFile,
    place: tuple[int, int] | None,
    table: Table,
    known: dict[str, Any],
) -> dict[str, Any]:
    """Functions that read the columns of a table, for those the file has."""
    names = set(table.column_names)
    return {
        name: _loader(path, source, place, table.column(name).type, name, encoding, int(known["rows"]))
        for name, encoding in known["columns"].items()
        if name in names
    }


def _loader(
    path: Path,
    source: pyarrow.MemoryMappedFile,
    place: tuple[int, int] | None,
    kind: str,
    name: str,
    encoding: Any,
    rows: int,
) -> Callable[[], Any]:
    """Make the function that reads one column."""

    def load() -> Any:
        import pyarrow as pa

        if isinstance(encoding, dict):
            return np.full(rows, encoding["constant"], dtype=kind)
        try:
            if place is None:
                raise ValueError(f"column {name} is missing")
            stored = _column(source, place, name)
            if kind == "text":
                return [from_utf8(text) for text in stored.to_pylist()]
            values = stored.to_numpy()
            return np.cumsum(values, dtype=kind) if encoding == "delta" else values
        except (ValueError, KeyError, pa.ArrowException) as error:
            raise _damaged(path, error) from error

    return load


def _column(source: pyarrow.MemoryMappedFile, place: tuple[int, int], name: str) -> pyarrow.ChunkedArray:
    """Read one column of one member."""
    import pyarrow as pa

    member = _slice(source, *place)
    schema = pa.ipc.open_file(member).schema
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name)])
    return pa.ipc.open_file(member, options=options).read_all().column(name)


def _slice(source: pyarrow.MemoryMappedFile, start: int, size: int) -> pyarrow.Buffer:
    """A piece of the mapped file, without copying it."""
    source.seek(start)
    return source.read_buffer(size)


def _damaged(path: Path, error: BaseException) -> FormatError:
    """Say that a file cannot be used, and what is known about why."""
    if isinstance(error, FormatError):
        return error
    return FormatError(
        f"{path}: the .ktrace file is cut short or damaged ({error}); write it again from its source"
    )
