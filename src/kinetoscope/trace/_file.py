"""Our own finished file, `.ktrace`: small, read a column at a time, made of parts that other tools can read.

It is a ZIP archive, stored without compression, of Arrow IPC files with zstd buffers and of `manifest.json`:

- `format` ("ktrace"), `version` (2), and `info`, the metadata of the trace;
- `strings`: the number of strings; they are the column `text` of `strings.arrow`;
- `tables`: for each its number of `rows` and its `columns`. Only given columns are stored. Derived ones (parents, self
  times, modules of backward operators ...) every reader computes from these.

Of each column the manifest says either `constant`, the value of every row, or the `member` of the archive that holds
it, and how: `delta`, each value minus the one before, summed up in 64 bits (the list has [row, step] of the few steps that
do not fit and are 0 in the file); `planes`, as N columns `<name>.0` to `<name>.N-1` of bytes, the lowest first. Whole
numbers may have a narrower type than the schema says; floating-point ones with `delta` or `planes` are their bits.
Text is valid UTF-8, lone surrogates escaped as `kinetoscope.trace._text` says.

Small tables are one member, `<table>.arrow`. Columns of large ones are a member each, `<table>.<column>.arrow`, so that
using one touches nothing else of the file: members are read, and their checksums checked, when they are first used.

Version 1, still read, had one member a table, the number of strings nowhere, and for each column `plain`, `delta` or
a constant.
"""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

from kinetoscope.trace import catalog
from kinetoscope.trace._file_columns import encoded
from kinetoscope.trace._replace import replaced
from kinetoscope.trace._schema import STORED
from kinetoscope.trace._text import to_utf8

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow

    from kinetoscope.trace._columns import Columns
    from kinetoscope.trace._trace import Trace

FORMAT, VERSION = "ktrace", 2
LARGE_ROWS = 65_536
# Texts of so many characters have fewer bytes than 31 bits can count.
_SMALL_TEXT = 1 << 29


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
        "strings": len(trace.strings),
        "tables": {},
    }
    with replaced(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in STORED:
            columns = trace.columns(name)
            entries: dict[str, dict[str, Any]] = {}
            for member, table in _members(name, columns, entries):
                archive.writestr(member, _ipc(table))
            manifest["tables"][name] = {"rows": len(columns), "columns": entries}
        archive.writestr("strings.arrow", _ipc(_table({"text": _texts(trace.strings)})))
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))


def _members(
    name: str, columns: Columns, entries: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, pyarrow.Table]]:
    """The members that hold the given columns of a table; `entries` is told of each column what the manifest says."""
    import pyarrow as pa

    together: dict[str, pyarrow.Array] = {}
    for column in columns.given:
        values = columns[column]
        if isinstance(values, list):
            entry: dict[str, Any] = {}
            arrays = {column: _texts(values)}
        else:
            entry, numbers = encoded(column, values)
            arrays = {part: pa.array(stored) for part, stored in numbers.items()}
        entries[column] = entry
        if not arrays:
            continue
        if len(columns) < LARGE_ROWS:
            entry["member"] = f"{name}.arrow"
            together.update(arrays)
        else:
            entry["member"] = f"{name}.{column}.arrow"
            yield entry["member"], _table(arrays)
    if together:
        yield f"{name}.arrow", _table(together)
    elif entries and len(columns) >= LARGE_ROWS and all("constant" in entry for entry in entries.values()):
        # A reader believes so many rows only when it sees them.
        column = columns.given[0]
        entries[column] = {"member": f"{name}.{column}.arrow"}
        yield entries[column]["member"], _table({column: pa.array(columns[column])})


def _table(arrays: dict[str, pyarrow.Array]) -> pyarrow.Table:
    """Arrays of one length as an Arrow table."""
    import pyarrow as pa

    return pa.table(arrays)


def _ipc(table: pyarrow.Table) -> memoryview:
    """Write one Arrow IPC file into memory."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def _texts(texts: list[str]) -> pyarrow.Array:
    """Texts as Arrow, which counts their bytes in 64 bits where 32 may not do."""
    import pyarrow as pa

    small = sum(map(len, texts)) < _SMALL_TEXT
    return pa.array([to_utf8(text) for text in texts], pa.string() if small else pa.large_string())
