"""One table as an Arrow IPC file, which is what Feather is since its version 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.trace._parquet import INFO_KEY, info_json
from kinetoscope.trace._replace import replaced

if TYPE_CHECKING:
    from pathlib import Path

    from kinetoscope.trace._trace import Trace

ROWS_OF_A_BATCH = 1 << 17


def write_arrow(trace: Trace, path: Path, table: str = "spans") -> None:
    """Write a table, as `trace.table` gives it, to an Arrow IPC file with zstd buffers.

    The file has all types, dictionaries and the meaning of each column, and as metadata what is known of the run, as JSON
    under `kinetoscope.info`.

    Args:
        trace: The trace.
        path: Where to write.
        table: Which table.

    Raises:
        OSError: The file cannot be written.
    """
    import pyarrow as pa

    # In one piece: a file of Arrow has one dictionary for each column, so its strings must all be known first.
    made = trace.table(table)
    made = made.replace_schema_metadata((made.schema.metadata or {}) | {INFO_KEY: info_json(trace)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with replaced(path) as file, pa.ipc.new_file(file, made.schema, options=options) as writer:
        writer.write_table(made, max_chunksize=ROWS_OF_A_BATCH)
