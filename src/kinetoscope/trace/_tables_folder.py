"""All tables of a trace as a folder of Parquet files, and such a folder as a trace again.

`NAME.tables/` holds a file for each table as people see it (`spans.parquet`, `kernels.parquet` ...), for any tool that reads
Parquet. Beside them is `stored/`: the columns as the trace keeps them, with numbers for strings, stacks and modules, a
`strings.parquet`, and a `manifest.json` with `format`, `version`, `info` and the number of rows of each table. From these
the trace is opened exactly as it was; they may be left out where nobody wants to open it.
"""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.trace import catalog
from kinetoscope.trace._parquet import ROWS_OF_A_GROUP, write_parquet
from kinetoscope.trace._schema import STORED
from kinetoscope.trace._text import from_utf8, to_utf8

if TYPE_CHECKING:
    from kinetoscope.trace._trace import Trace

FORMAT, VERSION = "kinetoscope tables", 1
# Those that have a row for each row of the trace; what adds them up is quickly asked of these.
SHOWN = (
    "spans", "steps", "cycles", "threads", "streams", "launches", "kernels", "copies", "collectives", "allocations",
    "counters", "frames", "shapes", "losses", "info",
)  # fmt: skip
_OPTIONS: dict[str, dict[str, str]] = {"kernels": {"by": "span"}}
_REFERENCE = "row of "


def write_tables(trace: Trace, path: Path) -> None:
    """Write all tables to a folder, which appears under its name only when it is whole.

    Args:
        trace: The trace.
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
            write_parquet(trace, unfinished / f"{name}.parquet", name, **_OPTIONS.get(name, {}))
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


def read_tables(path: Path) -> Trace:
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


def _read(path: Path) -> Trace:
    """Read the folder; whatever is wrong raises something."""
    from kinetoscope.trace._trace import Trace

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
    return Trace.from_columns(tables, strings=strings, info=manifest["info"], path=path)


def _column(path: Path, table: str, column: str, kind: str) -> Any:
    """Read one stored column."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path / "stored" / f"{table}.parquet") as file:
        values = file.read([column]).column(column)
    if kind == "text":
        return [from_utf8(text) for text in values.to_pylist()]
    return values.to_numpy().astype(np.dtype(kind), casting="safe", copy=False)


def _write_stored(trace: Trace, folder: Path) -> None:
    """Write the given columns of every table, and what they are."""
    folder.mkdir()
    known: dict[str, Any] = {}
    for name in STORED:
        columns = trace.columns(name)
        known[name] = {"rows": len(columns), "columns": list(columns.given)}
        if columns.given:
            _write(folder / f"{name}.parquet", {column: columns[column] for column in columns.given})
    _write(folder / "strings.parquet", {"text": trace.strings})
    manifest = {"format": FORMAT, "version": VERSION, "info": catalog.saved_info(trace), "tables": known}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


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
    pq.write_table(pa.table(arrays), path, compression="zstd", row_group_size=ROWS_OF_A_GROUP)


def _is_ours(path: Path) -> bool:
    """Whether a folder is one that `write_tables` wrote, or empty."""
    if not path.is_dir() or path.is_symlink():
        return False
    try:
        manifest = json.loads((path / "stored" / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return not any(path.iterdir())
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT
