"""Tables as files that other tools read: one as Parquet or Arrow IPC, or all of a trace in a folder."""

from __future__ import annotations

import json
import secrets
import shutil
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.model.schema import STORED
from kinetoscope.model.strings import from_utf8, to_utf8
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.atomic_write import open_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow


# One table as a file: Parquet, or Arrow IPC, which is what Feather is since its version 2.

# One table as a Parquet file, for tools that read nothing else.

ROWS_OF_A_GROUP = 1 << 20
ROWS_OF_A_BATCH = 1 << 17
INFO_KEY = b"kinetoscope.info"


def write_parquet(
    make: Callable[..., pyarrow.Table], path: Path, info: Mapping[str, Any], rows: int | None = None
) -> None:
    """Write a table to a Parquet file; the spans, which would be far larger than the trace, a group of rows at a time.

    A Parquet file holds one table. Names, modules and stacks are in it as strings, so the file needs nothing else. What is
    known of the run is JSON in the file's metadata, under `kinetoscope.info`; what each column means in that of its field.

    Args:
        make: Makes the table or, where `rows` is given, those of its rows that its argument `rows` names, a slice.
        path: Where to write.
        info: The metadata of the trace.
        rows: How many rows there are, for a table that is made in parts.

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
        writer.write_table(first.cast(schema), row_group_size=ROWS_OF_A_GROUP)
        for part in parts:
            writer.write_table(part.cast(schema), row_group_size=ROWS_OF_A_GROUP)


def _parts(make: Callable[..., pyarrow.Table], rows: int | None) -> Iterator[pyarrow.Table]:
    """A table, or groups of its rows, with the same columns."""
    if rows is None:
        yield make()
        return
    for begin in range(0, max(rows, 1), ROWS_OF_A_GROUP):
        yield make(rows=slice(begin, begin + ROWS_OF_A_GROUP))


def _json(info: Mapping[str, Any]) -> bytes:
    """The metadata of a trace as JSON."""
    return json.dumps(info, default=str).encode()


def write_arrow(table: pyarrow.Table, path: Path, info: Mapping[str, Any]) -> None:
    """Write a table to an Arrow IPC file with zstd buffers.

    The file has all types, dictionaries and the meaning of each column, and as metadata what is known of the run, as JSON
    under `kinetoscope.info`.

    Args:
        table: The table, in one piece: such a file has one dictionary for each column.
        path: Where to write.
        info: The metadata of the trace.

    Raises:
        OSError: The file cannot be written.
    """
    import pyarrow as pa

    made = table.replace_schema_metadata((table.schema.metadata or {}) | {INFO_KEY: _json(info)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with open_atomically(path) as file, pa.ipc.new_file(file, made.schema, options=options) as writer:
        writer.write_table(made, max_chunksize=ROWS_OF_A_BATCH)


FORMAT, VERSION = "kinetoscope tables", 2
# Those that have a row for each row of the trace; what adds them up is quickly asked of these.
SHOWN = (
    "spans", "steps", "cycles", "threads", "streams", "launches", "kernels", "copies", "collectives", "allocations",
    "counters", "frames", "shapes", "losses", "info",
)  # fmt: skip
_REFERENCE = "row of "


def write_tables(trace: TraceData, path: Path, make: Callable[..., pyarrow.Table]) -> None:
    """Write all tables to a folder, which appears under its name only when it is whole.

    Args:
        trace: The trace.
        make: Makes a table by its name, with the options of that table.
        path: The folder; one of the same kind that is there is replaced.

    Raises:
        ArgumentError: There is something else of that name.
        OSError: The folder cannot be written.
    """
    path = path.absolute()
    if (path.exists() or path.is_symlink()) and not _is_ours(path):
        raise ArgumentError(
            f"{path} is there and is no folder of tables: remove it, or choose another name that ends in .tables"
        )
    mark = secrets.token_hex(4)
    unfinished, old = (path.with_name(f".{path.name[:100]}.{mark}.{role}") for role in ("new", "old"))
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
        FormatError: The folder is something else, of a newer version, damaged, or lacks its folder `stored`.
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
    """Read the folder; whatever is wrong raises something."""
    if not (path / "stored" / "manifest.json").is_file():
        raise FormatError(
            f"{path}: a folder, but no trace: only folders that save() made of a name ending in .tables can be opened, "
            "with the folder stored in them"
        )
    manifest = json.loads((path / "stored" / "manifest.json").read_bytes())
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError(f"{path}: a folder, but its stored/manifest.json is something else's")
    if manifest.get("version") != VERSION:
        raise FormatError(
            f"{path}: a folder of tables of version {manifest.get('version')!r}; this release reads version {VERSION}: "
            "open it with the release that wrote it, or update kinetoscope"
        )
    if not isinstance(manifest.get("files"), dict) or manifest != sealed(manifest):
        raise FormatError(f"{path / 'stored' / 'manifest.json'} is damaged: its checksum is another one; write the folder again from its source")  # fmt: skip
    for name, checksum in manifest["files"].items():
        _check(path / "stored" / name, checksum)
    strings = _column(path, "strings", "text", "text")
    if not strings or strings[0] != "" or not isinstance(manifest["info"], dict):
        raise ValueError("the string table or the metadata is not as it must be")
    tables: dict[str, dict[str, Any]] = {
        name: {
            column: _column(path, name, column, STORED[name].column(column).type)
            for column in known["columns"]
        }
        for name, known in manifest["tables"].items()
        if name in STORED
    }
    sizes = {name: len(next(iter(columns.values()), ())) for name, columns in tables.items()}
    for name, columns in tables.items():
        for column, values in columns.items():
            unit = STORED[name].column(column).unit
            if unit.startswith(_REFERENCE) and len(values):
                limit = (sizes | {"strings": len(strings)}).get(unit.removeprefix(_REFERENCE), 0)
                if values.min() < -1 or values.max() >= limit:
                    raise ValueError(f"column {column} of {name} refers to rows that are not there")
    return TraceData.from_columns(tables, strings=strings, info=manifest["info"], path=path)


def _column(path: Path, table: str, column: str, kind: str) -> Any:
    """Read one stored column.

    Raises:
        FormatError: The file is no such file of Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = path / "stored" / f"{table}.parquet"
    try:
        with pq.ParquetFile(source) as file:
            values = file.read([column]).column(column)
    except (pa.ArrowException, OSError, KeyError) as error:
        # Arrow raises plain OSError for contents that it cannot make sense of; those of the system have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FormatError(f"{source} is damaged ({error}); write the folder again from its source") from error
    if kind == "text":
        return [from_utf8(text) for text in values.to_pylist()]
    return values.to_numpy().astype(np.dtype(kind), casting="safe", copy=False)


def _check(path: Path, checksum: object) -> None:
    """Compare a file with its checksum.

    Raises:
        FormatError: It is not there, or has other contents.
    """
    try:
        found = _checksum(path)
    except FileNotFoundError:
        raise FormatError(f"{path} is missing; write the folder again from its source") from None
    if found != checksum:
        raise FormatError(f"{path} is damaged: its checksum is {found}, not {checksum}; write the folder again from its source")  # fmt: skip


def _checksum(path: Path) -> str:
    """The CRC-32 of a file, as eight hexadecimal digits."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the checksum of all else that it says."""
    told: dict[str, Any] = json.loads(
        json.dumps({key: value for key, value in manifest.items() if key != "checksum"})
    )
    return told | {"checksum": f"{zlib.crc32(json.dumps(told, sort_keys=True).encode()):08x}"}


def _write_stored(trace: TraceData, folder: Path) -> None:
    """Write the given columns of every table, and what they are."""
    folder.mkdir()
    known: dict[str, Any] = {}
    for name in STORED:
        columns = trace.columns(name)
        known[name] = {"rows": len(columns), "columns": list(columns.given)}
        if columns.given:
            _write(folder / f"{name}.parquet", {column: columns[column] for column in columns.given})
    _write(folder / "strings.parquet", {"text": trace.strings})
    files = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "version": VERSION, "info": trace.saved_info(), "tables": known, "files": files}  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(sealed(manifest), indent=1), encoding="utf-8")


def _write(path: Path, columns: dict[str, Any]) -> None:
    """Write columns to a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {
        name: pa.array([to_utf8(text) for text in values], pa.string())
        if isinstance(values, list)
        else pa.array(values)
        for name, values in columns.items()
    }
    pq.write_table(
        pa.table(arrays), path, compression="zstd", row_group_size=ROWS_OF_A_GROUP, write_page_checksum=True
    )


def _is_ours(path: Path) -> bool:
    """Whether a folder is one that `write_tables` wrote, or empty."""
    if not path.is_dir() or path.is_symlink():
        return False
    try:
        manifest = json.loads((path / "stored" / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return not any(path.iterdir())
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT
