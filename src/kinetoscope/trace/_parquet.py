"""The `spans` table as a Parquet file, for tools that read nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.trace._replace import replaced

if TYPE_CHECKING:
    from pathlib import Path

    from kinetoscope.trace._trace import Trace


def write_parquet(trace: Trace, path: Path, table: str = "spans") -> None:
    """Write a table, as `trace.table` gives it, to a Parquet file.

    A Parquet file holds one table. Names, modules and stacks are in it as strings, so the file needs nothing else; to keep
    allocations, steps and metadata too, and to open the trace again, save it as `.ktrace`.

    Args:
        trace: The trace.
        path: Where to write.
        table: Which table.

    Raises:
        OSError: The file cannot be written.
    """
    import pyarrow.parquet as pq

    with replaced(path) as file:
        pq.write_table(trace.table(table), file, compression="zstd")
