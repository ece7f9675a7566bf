"""Our own finished file, `.ktrace`: small, lazy to read, and made of parts that other tools can read.

It is a ZIP archive, stored without compression, of:

- `manifest.json`: `format` ("ktrace"), `version`, `info`, and for each table its number of rows and, for each column
  that is not as it seems, how it is encoded;
- `<table>.arrow`: the given columns of a table as one Arrow IPC file with zstd buffers. Derived columns (parents, self
  times, modules of backward operators ...) are not stored: every reader computes the same from these;
- `strings.arrow`: the string table, one column `text`.

Encodings: `delta`: each value minus the one before, the first as it is. `constant`: no column at all, the
manifest has the value. Text is valid UTF-8, lone surrogates escaped as `kinetoscope.trace._text` says.
Columns are read when they are first used (`kinetoscope.trace._file_reader`). Members lie in the archive uncompressed,
so they are mapped, not copied; the archive's checksum of a member is checked when it is first used.
"""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace import catalog
from kinetoscope.trace._replace import replaced
from kinetoscope.trace._schema import STORED
from kinetoscope.trace._text import to_utf8

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow

    from kinetoscope.trace._columns import Columns
    from kinetoscope.trace._trace import Trace

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
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "info": catalog.saved_info(trace),
        "tables": {},
    }
    with replaced(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in STORED:
            columns = trace.columns(name)
            encodings, table = _encoded(name, columns)
            manifest["tables"][name] = {"rows": len(columns), "columns": encodings}
            if table is not None:
                archive.writestr(f"{name}.arrow", _ipc(table))
        archive.writestr("strings.arrow", _ipc(_strings_table(trace.strings)))
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))


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
