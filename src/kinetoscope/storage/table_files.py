"""Write one table as a Parquet or Arrow IPC file, or all tables of a trace as a folder that can be opened again."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.model.arrow import number_array, text_array, to_numpy
from kinetoscope.model.schema import STORED
from kinetoscope.model.strings import from_utf8, to_utf8
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.atomic_write import open_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow


ROW_GROUP_ROWS = 1 << 20
BATCH_ROWS = 1 << 17
INFO_KEY = b"kinetoscope.info"


def write_parquet(
    make: Callable[..., pyarrow.Table], path: Path, info: Mapping[str, Any], rows: int | None = None
) -> None:
    """Write a table to a Parquet file, optionally one row group at a time to save memory.

    Names, modules and stacks are strings in the file, so it is self-contained. The metadata of the run is JSON in the
    file's metadata, under `kinetoscope.info`; the meaning of each column is in its field's metadata.

    Args:
        make: Returns the table or, if `rows` is given, the slice of its rows that is passed as `rows`.
        path: The file.
        info: The metadata of the trace.
        rows: The number of rows of a table that is made one row group at a time, else None.

    Raises:
        OSError: The file cannot be written.
    """
    import pyarrow.parquet as pq

    parts = _parts(make, rows)
    first = next(parts)
    schema = first.schema.with_metadata((first.schema.metadata or {}) | {INFO_KEY: _json(info)})
    with (
        open_atomically(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        writer.write_table(first.cast(schema), row_group_size=ROW_GROUP_ROWS)
        for part in parts:
            writer.write_table(part.cast(schema), row_group_size=ROW_GROUP_ROWS)


def _parts(make: Callable[..., pyarrow.Table], rows: int | None) -> Iterator[pyarrow.Table]:
    """Yield the whole table, or one row group at a time."""
    if rows is None:
        yield make()
        return
    for begin in range(0, max(rows, 1), ROW_GROUP_ROWS):
        yield make(rows=slice(begin, begin + ROW_GROUP_ROWS))


def _json(info: Mapping[str, Any]) -> bytes:
    return json.dumps(info, default=str).encode()


def write_arrow(table: pyarrow.Table, path: Path, info: Mapping[str, Any]) -> None:
    """Write a table to an Arrow IPC file (Feather version 2) with zstd buffers.

    Types, dictionaries and the meaning of each column are kept. The metadata of the run is JSON in the file's metadata,
    under `kinetoscope.info`.

    Args:
        table: The table, not chunked: an Arrow IPC file has one dictionary per column.
        path: The file.
        info: The metadata of the trace.

    Raises:
        OSError: The file cannot be written.
    """
    import pyarrow as pa

    described = table.replace_schema_metadata((table.schema.metadata or {}) | {INFO_KEY: _json(info)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with open_atomically(path) as file, pa.ipc.new_file(file, described.schema, options=options) as writer:
        writer.write_table(described, max_chunksize=BATCH_ROWS)


FORMAT, VERSION = "kinetoscope tables", 2
# The tables with one row per recorded event; aggregated tables can be computed from these.
SHOWN = (
    "spans", "steps", "cycles", "threads", "streams", "launches", "kernels", "copies", "collectives", "allocations",
    "samples", "counters", "frames", "shapes", "losses", "info",
)  # fmt: skip
_REFERENCE = "row of "


def write_tables(trace: TraceData, path: Path, make: Callable[..., pyarrow.Table]) -> None:
    """Write all tables to a folder, which appears under its name only when it is complete.

    Args:
        trace: The trace.
        path: The folder; an existing folder of tables is replaced.
        make: Returns a table by its name, with that table's options.

    Raises:
        ArgumentError: `path` exists and is not a folder of tables.
        OSError: The folder cannot be written.
    """
    path = path.absolute()
    if (path.exists() or path.is_symlink()) and not _is_ours(path):
        raise ArgumentError(
            f"{path} exists and is not a folder of tables: remove it, or choose another name that ends in .tables"
        )
    mark = secrets.token_hex(4)
    begin = os.fsdecode(os.fsencode(path.name)[:100])
    unfinished, old = (path.with_name(f".{begin}.{mark}.{role}") for role in ("new", "old"))
    unfinished.mkdir()
    try:
        for name in SHOWN:
            options = {"by": "span"} if name == "kernels" else {}
            rows = len(trace.columns("spans")) if name == "spans" else None
            write_parquet(
                partial(make, name, **options), unfinished / f"{name}.parquet", trace.saved_info(), rows
            )
        _write_stored(trace, unfinished / "stored")
        if path.exists():
            path.rename(old)
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def read_tables(path: Path) -> TraceData:
    """Open a folder that `write_tables` wrote.

    Args:
        path: The folder.

    Returns:
        The trace, read into memory.

    Raises:
        FormatError: The folder is not a folder of tables, has another version, is damaged, or lacks the folder `stored`.
        OSError: A file cannot be read.
    """
    import pyarrow as pa

    try:
        return _read(path)
    except FormatError:
        raise
    except (
        pa.ArrowException,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise FormatError(
            f"{path}: the folder of tables is damaged ({error}); write it again from its source"
        ) from error


def _read(path: Path) -> TraceData:
    """Read the folder; contents that do not parse raise any exception."""
    if not (path / "stored" / "manifest.json").is_file():
        raise FormatError(
            f"{path}: a folder, but not a trace: only folders that save() wrote under a name ending in .tables can be "
            "opened, and this one has no stored/manifest.json"
        )
    manifest = json.loads((path / "stored" / "manifest.json").read_bytes())
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError(f"{path}: a folder, but not a trace: its stored/manifest.json has another format")
    if manifest.get("version") != VERSION:
        raise FormatError(
            f"{path}: a folder of tables of version {manifest.get('version')!r}; this release reads version {VERSION}: "
            "open it with the release that wrote it, or upgrade kinetoscope"
        )
    if not isinstance(manifest.get("files"), dict) or manifest != with_checksum(manifest):
        raise FormatError(f"{path / 'stored' / 'manifest.json'} is damaged: its checksum does not match; write the folder again from its source")  # fmt: skip
    for name, checksum in manifest["files"].items():
        if Path(name).name != name:
            raise ValueError(f"the manifest names a file outside of the folder, {name!r}")
        _check(path / "stored" / name, checksum)
    strings = _column(path, "strings", "text", "text")
    if not strings or strings[0] != "" or not isinstance(manifest["info"], dict):
        raise ValueError(
            "the string table does not begin with an empty string, or the metadata is not an object"
        )
    tables: dict[str, dict[str, Any]] = {
        name: {
            column: _column(path, name, column, STORED[name].column(column).type)
            for column in entry["columns"]
        }
        for name, entry in manifest["tables"].items()
        if name in STORED
    }
    sizes = {name: len(next(iter(columns.values()), ())) for name, columns in tables.items()}
    for name, columns in tables.items():
        for column, values in columns.items():
            unit = STORED[name].column(column).unit
            if unit.startswith(_REFERENCE) and len(values):
                limit = (sizes | {"strings": len(strings)}).get(unit.removeprefix(_REFERENCE), 0)
                if values.min() < -1 or values.max() >= limit:
                    raise ValueError(f"column {column} of {name} has row numbers out of range")
    return TraceData.from_columns(tables, strings=strings, info=manifest["info"], path=path)


def _column(path: Path, table: str, column: str, kind: str) -> Any:
    """Read one stored column.

    Raises:
        FormatError: The file is not a valid Parquet file with that column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = path / "stored" / f"{table}.parquet"
    try:
        with pq.ParquetFile(source) as file:
            values = file.read([column]).column(column)
    except (pa.ArrowException, OSError, KeyError) as error:
        # Arrow raises OSError without an errno for invalid contents; the system's errors have one.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FormatError(f"{source} is damaged ({error}); write the folder again from its source") from error
    if kind == "text":
        return [from_utf8(text) for text in values.to_pylist()]
    return to_numpy(values).astype(np.dtype(kind), casting="safe", copy=False)


def _check(path: Path, checksum: object) -> None:
    """Verify the checksum of a file.

    Raises:
        FormatError: The file is missing or its checksum does not match.
    """
    try:
        actual = _checksum(path)
    except FileNotFoundError:
        raise FormatError(f"{path} is missing; write the folder again from its source") from None
    if actual != checksum:
        raise FormatError(f"{path} is damaged: its checksum is {actual}, not {checksum}; write the folder again from its source")  # fmt: skip


def _checksum(path: Path) -> str:
    """Return the CRC-32 of a file, as eight hexadecimal digits."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"


def with_checksum(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest with the checksum of its other entries."""
    content: dict[str, Any] = json.loads(
        json.dumps({key: value for key, value in manifest.items() if key != "checksum"})
    )
    return content | {"checksum": f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"}


def _write_stored(trace: TraceData, folder: Path) -> None:
    """Write the stored columns of every table as Parquet files, and a manifest of them."""
    folder.mkdir()
    tables: dict[str, Any] = {}
    for name in STORED:
        columns = trace.columns(name)
        tables[name] = {"rows": len(columns), "columns": list(columns.given)}
        if columns.given:
            _write(folder / f"{name}.parquet", {column: columns[column] for column in columns.given})
    _write(folder / "strings.parquet", {"text": trace.strings})
    files = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "version": VERSION, "info": trace.saved_info(), "tables": tables, "files": files}  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(with_checksum(manifest), indent=1), encoding="utf-8")


def _write(path: Path, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {
        name: text_array(map(to_utf8, values)) if isinstance(values, list) else number_array(values)
        for name, values in columns.items()
    }
    pq.write_table(
        pa.table(arrays), path, compression="zstd", row_group_size=ROW_GROUP_ROWS, write_page_checksum=True
    )


def _is_ours(path: Path) -> bool:
    """Return whether `path` is a folder that `write_tables` wrote, or an empty folder."""
    if not path.is_dir() or path.is_symlink():
        return False
    try:
        manifest = json.loads((path / "stored" / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return not any(path.iterdir())
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT
