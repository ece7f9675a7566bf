"""One table as a Parquet file, for tools that read nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kinetoscope.trace import catalog
from kinetoscope.trace._replace import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow

    from kinetoscope.trace._trace import Trace

ROWS_OF_A_GROUP = 1 << 20
INFO_KEY = b"kinetoscope.info"


def write_parquet(trace: Trace, path: Path, table: str = "spans", **options: Any) -> None:
    """Write a table, as `trace.table` gives it, to a Parquet file; `spans` a group of rows at a time.

    A Parquet file holds one table. Names, modules and stacks are in it as strings, so the file needs nothing else. What is
    known of the run is JSON in the file's metadata, under `kinetoscope.info`; what each column means in that of its field.

    Args:
        trace: The trace.
        path: Where to write.
        table: Which table.
        **options: For the table's own function.

    Raises:
        OSError: The file cannot be written.
    """
    import pyarrow.parquet as pq

    parts = table_parts(trace, table, **options)
    first = next(parts)
    schema = first.schema.with_metadata((first.schema.metadata or {}) | {INFO_KEY: info_json(trace)})
    with (
        replaced(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        writer.write_table(first.cast(schema), row_group_size=ROWS_OF_A_GROUP)
        for part in parts:
            writer.write_table(part.cast(schema), row_group_size=ROWS_OF_A_GROUP)


def table_parts(trace: Trace, table: str, **options: Any) -> Iterator[pyarrow.Table]:
    """Give a table in parts with the same columns: that of the spans would be far larger than the trace."""
    if table != "spans":
        yield trace.table(table, **options)
        return
    length = len(trace.columns("spans"))
    for begin in range(0, max(length, 1), ROWS_OF_A_GROUP):
        yield trace.table("spans", rows=slice(begin, begin + ROWS_OF_A_GROUP))


def info_json(trace: Trace) -> bytes:
    """What is known of the run, as JSON."""
    return json.dumps(catalog.saved_info(trace), default=str).encode()
