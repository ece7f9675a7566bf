"""One table as a file: Parquet, or Arrow IPC, which is what Feather is since its version 2."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kinetoscope.storage.whole_file import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow


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
        replaced(path) as file,
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
    with replaced(path) as file, pa.ipc.new_file(file, made.schema, options=options) as writer:
        writer.write_table(made, max_chunksize=ROWS_OF_A_BATCH)
