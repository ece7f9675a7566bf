"""Write one table as a Parquet or Arrow IPC file, or all tables of a trace as a folder that can be opened again."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.model.arrow import ArrowTable
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.atomic_write import open_atomically
from kinetoscope.storage.ktrace import write_ktrace

ROW_GROUP_ROWS = 1 << 20
BATCH_ROWS = 1 << 17
INFO_KEY = b"kinetoscope.info"


def write_parquet(
    make: Callable[..., ArrowTable], path: Path, info: Mapping[str, Any], rows: int | None = None
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

    begins = range(0, max(rows or 0, 1), ROW_GROUP_ROWS)
    parts = (
        make(rows=slice(begin, begin + ROW_GROUP_ROWS)) if rows is not None else make() for begin in begins
    )
    first = next(parts)
    schema = first.schema.with_metadata((first.schema.metadata or {}) | {INFO_KEY: _json(info)})
    with (
        open_atomically(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for part in itertools.chain([first], parts):
            writer.write_table(part.cast(schema), row_group_size=ROW_GROUP_ROWS)


def _json(info: Mapping[str, Any]) -> bytes:
    return json.dumps(info, default=str).encode()


def write_arrow(table: ArrowTable, path: Path, info: Mapping[str, Any]) -> None:
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


STORED_FILE = "stored.ktrace"
"""The file in a folder of tables that the trace is read from."""

# The tables with one row per recorded event; aggregated tables can be computed from these.
SHOWN = (
    "spans", "steps", "cycles", "threads", "streams", "launches", "kernels", "copies", "collectives", "allocations",
    "samples", "counters", "frames", "shapes", "losses", "info",
)  # fmt: skip


def write_tables(trace: TraceData, path: Path, make: Callable[..., ArrowTable]) -> None:
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
        write_ktrace(trace, unfinished / STORED_FILE)
        if path.exists():
            path.rename(old)
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    if not path.is_dir() or path.is_symlink():
        return False
    return (path / STORED_FILE).is_file() or not any(path.iterdir())
